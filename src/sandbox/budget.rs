//! The memory of all guests together: no project takes all that this host
//! gives.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

/// What each call has without asking: so much of a slot stays resident anyway.
pub(super) const FREE: usize = 2 << 20;

/// Bytes that may be in use, and by whom they are.
pub(super) struct Budget {
    all: Account,
    /// What one project may have.
    share: usize,
    projects: Mutex<HashMap<String, Weak<Account>>>,
}

/// Bytes of one owner.
struct Account {
    max: usize,
    used: AtomicUsize,
}

impl Budget {
    /// So many bytes, of which one project gets three quarters.
    pub(super) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self {
            all: Account::new(total),
            share: total - total / 4,
            projects: Mutex::default(),
        })
    }

    fn account(&self, project: &str) -> Arc<Account> {
        let mut projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = projects.get(project).and_then(Weak::upgrade) {
            return account;
        }
        projects.retain(|_, account| account.strong_count() > 0);
        let account = Arc::new(Account::new(self.share));
        projects.insert(project.to_owned(), Arc::downgrade(&account));
        account
    }
}

impl Account {
    fn new(max: usize) -> Self {
        Self { max, used: AtomicUsize::new(0) }
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What one instance holds of the budget; given back when it is dropped.
pub(super) struct Hold {
    budget: Arc<Budget>,
    account: Option<Arc<Account>>,
    bytes: usize,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Hold {
    /// Nothing held.
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), account: None, bytes: 0 }
    }

    /// Holds what an instance needs whose memory has so many bytes, if there
    /// is so much left for its project. A smaller memory gives some back.
    pub(super) fn set(&mut self, memory: usize, project: &str) -> bool {
        let needed = memory.saturating_sub(FREE);
        if needed == self.bytes {
            return true;
        }
        let account = self.account.get_or_insert_with(|| self.budget.account(project));
        if let Some(more) = needed.checked_sub(self.bytes) {
            if !account.take(more) {
                return false;
            }
            if !self.budget.all.take(more) {
                account.give_back(more);
                return false;
            }
        } else {
            let less = self.bytes - needed;
            account.give_back(less);
            self.budget.all.give_back(less);
        }
        self.bytes = needed;
        true
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.set(0, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_project_leaves_some_to_others_and_everything_comes_back() {
        let budget = Budget::new(16 * MIB);
        let mut holds: Vec<_> = (0..3).map(|_| Hold::new(&budget)).collect();
        assert!(holds[0].set(FREE + 6 * MIB, "a"));
        assert!(holds[1].set(FREE + 6 * MIB, "a"));
        assert!(holds[2].set(FREE, "a"), "a small one needs nothing");
        assert!(!holds[2].set(FREE + 1, "a"), "three quarters are taken");
        let mut other = Hold::new(&budget);
        assert!(other.set(FREE + 4 * MIB, "b"));
        assert!(!other.set(FREE + 5 * MIB, "b"), "all is taken");
        assert!(holds[0].set(FREE + 5 * MIB, "a"));
        assert!(other.set(FREE + 5 * MIB, "b"));
        drop((holds, other));
        assert_eq!(budget.all.used.load(Ordering::Relaxed), 0);
        assert!(Hold::new(&budget).set(FREE + 12 * MIB, "a"));
    }
}
