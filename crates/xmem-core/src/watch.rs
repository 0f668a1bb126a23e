// SPDX-License-Identifier: MPL-2.0

//! Watches for new and removed pools.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use xmem_shm::os::clock::Deadline;
use xmem_shm::os::eventfd;

use crate::cancel::{Canceller, Registration, Wake};
use crate::rendezvous::runtime_dir;

/// The interval of checks whether the directory was created or replaced.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The result of [`PoolWatch::wait`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// A file of the runtime directory was created or removed. [`pools`](crate::discovery::pools) lists the pools.
    Changed,
    /// Nothing happened in time.
    Nothing,
    /// The wait was cancelled.
    Cancelled,
}

/// Watches for new and closed pools in the runtime directory.
///
/// The death of a producer changes no file, and new caps do not either. To detect these, poll as well.
///
/// ```
/// use std::time::Duration;
/// use xmem_core::Canceller;
/// use xmem_core::discovery::{PoolWatch, Watched, pools};
///
/// let canceller = Canceller::new();
/// let mut watch = PoolWatch::new(&canceller)?;
/// println!("{:?}", pools());
/// canceller.cancel(); // in another thread
/// assert_eq!(watch.wait(Some(Duration::from_secs(1))), Watched::Cancelled);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct PoolWatch {
    dir: PathBuf,
    inotify: OwnedFd,
    /// The watch descriptor of the directory. `None`: it does not exist.
    watched: Option<i32>,
    stop: Arc<EventFd>,
    canceller: Canceller,
    _registration: Registration,
}

impl fmt::Debug for PoolWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolWatch").finish_non_exhaustive()
    }
}

impl PoolWatch {
    /// Watches for changes from here on, until `canceller` cancels it. The directory need not exist yet.
    ///
    /// # Errors
    ///
    /// When the process has no descriptors left, or the user no inotify instances.
    pub fn new(canceller: &Canceller) -> io::Result<Self> {
        Self::of(runtime_dir(), canceller)
    }

    fn of(dir: PathBuf, canceller: &Canceller) -> io::Result<Self> {
        let stop = Arc::new(EventFd(eventfd::new()?));
        let mut watch = Self {
            dir,
            inotify: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            watched: None,
            _registration: canceller.register(&stop),
            stop,
            canceller: canceller.clone(),
        };
        watch.look_for_directory();
        Ok(watch)
    }

    /// Waits for a change, at most `timeout` (`None`: no limit).
    pub fn wait(&mut self, timeout: Option<Duration>) -> Watched {
        let deadline = Deadline::after(timeout);
        loop {
            if self.canceller.is_cancelled() {
                return Watched::Cancelled;
            }
            let is_another = self.look_for_directory();
            if self.take_events() || is_another {
                return Watched::Changed;
            }
            if deadline.is_over() {
                return Watched::Nothing;
            }
            let time = deadline.left_up_to(LOOK_AGAIN).try_into().ok();
            let mut fds = [&self.stop.0, &self.inotify].map(|fd| PollFd::new(fd, PollFlags::IN));
            if let Err(error) = poll(&mut fds, time.as_ref())
                && error != Errno::INTR
            {
                log::warn!("cannot wait for changes of {:?}: {error}", self.dir);
                return Watched::Cancelled;
            }
            // Cleared, so that it does not wake the next wait after the canceller was reset.
            eventfd::silence(&self.stop.0);
        }
    }

    /// Watches the directory that has this path now. `true`: it was replaced.
    fn look_for_directory(&mut self) -> bool {
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        // inotify returns the same number if it already watches that directory.
        let now = add_watch(&self.inotify, &self.dir, flags | WatchFlags::ONLYDIR).ok();
        now != std::mem::replace(&mut self.watched, now)
    }

    /// Reads all events. Returns whether there were any.
    fn take_events(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut any = false;
        while reader.next().is_ok() {
            any = true;
        }
        any
    }
}

/// An eventfd that a canceller makes readable.
struct EventFd(OwnedFd);

impl Wake for EventFd {
    fn wake(&self) {
        eventfd::ring(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn new_and_removed_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = PoolWatch::of(dir.path().to_owned(), &Canceller::new()).unwrap();
        assert_eq!(watch.wait(Some(Duration::ZERO)), Watched::Nothing);
        let file = dir.path().join("p.sock");
        fs::write(&file, "").unwrap();
        assert_eq!(watch.wait(LONG), Watched::Changed);
        assert_eq!(watch.wait(Some(Duration::ZERO)), Watched::Nothing);
        fs::remove_file(&file).unwrap();
        assert_eq!(watch.wait(LONG), Watched::Changed);
    }

    #[test]
    fn a_late_and_a_replaced_directory_are_watched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let mut watch = PoolWatch::of(path.clone(), &Canceller::new()).unwrap();
        assert_eq!(watch.wait(Some(Duration::ZERO)), Watched::Nothing);
        for _ in 0..2 {
            fs::create_dir(&path).unwrap();
            assert_eq!(watch.wait(LONG), Watched::Changed);
            fs::write(path.join("p.sock"), "").unwrap();
            assert_eq!(watch.wait(LONG), Watched::Changed);
            fs::remove_dir_all(&path).unwrap();
            assert_eq!(watch.wait(LONG), Watched::Changed);
            while watch.wait(Some(Duration::ZERO)) == Watched::Changed {}
        }
    }

    #[test]
    fn a_watch_can_be_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let canceller = Canceller::new();
        let mut watch = PoolWatch::of(dir.path().to_owned(), &canceller).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| watch.wait(None));
            canceller.cancel();
            assert_eq!(waiting.join().unwrap(), Watched::Cancelled);
        });
        canceller.reset();
        assert_eq!(watch.wait(Some(Duration::ZERO)), Watched::Nothing);
    }
}
