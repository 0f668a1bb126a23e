// SPDX-License-Identifier: MPL-2.0

//! A lock file: who holds it is the one; when its holder dies, however that is, it is free.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, open, statat, unlink};
use rustix::io::{Errno, retry_on_intr};

use super::fork::KeptFromChildren;

/// What is written into a lock file is no longer than this, and ends so.
const MAX_HOLDER: u64 = 256;
pub(crate) const HOLDER_END: &str = ")";

/// How often to try again, and how long to wait in between, before a lock counts as held.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(5);

/// A lock file that is held. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct LockFile {
    _kept: KeptFromChildren,
    /// Held as long as this is open.
    file: File,
    path: PathBuf,
}

/// The lock could not be had.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Somebody holds it, and wrote this into it.
    Held(String),
    /// A file that no producer made stands in its place.
    NotALock,
    Io(io::Error),
}

impl LockFile {
    /// Takes the lock, and writes into the file who has it.
    pub(crate) fn acquire(path: &Path, holder: &str) -> Result<Self, LockError> {
        let mut tries = 0;
        loop {
            let fd = open(
                path,
                OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                Mode::RUSR | Mode::WUSR,
            )
            .map_err(|e| LockError::Io(e.into()))?;
            let mut file = File::from(fd);
            match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => {}
                // Somebody may just be looking whether it is held (`is_held`).
                Err(Errno::WOULDBLOCK) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    let _ = file.take(MAX_HOLDER).read_to_string(&mut text);
                    return Err(LockError::Held(text.trim().to_owned()));
                }
                Err(error) => return Err(LockError::Io(error.into())),
            }
            // The holder before us may have removed the file between our open and our lock. Then we locked a file
            // that nobody else can find, and have to start over.
            if !is_at(&file, path).map_err(LockError::Io)? {
                continue;
            }
            // A file of that name need not be ours.
            let mut text = String::new();
            let read = (&mut file).take(MAX_HOLDER + 1).read_to_string(&mut text);
            if read.is_err()
                || !(text.is_empty()
                    || text.len() as u64 <= MAX_HOLDER && text.ends_with(HOLDER_END))
            {
                return Err(LockError::NotALock);
            }
            file.set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| file.write_all(holder.as_bytes()))
                .map_err(LockError::Io)?;
            return Ok(Self {
                _kept: KeptFromChildren::new(&file),
                file,
                path: path.to_owned(),
            });
        }
    }

    /// Whether somebody holds the lock at this path now.
    pub(crate) fn is_held(path: &Path) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            // Another user's: a lock file exists only while it is in use, or after a kill.
            Err(error) => return error == Errno::ACCESS,
        };
        // A shared lock, so that two who look at the same time do not take each other for the holder.
        flock(&fd, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = fstat(file)?;
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Removed while it is locked, and compared after locking (see `acquire`): so two holders never coexist.
        if is_at(&self.file, &self.path).unwrap_or(false) {
            let _ = unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.lock");
        let lock = LockFile::acquire(&path, "the first (1)").unwrap();
        assert!(LockFile::is_held(&path));
        match LockFile::acquire(&path, "the second (2)") {
            Err(LockError::Held(holder)) => assert_eq!(holder, "the first (1)"),
            other => panic!("{other:?}"),
        }
        drop(lock);
        assert!(!path.exists());
        assert!(!LockFile::is_held(&path));
        LockFile::acquire(&path, "the second (2)").unwrap();
    }

    #[test]
    fn somebody_elses_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.lock");
        for content in ["a letter to my mother", "\0", &"x)".repeat(200)] {
            std::fs::write(&path, content).unwrap();
            assert!(matches!(
                LockFile::acquire(&path, "(me)"),
                Err(LockError::NotALock)
            ));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }

    #[test]
    fn many_threads_never_hold_it_together() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.lock");
        let holders = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        if let Ok(lock) = LockFile::acquire(&path, "(me)") {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                    }
                });
            }
        });
    }
}
