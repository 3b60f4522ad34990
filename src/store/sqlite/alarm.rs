//! What tells that a file was written to, without looking at it again and again.

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::Alarm;
#[cfg(target_os = "linux")]
pub(super) use linux::Alarm;

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        io,
        os::fd::OwnedFd,
        path::Path,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
    };

    use rustix::fs::inotify;
    use tokio::sync::Notify;

    /// A watch on one file, by inotify(7), read by a thread that sleeps
    /// otherwise.
    #[derive(Debug)]
    pub(in super::super) struct Alarm {
        shared: Arc<Shared>,
        watch: i32,
    }

    #[derive(Debug)]
    struct Shared {
        events: OwnedFd,
        bell: Notify,
        over: AtomicBool,
    }

    impl Alarm {
        /// Nothing where there is no such file, or the system has no watch left.
        pub(in super::super) fn of(file: &Path) -> Option<Self> {
            Self::watch(file)
                .inspect_err(|error| {
                    tracing::debug!(%error, file = %file.display(), "no watch; looking instead");
                })
                .ok()
        }

        fn watch(file: &Path) -> io::Result<Self> {
            let events = inotify::init(inotify::CreateFlags::CLOEXEC)?;
            let watch = inotify::add_watch(&events, file, inotify::WatchFlags::MODIFY)?;
            let (bell, over) = (Notify::new(), AtomicBool::new(false));
            let shared = Arc::new(Shared { events, bell, over });
            let told = Arc::clone(&shared);
            thread::Builder::new().name("sqlite-watch".into()).spawn(move || told.listen())?;
            Ok(Self { shared, watch })
        }

        /// Resolves once the file was written to since this last resolved.
        pub(in super::super) async fn rings(&self) {
            self.shared.bell.notified().await;
        }
    }

    impl Drop for Alarm {
        fn drop(&mut self) {
            self.shared.over.store(true, Ordering::SeqCst);
            // This is an event too: it ends the thread's wait.
            if let Err(error) = inotify::remove_watch(&self.shared.events, self.watch) {
                tracing::debug!(%error, "a watch stays until the process ends");
            }
        }
    }

    impl Shared {
        fn listen(&self) {
            // Many writes are one ring.
            let mut events = [0; 4096];
            while let Ok(1..) | Err(rustix::io::Errno::INTR) =
                rustix::io::read(&self.events, &mut events)
            {
                if self.over.load(Ordering::SeqCst) {
                    return;
                }
                self.bell.notify_one();
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::path::Path;

    /// There is none.
    #[derive(Debug)]
    pub(in super::super) enum Alarm {}

    impl Alarm {
        pub(in super::super) fn of(_: &Path) -> Option<Self> {
            None
        }

        pub(in super::super) async fn rings(&self) {
            match *self {}
        }
    }
}
