//! Definitions as the router uses them: compiled, and joined with what a host
//! remembers of each trigger.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::sync::Semaphore;

use super::{
    desk::Desk,
    matcher::{When, fits},
};
use crate::{
    metrics::Metrics,
    model::{
        capability::Allow,
        event::Event,
        trigger::{Isolation, Order, Record, Trigger},
    },
    store::{ControlVersion, Definitions},
    targets::{Target, Targets},
};

/// One revision of a trigger, ready to be used.
pub(super) struct Rule {
    /// As it is in force: its grants are those that its project allows.
    pub(super) trigger: Trigger,
    pub(super) when: Option<Result<When, String>>,
    pub(super) target: Arc<dyn Target>,
    pub(super) desk: Arc<Desk>,
    /// Digest of the active plugin version when this was made.
    active: Option<String>,
    /// What told the values of its secrets from others then.
    secrets: Vec<Vec<u8>>,
}

impl Rule {
    pub(super) fn name(&self) -> &str {
        &self.trigger.name
    }

    pub(super) fn ordered(&self) -> bool {
        self.trigger.spec.order == Order::Aggregate
    }

    /// Whether calls of one batch may share an instance.
    pub(super) fn batches(&self) -> bool {
        self.trigger.spec.isolation == Isolation::Batch
    }

    /// Whether its deliveries wait. Known at once where the trigger pauses
    /// itself, and by calls that wait for their turn.
    pub(super) fn paused(&self) -> bool {
        self.desk.is_paused()
    }

    /// Whether a call that ended well is to be kept.
    pub(super) fn keeps_success(&self) -> bool {
        match self.trigger.spec.record {
            Record::All => true,
            Record::Failures => false,
            Record::Rate(rate) => self.desk.records.take(rate.each_second(), rate.count()),
        }
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

struct Project {
    enabled: bool,
    /// Calls that it may make at once, all its triggers together.
    share: Arc<Semaphore>,
    rules: BTreeMap<String, Arc<Rule>>,
}

impl Project {
    /// Three of four calls: there is room for others whatever one project does.
    fn share(calls: usize) -> Arc<Semaphore> {
        Arc::new(Semaphore::new((calls - calls / 4).max(1)))
    }
}

impl Rules {
    /// Rules for new definitions, with what is unchanged taken from `before`.
    pub(super) fn new(
        definitions: Definitions,
        before: &Self,
        targets: &dyn Targets,
        metrics: &Metrics,
        calls: usize,
    ) -> Self {
        let allowed: HashMap<String, Allow> =
            definitions.projects.iter().map(|p| (p.name.clone(), p.allow.clone())).collect();
        let mut projects: HashMap<String, Project> = definitions
            .projects
            .into_iter()
            .map(|p| {
                let known = before.projects.get(&p.name).map(|known| Arc::clone(&known.share));
                let share = known.unwrap_or_else(|| Project::share(calls));
                (p.name, Project { enabled: p.enabled, share, rules: BTreeMap::new() })
            })
            .collect();
        let active: HashMap<(&str, &str), &str> =
            definitions.active.iter().map(|(p, n, d)| ((&**p, &**n), &**d)).collect();
        let stamps: HashMap<(&str, &str), &[u8]> =
            definitions.secrets.iter().map(|(p, n, s)| ((&**p, &**n), &**s)).collect();
        for mut trigger in definitions.triggers {
            // What the project doesn't allow any more is not in force from now on.
            if let Some(allow) = allowed.get(&trigger.project) {
                trigger.spec.grants = allow.narrow(&trigger.spec.grants);
            }
            let plugin = trigger.spec.target.plugin();
            let digest = plugin.and_then(|name| active.get(&(&*trigger.project, name)).copied());
            let granted = trigger.spec.grants.secrets.iter();
            let stamp = |name| stamps.get(&(&*trigger.project, name)).copied();
            let secrets: Vec<Vec<u8>> =
                granted.map(|name| stamp(name).unwrap_or_default().to_vec()).collect();
            let old = before.rule(&trigger.project, &trigger.name);
            let same = old.filter(|old| {
                old.trigger.revision == trigger.revision
                    && old.active.as_deref() == digest
                    && old.trigger.spec.grants == trigger.spec.grants
                    && old.secrets == secrets
            });
            let rule = same.cloned().unwrap_or_else(|| {
                let desk = old.map_or_else(
                    || {
                        let metrics = metrics.for_trigger(&trigger.project, &trigger.name);
                        let project = projects.get(&trigger.project);
                        let share = project.map(|project| Arc::clone(&project.share));
                        let share = share.unwrap_or_else(|| Project::share(calls));
                        Arc::new(Desk::new(metrics, share))
                    },
                    |old| Arc::clone(&old.desk),
                );
                desk.revise(&trigger);
                Arc::new(Rule {
                    when: trigger.spec.matches.when.as_deref().map(When::compile),
                    target: targets.target(&trigger, digest),
                    active: digest.map(str::to_owned),
                    secrets,
                    desk,
                    trigger,
                })
            });
            let project = projects.entry(rule.trigger.project.clone()).or_insert_with(|| {
                let share = Arc::clone(&rule.desk.share);
                Project { enabled: false, share, rules: BTreeMap::new() }
            });
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
            match fits(&rule.trigger.spec.matches, rule.when.as_ref(), event, &mut facts) {
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
