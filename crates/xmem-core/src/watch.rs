// SPDX-License-Identifier: MPL-2.0

//! Notices that pools come and go.

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

/// How often to look whether the directory is another one now: made only later, or removed and made again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What happened while [`PoolWatch::wait`] waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// A file of the runtime directory came or went. Whose, [`pools`](crate::pools) says.
    Changed,
    /// Nothing, in the time that was given.
    Nothing,
    /// The wait was called off.
    Cancelled,
}

/// Notices that a pool of the runtime directory was made or closed.
///
/// Not that its producer was killed, which changes no file, nor that its caps are others: who wants to know that looks
/// again now and then.
///
/// ```
/// use std::time::Duration;
/// use xmem_core::{Canceller, PoolWatch, Watched};
///
/// let canceller = Canceller::new();
/// let mut watch = PoolWatch::new(&canceller)?;
/// println!("{:?}", xmem_core::pools());
/// canceller.cancel(); // in another thread
/// assert_eq!(watch.wait(Some(Duration::from_secs(1))), Watched::Cancelled);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct PoolWatch {
    dir: PathBuf,
    inotify: OwnedFd,
    /// What inotify calls the directory that is watched. `None`: there is none.
    watched: Option<i32>,
    bell: Arc<EventBell>,
    canceller: Canceller,
    _registration: Registration,
}

impl fmt::Debug for PoolWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolWatch").finish_non_exhaustive()
    }
}

impl PoolWatch {
    /// Notices changes from here on, until `canceller` calls it off. The directory need not be there yet.
    ///
    /// # Errors
    ///
    /// When the process has no descriptors left, or the user no inotify instances.
    pub fn new(canceller: &Canceller) -> io::Result<Self> {
        Self::of(runtime_dir(), canceller)
    }

    fn of(dir: PathBuf, canceller: &Canceller) -> io::Result<Self> {
        let bell = Arc::new(EventBell(eventfd::new()?));
        let sleeper: Arc<dyn Wake> = bell.clone();
        let mut watch = Self {
            dir,
            inotify: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            watched: None,
            _registration: canceller.register(Arc::downgrade(&sleeper)),
            bell,
            canceller: canceller.clone(),
        };
        watch.look_for_directory();
        Ok(watch)
    }

    /// Waits for a change, at most for `timeout` (`None`: for ever).
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
            let mut fds = [&self.bell.0, &self.inotify].map(|fd| PollFd::new(fd, PollFlags::IN));
            if let Err(error) = poll(&mut fds, time.as_ref())
                && error != Errno::INTR
            {
                log::warn!("cannot wait for changes of {:?}: {error}", self.dir);
                return Watched::Cancelled;
            }
            // So that it does not ring again after the canceller was reset.
            eventfd::silence(&self.bell.0);
        }
    }

    /// Watches the directory that is at the path now. `true`: it is not the one that was there before.
    fn look_for_directory(&mut self) -> bool {
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        // It returns the number that it returned before if that directory is watched already.
        let now = add_watch(&self.inotify, &self.dir, flags | WatchFlags::ONLYDIR).ok();
        now != std::mem::replace(&mut self.watched, now)
    }

    /// Whether there were any.
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

/// An eventfd that a canceller rings.
struct EventBell(OwnedFd);

impl Wake for EventBell {
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
    fn files_that_come_and_go() {
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
    fn a_directory_that_comes_late_and_one_that_is_another() {
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
    fn calling_it_off() {
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
