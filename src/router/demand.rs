//! How much of what to claim: a fair part for every project.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use crate::{
    model::Lane,
    store::{Claimed, ClaimedEvent, Seam},
};

/// How long a project is remembered after it last had an event.
const MEMORY: Duration = Duration::from_mins(1);

/// Seams in one claim at the most.
const MAX_SEAMS: usize = 512;

/// Deliveries that are claimed behind the first of their key.
const RUN: u32 = 50;

/// Rows asked of a seam that had none the last time.
const PROBE: u32 = 16;

/// What is known of events that wait.
#[derive(Default)]
pub(super) struct Demand {
    /// How many rows each seam is expected to have.
    wants: HashMap<(Lane, String), u32>,
    /// Projects that had events lately, and when.
    seen: BTreeMap<String, Instant>,
}

impl Demand {
    /// Projects that had events lately, in order.
    pub(super) fn projects(&self) -> impl Iterator<Item = &String> {
        self.seen.keys()
    }

    /// Notes that a seam has events. Answers whether its project is new.
    pub(super) fn expect(&mut self, lane: Lane, project: String) -> bool {
        let new = self.seen.insert(project.clone(), Instant::now()).is_none();
        self.wants.entry((lane, project)).or_insert(PROBE);
        new
    }

    /// Forgets projects that had nothing for long or aren't served.
    pub(super) fn forget_old(&mut self, serves: impl Fn(&str) -> bool) {
        let before = self.seen.len();
        self.seen.retain(|project, at| at.elapsed() < MEMORY && serves(project));
        if self.seen.len() < before {
            let seen = &self.seen;
            self.wants.retain(|(_, project), _| seen.contains_key(project));
        }
    }

    /// What to claim: every project that had events lately in every lane, each
    /// project an equal part of `batch` and not more than it has `room` for,
    /// each lane what it is expected to have, above its `mark`.
    pub(super) fn seams(
        &self,
        lanes: &[Lane],
        batch: usize,
        room: impl Fn(&str) -> usize,
        mark: impl Fn(Lane, &str) -> i64,
    ) -> Vec<Seam> {
        let mut left = batch;
        let mut projects = self.seen.len();
        let mut seams = Vec::new();
        // Those that want least first: what they leave goes to the others.
        let mut wants: Vec<(usize, &String)> = self
            .seen
            .keys()
            .map(|project| {
                let want = lanes.iter().map(|lane| self.want(*lane, project) as usize).sum();
                (want, project)
            })
            .collect();
        wants.sort_unstable();
        for (want, project) in wants {
            let part = left / projects.max(1);
            projects -= 1;
            let part = part.max(1).min(left).min(room(project));
            let mut given = 0;
            for lane in lanes {
                if given >= part || seams.len() >= MAX_SEAMS {
                    break;
                }
                let wish = self.want(*lane, project) as usize;
                // Scaled down so that the last lane gets its share too.
                let scaled = if want > part { (wish * part / want).max(1) } else { wish };
                let limit = scaled.min(part - given);
                given += limit;
                seams.push(Seam {
                    lane: *lane,
                    project: project.clone(),
                    above: mark(*lane, project),
                    limit: u32::try_from(limit).unwrap_or(u32::MAX),
                });
            }
            left -= given.min(left);
        }
        seams
    }

    fn want(&self, lane: Lane, project: &str) -> u32 {
        self.wants.get(&(lane, project.to_owned())).copied().unwrap_or(PROBE)
    }

    /// A seam that gave all that was asked has more; one that didn't has none,
    /// unless the claim was cut short. Answers the latter.
    pub(super) fn learn<'a>(
        &mut self,
        seams: &'a [Seam],
        claimed: &Claimed<ClaimedEvent>,
        most: u32,
    ) -> Vec<&'a Seam> {
        let mut drained = Vec::new();
        let mut got: HashMap<(Lane, &str), u32> = HashMap::new();
        for row in &claimed.rows {
            *got.entry((row.event.lane, &*row.event.project)).or_default() += 1;
        }
        for seam in seams {
            let got = got.get(&(seam.lane, &*seam.project)).copied().unwrap_or(0);
            let all = got >= seam.limit;
            if !all && !claimed.cut {
                drained.push(seam);
            }
            if all || !claimed.cut {
                let want = if all {
                    let want = seam.limit.max(self.want(seam.lane, &seam.project));
                    want.saturating_mul(4).min(most)
                } else {
                    (got * 2).max(PROBE)
                };
                self.wants.insert((seam.lane, seam.project.clone()), want);
            }
            if got > 0 {
                self.seen.insert(seam.project.clone(), Instant::now());
            }
        }
        drained
    }
}

