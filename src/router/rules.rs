//! Definitions as the router uses them: compiled, and joined with what a host
//! remembers of each trigger.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use super::{
    matcher::{Facts, When, covers},
    pending::Pending,
};
use crate::{
    metrics::{Metrics, TriggerMetrics},
    model::{
        event::Event,
        trigger::{Order, Record, Trigger},
    },
    store::{ControlVersion, Definitions},
    targets::{Target, Targets},
};

/// One revision of a trigger, ready to be used.
pub(super) struct Rule {
    pub(super) trigger: Trigger,
    pub(super) when: Option<Result<When, String>>,
    pub(super) target: Arc<dyn Target>,
    pub(super) desk: Arc<Desk>,
    /// Digest of the active plugin version when this was made.
    active: Option<String>,
}

impl Rule {
    pub(super) fn name(&self) -> &str {
        &self.trigger.name
    }

    pub(super) fn ordered(&self) -> bool {
        self.trigger.spec.order == Order::Aggregate
    }

    pub(super) fn paused(&self) -> bool {
        self.trigger.paused.is_some()
    }

    /// Whether a call that ended well is to be kept.
    pub(super) fn keeps_success(&self) -> bool {
        match self.trigger.spec.record {
            Record::All => true,
            Record::Failures => false,
            Record::Rate(rate) => self.desk.bucket.take(rate.each_second(), rate.count()),
        }
    }
}

/// What a host remembers of a trigger across its revisions.
pub(super) struct Desk {
    /// Distinct for each trigger of this process.
    pub(super) id: u64,
    /// Calls that may run at once; made anew when the limit changes.
    room: Mutex<(u32, Arc<Semaphore>)>,
    /// Deliveries held for it, waiting or running.
    pub(super) deliveries: AtomicU32,
    pub(super) pending: Pending,
    pub(super) pace: Pace,
    pub(super) metrics: Arc<TriggerMetrics>,
    bucket: Bucket,
}

impl Desk {
    pub(super) fn room(&self) -> Arc<Semaphore> {
        Arc::clone(&self.room.lock().unwrap_or_else(PoisonError::into_inner).1)
    }

    fn resize(&self, limit: u32) {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        if room.0 != limit {
            // Calls that run keep their permits of the old one: for a moment
            // there may be more of them than either limit says.
            *room = (limit, Arc::new(Semaphore::new(limit as usize)));
        }
    }

    /// Deliveries that there is room for.
    pub(super) fn free(&self) -> u32 {
        let limit = self.room.lock().unwrap_or_else(PoisonError::into_inner).0;
        limit.saturating_mul(2).saturating_sub(self.deliveries.load(Ordering::Relaxed))
    }
}

/// How long a trigger's calls take.
pub(super) struct Pace {
    /// A moving average, in microseconds.
    average: AtomicU64,
    last: Mutex<Instant>,
}

/// Calls this quick leave no room to be stuck behind them.
const QUICK: Duration = Duration::from_millis(20);

/// Without a call that ended for so long, they aren't quick any more.
const SILENCE: Duration = Duration::from_millis(500);

impl Default for Pace {
    fn default() -> Self {
        Self { average: AtomicU64::new(0), last: Mutex::new(Instant::now()) }
    }
}

impl Pace {
    /// Notes what a call took.
    pub(super) fn took(&self, micros: u64) {
        // Racing calls may lose one another's share; it is an average.
        let average = self.average.load(Ordering::Relaxed);
        self.average.store((average * 15 + micros) / 16, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether calls end one soon after another.
    pub(super) fn is_quick(&self) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let average = Duration::from_micros(self.average.load(Ordering::Relaxed));
        average < QUICK && last.elapsed() < SILENCE
    }
}

/// Lets through so many a second, and a second's worth at once.
#[derive(Default)]
struct Bucket(Mutex<Option<(f64, Instant)>>);

impl Bucket {
    fn take(&self, each_second: f64, burst: u32) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = state.unwrap_or_else(|| (f64::from(burst), Instant::now()));
        let now = Instant::now();
        let filled = (left + (now - at).as_secs_f64() * each_second).min(f64::from(burst));
        let taken = filled >= 1.0;
        *state = Some((if taken { filled - 1.0 } else { filled }, now));
        taken
    }
}

/// All rules at one control version.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) version: ControlVersion,
    projects: HashMap<String, Project>,
    /// Triggers, by project and name, that are in force and that this process
    /// can't deliver to.
    beyond: Vec<(String, String)>,
}

