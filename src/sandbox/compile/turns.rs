//! Who compiles next: one component of a project at a time, and few in all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places where components are compiled.
pub(in crate::sandbox) struct Turns {
    places: Arc<Semaphore>,
    projects: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A place that is taken until it is dropped.
pub(in crate::sandbox) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
    _project: Option<OwnedSemaphorePermit>,
    /// Kept so that others of the project find it.
    _queue: Arc<Semaphore>,
}

impl Turns {
    /// So many places for all projects together.
    pub(in crate::sandbox) fn new(places: u32) -> Self {
        Self { places: Arc::new(Semaphore::new(places as usize)), projects: Mutex::default() }
    }

    /// Waits for a place. A project that asks for many waits for itself
    /// first, so that another waits for one of each project at the most.
    pub(in crate::sandbox) async fn take(&self, project: &str) -> Arc<Turn> {
        let queue = self.queue(project);
        // They fail only for semaphores that were closed, which these never are.
        let own = Arc::clone(&queue).acquire_owned().await.ok();
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        Arc::new(Turn { _place: place, _project: own, _queue: queue })
    }

    fn queue(&self, project: &str) -> Arc<Semaphore> {
        let mut projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
        projects.retain(|_, queue| queue.strong_count() > 0);
        if let Some(queue) = projects.get(project).and_then(Weak::upgrade) {
            return queue;
        }
        let queue = Arc::new(Semaphore::new(1));
        projects.insert(project.to_owned(), Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_project_waits_for_itself_before_others_wait_for_it() {
        let turns = Turns::new(2);
        let first = turns.take("busy").now_or_never().expect("a free place");
        let mut second = Box::pin(turns.take("busy"));
        assert!((&mut second).now_or_never().is_none(), "one at a time");
        let quiet = turns.take("quiet").now_or_never().expect("the other place");
        assert!(turns.take("third").now_or_never().is_none(), "there are two");
        drop(quiet);
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().is_some());
    }

    #[test]
    fn who_gave_up_waiting_leaves_nothing() {
        let turns = Turns::new(1);
        let first = turns.take("a").now_or_never().expect("a free place");
        assert!(turns.take("b").now_or_never().is_none());
        drop(first);
        assert!(turns.take("b").now_or_never().is_some());
        turns.queue("c");
        assert_eq!(turns.projects.lock().expect("no panic").len(), 1);
    }
}
