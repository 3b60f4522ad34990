//! Who compiles next: one component of a project at a time, and few in all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Uploads of one project that are in memory at once.
const UPLOADS: usize = 4;

/// The places where components are compiled.
pub(in crate::sandbox) struct Turns {
    places: Arc<Semaphore>,
    projects: Mutex<HashMap<String, Weak<Project>>>,
}

/// What one project has, for as long as it uses any of it.
struct Project {
    turn: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
}

/// A place that is taken until it is dropped.
pub(in crate::sandbox) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
    _first: Option<OwnedSemaphorePermit>,
    _project: Arc<Project>,
}

/// Room for an upload, until this is dropped.
pub struct Reservation {
    _upload: OwnedSemaphorePermit,
    _project: Arc<Project>,
}

impl Turns {
    /// So many places for all projects together.
    pub(in crate::sandbox) fn new(places: u32) -> Self {
        Self { places: Arc::new(Semaphore::new(places as usize)), projects: Mutex::default() }
    }

    /// Room for an upload, unless as many of the project as may be are under
    /// way: each takes memory from its first byte on.
    pub(in crate::sandbox) fn reserve(&self, project: &str) -> Option<Reservation> {
        let project = self.project(project);
        let upload = Arc::clone(&project.uploads).try_acquire_owned().ok()?;
        Some(Reservation { _upload: upload, _project: project })
    }

    /// Waits for a place. A project that asks for many waits for itself
    /// first, so that another waits for one of each project at the most.
    pub(in crate::sandbox) async fn take(&self, project: &str) -> Arc<Turn> {
        let project = self.project(project);
        // They fail only for semaphores that were closed, which these never are.
        let turn = Arc::clone(&project.turn).acquire_owned().await.ok();
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        Arc::new(Turn { _place: place, _first: turn, _project: project })
    }

    fn project(&self, name: &str) -> Arc<Project> {
        let mut projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
        projects.retain(|_, project| project.strong_count() > 0);
        if let Some(project) = projects.get(name).and_then(Weak::upgrade) {
            return project;
        }
        let (turn, uploads) = (Semaphore::new(1), Semaphore::new(UPLOADS));
        let project = Arc::new(Project { turn: Arc::new(turn), uploads: Arc::new(uploads) });
        projects.insert(name.to_owned(), Arc::downgrade(&project));
        project
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
    fn uploads_of_one_project_have_an_end() {
        let turns = Turns::new(1);
        let mut under_way: Vec<_> = (0..UPLOADS).map(|_| turns.reserve("busy")).collect();
        assert!(under_way.iter().all(Option::is_some));
        assert!(turns.reserve("busy").is_none());
        assert!(turns.reserve("quiet").is_some());
        under_way.pop();
        assert!(turns.reserve("busy").is_some());
    }

    #[test]
    fn who_gave_up_waiting_leaves_nothing() {
        let turns = Turns::new(1);
        let first = turns.take("a").now_or_never().expect("a free place");
        assert!(turns.take("b").now_or_never().is_none());
        drop(first);
        assert!(turns.take("b").now_or_never().is_some());
        turns.project("c");
        assert_eq!(turns.projects.lock().expect("no panic").len(), 1);
    }
}
