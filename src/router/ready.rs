//! Units that may be written, by project.
//!
//! Nothing that a settle depends on crosses projects: while the results of one
//! are written, so can those of others be, and a project with many holds up
//! none with few.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};

use super::ledger::UnitId;

/// A project with more than so many is written on its own.
const FEW: usize = 100;

#[derive(Default)]
pub(super) struct Ready {
    queues: HashMap<String, VecDeque<UnitId>>,
    /// Projects with units, in the order of their turns.
    turns: VecDeque<String>,
    /// Projects of which some are being written: the rest comes after these.
    busy: HashSet<String>,
    /// Whether there is something new of a project that isn't busy.
    news: bool,
}

impl Ready {
    pub(super) fn push(&mut self, project: &str, id: UnitId) {
        self.news |= !self.busy.contains(project);
        if let Some(queue) = self.queues.get_mut(project) {
            queue.push_back(id);
        } else {
            self.queues.insert(project.to_owned(), VecDeque::from([id]));
            self.turns.push_back(project.to_owned());
        }
    }

    /// Whether something may be taken that could not the last time. What is
    /// busy is looked at again by whoever is busy with it.
    pub(super) fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    pub(super) fn remove(&mut self, project: &str, id: UnitId) {
        if let Some(queue) = self.queues.get_mut(project) {
            queue.retain(|ready| *ready != id);
            if queue.is_empty() {
                self.queues.remove(project);
                self.turns.retain(|other| other != project);
            }
        }
    }

    /// Takes units to be written together, and their projects, which are busy
    /// until they are [`Self::done`]: one project with many, or some with few.
    pub(super) fn take(&mut self, most: usize) -> (Vec<UnitId>, Vec<String>) {
        let (mut ids, mut projects) = (Vec::new(), Vec::new());
        let mut later = VecDeque::new();
        while let Some(project) = self.turns.pop_front() {
            let waiting = self.queues.get(&project).map_or(0, VecDeque::len);
            let fits = ids.is_empty() || (waiting <= FEW && ids.len() + waiting <= most);
            if !fits || self.busy.contains(&project) {
                later.push_back(project);
                continue;
            }
            let Some(mut queue) = self.queues.remove(&project) else { continue };
            let rest = queue.split_off(queue.len().min(most));
            ids.extend(queue);
            self.busy.insert(project.clone());
            projects.push(project.clone());
            if !rest.is_empty() {
                self.queues.insert(project.clone(), rest);
                later.push_back(project);
            }
            if waiting > FEW {
                break;
            }
        }
        // Those that were passed over come first the next time.
        later.append(&mut self.turns);
        self.turns = later;
        (ids, projects)
    }

    /// What was taken of these projects is written.
    pub(super) fn done(&mut self, projects: &[String]) {
        for project in projects {
            self.busy.remove(project);
        }
    }
}

#[cfg(test)]
impl Ready {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.busy.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(counts: &[(&str, u64)]) -> Ready {
        let mut ready = Ready::default();
        for (project, count) in counts {
            (0..*count).for_each(|id| ready.push(project, id));
        }
        ready
    }

    #[test]
    fn few_are_not_held_up_by_many() {
        let mut ready = ready(&[("many", 2500), ("a", 3), ("b", 2)]);
        let (first, many) = ready.take(1000);
        assert_eq!((first.len(), many.clone()), (1000, vec!["many".to_owned()]));
        assert!(first.is_sorted());
        let (second, few) = ready.take(1000);
        assert_eq!((second, few.len()), (vec![0, 1, 2, 0, 1], 2));
        assert!(ready.take(1000).0.is_empty(), "all are busy");
        ready.done(&many);
        assert_eq!(ready.take(1000).0, (1000..2000).collect::<Vec<_>>(), "in order");
    }

    #[test]
    fn what_is_removed_is_not_taken() {
        let mut ready = ready(&[("a", 3), ("b", 1)]);
        ready.remove("a", 1);
        ready.remove("b", 0);
        ready.remove("c", 0);
        assert_eq!(ready.take(10), (vec![0, 2], vec!["a".to_owned()]));
    }
}