#[derive(Default)]
struct Project {
    enabled: bool,
    rules: BTreeMap<String, Arc<Rule>>,
}

impl Rules {
    /// Rules for new definitions, with what is unchanged taken from `before`.
    pub(super) fn new(
        definitions: Definitions,
        before: &Self,
        targets: &dyn Targets,
        metrics: &Metrics,
    ) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let mut projects: HashMap<String, Project> = definitions
            .projects
            .into_iter()
            .map(|p| (p.name, Project { enabled: p.enabled, rules: BTreeMap::new() }))
            .collect();
        let active: HashMap<(&str, &str), &str> =
            definitions.active.iter().map(|(p, n, d)| ((&**p, &**n), &**d)).collect();
        for trigger in definitions.triggers {
            let plugin = trigger.spec.target.plugin();
            let digest = plugin.and_then(|name| active.get(&(&*trigger.project, name)).copied());
            let old = before.rule(&trigger.project, &trigger.name);
            let same = old.filter(|old| {
                old.trigger.revision == trigger.revision && old.active.as_deref() == digest
            });
            let rule = same.cloned().unwrap_or_else(|| {
                let limit = trigger.spec.limits.concurrency;
                let desk = old.map_or_else(
                    || {
                        Arc::new(Desk {
                            id: IDS.fetch_add(1, Ordering::Relaxed),
                            room: Mutex::new((limit, Arc::new(Semaphore::new(limit as usize)))),
                            deliveries: AtomicU32::new(0),
                            pending: Pending::default(),
                            pace: Pace::default(),
                            metrics: metrics.for_trigger(&trigger.project, &trigger.name),
                            bucket: Bucket::default(),
                        })
                    },
                    |old| Arc::clone(&old.desk),
                );
                desk.resize(limit);
                Arc::new(Rule {
                    when: trigger.spec.matches.when.as_deref().map(When::compile),
                    target: targets.target(&trigger, digest),
                    active: digest.map(str::to_owned),
                    desk,
                    trigger,
                })
            });
            let project = projects.entry(rule.trigger.project.clone()).or_default();
            project.rules.insert(rule.trigger.name.clone(), rule);
        }
        let beyond = projects
            .values()
            .filter(|project| project.enabled)
            .flat_map(|project| project.rules.values())
            .filter(|rule| !rule.paused() && !targets.can_reach(&rule.trigger))
            .map(|rule| (rule.trigger.project.clone(), rule.trigger.name.clone()))
            .collect();
        Self { version: definitions.version, projects, beyond }
    }

    /// A trigger of the projects that a host takes which it can't deliver to.
    pub(super) fn beyond(&self, takes: impl Fn(&str) -> bool) -> Option<&(String, String)> {
        self.beyond.iter().find(|(project, _)| takes(project))
    }

    pub(super) fn rule(&self, project: &str, name: &str) -> Option<&Arc<Rule>> {
        self.projects.get(project)?.rules.get(name)
    }

    /// Whether a project's events are to be delivered.
    pub(super) fn serves(&self, project: &str) -> bool {
        self.projects.get(project).is_some_and(|project| project.enabled)
    }

    /// Projects whose events are to be delivered.
    pub(super) fn served(&self) -> impl Iterator<Item = &String> {
        self.projects.iter().filter(|(_, project)| project.enabled).map(|(name, _)| name)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.projects.values().flat_map(|project| project.rules.values())
    }

    /// The rules that an event is for, and those whose `when` could not be
    /// evaluated, with the reason.
    pub(super) fn matching(&self, event: &Event) -> Matching {
        let mut matching = Matching::default();
        let Some(project) = self.projects.get(&event.project) else { return matching };
        let mut facts = None;
        for rule in project.rules.values() {
            if !covers(&rule.trigger.spec.matches, event) {
                continue;
            }
            let holds = match &rule.when {
                None => Ok(true),
                Some(Err(why)) => Err(format!("`when` {why}")),
                Some(Ok(when)) => match facts.get_or_insert_with(|| Facts::of(event)) {
                    Ok(facts) => when.holds(facts),
                    Err(why) => Err(why.clone()),
                },
            };
            match holds {
                Ok(true) => matching.rules.push(Arc::clone(rule)),
                Ok(false) => {}
                Err(why) => matching.unclear.push((rule.trigger.name.clone(), why)),
            }
        }
        matching
    }
}

/// What became of matching an event.
#[derive(Default)]
pub(super) struct Matching {
    pub(super) rules: Vec<Arc<Rule>>,
    pub(super) unclear: Vec<(String, String)>,
}
