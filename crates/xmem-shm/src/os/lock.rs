// SPDX-License-Identifier: MPL-2.0

//! A lock file: one process at a time holds the lock. The kernel frees it when that process ends.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, open, statat,
    unlink,
};
use rustix::io::{Errno, retry_on_intr};

use super::cred::own_uid;
use super::fork::KeptFromChildren;
use super::memfd::check_file_size;
use crate::fault::{self, Point};
use crate::printable::printable;

/// The maximum length of the text in a lock file, which ends with [`HOLDER_END`].
const MAX_HOLDER: u64 = 256;
const HOLDER_END: &str = ")";

/// The number of attempts and the pause between them, before a lock counts as held.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(5);

/// A held lock file. Dropping it removes the file.
#[derive(Debug)]
pub struct LockFile {
    _kept: KeptFromChildren,
    /// The lock is held while this is open.
    file: File,
    path: PathBuf,
}

/// The lock was not acquired.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it. The text is from the file.
    Held(String),
    /// The path has a file that no producer made.
    NotALock,
    /// The file belongs to this user.
    Foreign(u32),
    /// A system call failed.
    Io(io::Error),
}

impl LockFile {
    /// Takes the lock, and writes `holder` into the file.
    pub fn acquire(path: &Path, holder: &str) -> Result<Self, LockError> {
        check_file_size(holder.len()).map_err(LockError::Io)?;
        let mut tries = 0;
        loop {
            let Some((mut file, is_new)) = open_or_make(path)? else {
                continue;
            };
            let stat = fstat(&file).map_err(|error| LockError::Io(error.into()))?;
            // A file with several names was not created as a lock file.
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink > 1 {
                return Err(LockError::NotALock);
            }
            fault::point(Point::LockOpened);
            match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => {}
                // A killed holder may still be ending, or a child that it was forking may still hold the lock.
                Err(Errno::WOULDBLOCK) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    let _ = file.take(MAX_HOLDER).read_to_string(&mut text);
                    return Err(LockError::Held(printable(&text)));
                }
                Err(error) => return Err(LockError::Io(error.into())),
            }
            fault::point(Point::LockTaken);
            // On file systems without owners, a new file may show another user.
            if !is_new && stat.st_uid != own_uid() {
                return Err(LockError::Foreign(stat.st_uid));
            }
            // The previous holder may have removed the file after this process opened it. Then this process has locked a file
            // that no other process can find, and must start again.
            if !is_at(&file, path).map_err(LockError::Io)? {
                continue;
            }
            // The file may belong to another program.
            let mut text = String::new();
            let read = (&mut file).take(MAX_HOLDER + 1).read_to_string(&mut text);
            if read.is_err()
                || !(text.is_empty()
                    || text.len() as u64 <= MAX_HOLDER && text.ends_with(HOLDER_END))
            {
                return Err(LockError::NotALock);
            }
            let mut lock = Self {
                _kept: KeptFromChildren::new(&file),
                file,
                path: path.to_owned(),
            };
            // If there is no room for the name, the lock is not taken: dropping `lock` removes the file.
            let file = &mut lock.file;
            file.set_len(0)
                .inspect(|()| fault::point(Point::LockEmptied))
                .and_then(|()| file.rewind())
                .and_then(|()| file.write_all(holder.as_bytes()))
                .map_err(LockError::Io)?;
            fault::point(Point::LockWritten);
            return Ok(lock);
        }
    }
}

/// Opens a lock file, or creates one (`true`). `None`: it was created or removed meanwhile.
fn open_or_make(path: &Path) -> Result<Option<(File, bool)>, LockError> {
    // NONBLOCK: an open of a FIFO would wait for a writer.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let make = flags | OFlags::CREATE | OFlags::EXCL;
    match open(path, make, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => {
            // A umask could keep its owner from opening it again. Fails on file systems without permissions.
            let _ = fchmod(&fd, Mode::RUSR | Mode::WUSR);
            return Ok(Some((fd.into(), true)));
        }
        Err(Errno::EXIST) => {}
        Err(error) => return Err(LockError::Io(error.into())),
    }
    match open(path, flags, Mode::empty()) {
        Ok(fd) => Ok(Some((fd.into(), false))),
        Err(Errno::NOENT) => Ok(None),
        // A link, a directory or a socket.
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => Err(LockError::NotALock),
        Err(error) => Err(match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if error == Errno::ACCESS && stat.st_uid != own_uid() => {
                LockError::Foreign(stat.st_uid)
            }
            _ => LockError::Io(error.into()),
        }),
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
        // Removed while it is locked, and compared after locking (see `acquire`), so there are never two holders.
        if is_at(&self.file, &self.path).unwrap_or(false) {
            let _ = unlink(&self.path);
            fault::point(Point::LockRemoved);
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
        match LockFile::acquire(&path, "the second (2)") {
            Err(LockError::Held(holder)) => assert_eq!(holder, "the first (1)"),
            other => panic!("{other:?}"),
        }
        drop(lock);
        assert!(!path.exists());
        LockFile::acquire(&path, "the second (2)").unwrap();
    }

    #[test]
    fn a_file_that_is_no_lock_is_left_unchanged() {
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
    fn only_one_of_many_threads_holds_the_lock() {
        use crate::sync::{AtomicU32, Ordering};
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