/// Which deliveries to claim: of each pair of project and trigger as many as it
/// has `free` places for, all of a project no more than it has room for; and
/// how many behind each, of the room that is left.
pub(super) fn deliveries(
    pairs: Vec<(String, String)>,
    room: usize,
    room_of: impl Fn(&str) -> usize,
    free: impl Fn(&str, &str) -> u32,
) -> (Vec<(String, String, u32)>, u32) {
    let room = |project: &str| u32::try_from(room.min(room_of(project))).unwrap_or(u32::MAX);
    // Rooms of the projects, and how many heads each wants.
    let mut projects: HashMap<String, (u32, u32)> = HashMap::new();
    let mut wants = Vec::new();
    for (project, trigger) in pairs {
        let (room, heads) = projects.entry(project.clone()).or_insert_with(|| (room(&project), 0));
        let want = free(&project, &trigger).min(*room - *heads);
        if want > 0 {
            *heads += want;
            wants.push((project, trigger, want));
        }
    }
    let behind = |(room, heads): &(u32, u32)| (room - heads).checked_div(*heads);
    (wants, projects.values().filter_map(behind).min().unwrap_or(0).min(RUN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(wants: &[(&str, u32)]) -> Demand {
        let mut demand = Demand::default();
        for (project, want) in wants {
            demand.expect(0, (*project).to_owned());
            demand.wants.insert((0, (*project).to_owned()), *want);
        }
        demand
    }

    fn limits(demand: &Demand, batch: usize, room: impl Fn(&str) -> usize) -> Vec<(String, u32)> {
        let mut seams = demand.seams(&[0], batch, room, |_, _| 0);
        seams.sort_by(|a, b| a.project.cmp(&b.project));
        seams.into_iter().map(|seam| (seam.project, seam.limit)).collect()
    }

    #[test]
    fn what_small_ones_leave_goes_to_the_others() {
        let demand = demand(&[("big", 1000), ("huge", 5000), ("small", 20)]);
        let expected = [("big", 490), ("huge", 490), ("small", 20)];
        let expected = expected.map(|(name, limit)| (name.to_owned(), limit));
        assert_eq!(limits(&demand, 1000, |_| 10_000), expected);
    }

    #[test]
    fn deliveries_keep_to_their_project_s_room() {
        let pairs = [("p", "a"), ("p", "b"), ("q", "a"), ("full", "a"), ("p", "paused")];
        let pairs = pairs.map(|(p, t)| (p.to_owned(), t.to_owned())).to_vec();
        let room = |project: &str| if project == "full" { 0 } else { 90 };
        let free = |_: &str, trigger: &str| if trigger == "paused" { 0 } else { 32 };
        let (wants, run) = deliveries(pairs.clone(), 500, room, free);
        let wants: Vec<_> = wants.iter().map(|(p, t, n)| (&**p, &**t, *n)).collect();
        assert_eq!(wants, [("p", "a", 32), ("p", "b", 32), ("q", "a", 32)]);
        assert_eq!(run, 0, "26 places are left for the runs of 64");
        let (wants, run) = deliveries(pairs, 500, |_| 1000, |_, _| 2);
        assert_eq!((wants.len(), run), (5, 50));
    }

    #[test]
    fn a_project_without_room_is_left_out() {
        let demand = demand(&[("full", 1000), ("new", 16)]);
        let room = |project: &str| if project == "full" { 0 } else { 100 };
        assert_eq!(limits(&demand, 500, room), [("new".to_owned(), 16)]);
    }
}
