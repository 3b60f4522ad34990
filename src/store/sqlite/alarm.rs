//! What tells that a file was written to, without looking at it again and again.

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::Alarm;
#[cfg(target_os = "linux")]
pub(super) use linux::Alarm;

#[cfg(target_os = "linux")]
mod linux {
    use std::{io, os::fd::OwnedFd, path::Path};

    use rustix::fs::inotify;
    use tokio::io::{Interest, unix::AsyncFd};

    /// A watch on one file, by inotify(7).
    #[derive(Debug)]
    pub(in super::super) struct Alarm(AsyncFd<OwnedFd>);

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
            let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
            let watch = inotify::init(flags)?;
            inotify::add_watch(&watch, file, inotify::WatchFlags::MODIFY)?;
            Ok(Self(AsyncFd::register_with_interest(watch, Interest::READABLE)?))
        }

        /// Resolves once the file was written to since this last resolved.
        pub(in super::super) async fn rings(&self) {
            let Ok(mut ready) = self.0.readable().await else {
                // The runtime is going down.
                return std::future::pending().await;
            };
            let mut events = [0; 4096];
            // Many writes are one ring.
            while let Ok(Ok(1..)) =
                ready.try_io(|watch| Ok(rustix::io::read(watch.get_ref(), &mut events)?))
            {}
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
