// SPDX-License-Identifier: MPL-2.0

//! The names of clips, and the limit of what they take.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::clip::part;
use crate::Error;

/// Stands for the time in a name.
const TIME: &[u8] = b"%t";
/// A time in a name, such as `20270131T235959.999Z`: names in their order are clips in their order.
const SHAPE: &[u8] = b"00000000T000000.000Z";

/// One name, or a name for each time.
#[derive(Debug)]
pub(super) struct Names {
    folder: PathBuf,
    before: Vec<u8>,
    /// `None`: one name.
    after: Option<Vec<u8>>,
}

impl Names {
    /// Fails if a clip could not be written later.
    pub(super) fn of(file: &Path) -> Result<Self, Error> {
        let name = file.file_name().unwrap_or_default().as_bytes();
        let time = name.windows(2).position(|it| it == TIME);
        let (before, after) = match time {
            Some(at) => (&name[..at], Some(name[at + 2..].to_vec())),
            None => (name, None),
        };
        let names = Self {
            folder: match file.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
                _ => ".".into(),
            },
            before: before.to_vec(),
            after,
        };
        let folder = names.folder.display();
        if !names.folder.is_dir() {
            return Err(format!("there is no folder {folder}: create it").into());
        }
        rustix::fs::access(&names.folder, rustix::fs::Access::WRITE_OK)
            .map_err(|error| format!("cannot write to {folder}: {error}"))?;
        if !names.are_many() {
            let (name, part) = (file.display(), part(file));
            if fs::symlink_metadata(file).is_ok() {
                return Err(format!("{name} exists: remove it, or choose another name").into());
            }
            if fs::symlink_metadata(&part).is_ok() {
                let part = part.display();
                return Err(format!(
                    "{part} exists: another command is writing it, or was killed while writing. If none is running, rename the \
                     file, which can be played"
                )
                .into());
            }
        }
        Ok(names)
    }

    /// Whether there is a name for each clip.
    pub(super) fn are_many(&self) -> bool {
        self.after.is_some()
    }

    /// The name of a clip that is told to begin at this time.
    pub(super) fn at(&self, time: SystemTime) -> PathBuf {
        let mut name = self.before.clone();
        if let Some(after) = &self.after {
            let time = humantime::format_rfc3339_millis(time).to_string();
            name.extend(time.bytes().filter(|byte| !b"-:".contains(byte)));
            name.extend(after);
        }
        self.folder.join(std::ffi::OsString::from_vec(name))
    }

    /// Removes the oldest clips until the rest fits into `bytes`, but not the newest clip. Parts of killed commands are clips too.
    /// Returns the names of what was removed.
    pub(super) fn make_room(&self, bytes: u64) -> Result<Vec<PathBuf>, Error> {
        let mut clips = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if self.is_clip(&entry.file_name()) {
                // Another command may have removed it.
                clips.extend(entry.metadata().map(|it| (entry.path(), it.len())));
            }
        }
        clips.sort();
        clips.reverse();
        let (mut total, mut removed) = (0, Vec::new());
        for (index, (path, size)) in clips.into_iter().enumerate() {
            total += size;
            if index > 0 && total > bytes && !is_being_written(&path) {
                fs::remove_file(&path)
                    .map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
                removed.push(path);
            }
        }
        Ok(removed)
    }

    /// Whether a file has a name of these.
    fn is_clip(&self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        let name = name.strip_suffix(b".part").unwrap_or(name);
        let time = name.strip_prefix(&*self.before).and_then(|name| {
            let after = self.after.as_deref()?;
            name.strip_suffix(after)
        });
        let is_like = |(byte, shape): (&u8, &u8)| match shape {
            b'0' => byte.is_ascii_digit(),
            shape => byte == shape,
        };
        time.is_some_and(|it| it.len() == SHAPE.len() && it.iter().zip(SHAPE).all(is_like))
    }
}

fn is_being_written(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("part"))
        && File::open(path).is_ok_and(|file| file.try_lock().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn only_clips_are_removed_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::of(&dir.path().join("a-%t.mkv")).unwrap();
        let clips =
            [0, 1, 2, 3].map(|day| names.at(UNIX_EPOCH + Duration::from_secs(day * 86_400)));
        assert!(clips[1].ends_with("a-19700102T000000.000Z.mkv"));
        let others = [
            "a-1.mkv",
            "b-19700102T000000.000Z.mkv",
            "a-19700102T000000.000Z.mp4",
        ];
        let others = others.map(|name| dir.path().join(name));
        let killed = part(&clips[0]);
        let written = part(&clips[1]);
        for path in others
            .iter()
            .chain([&killed, &written, &clips[2], &clips[3]])
        {
            fs::write(path, [0; 10]).unwrap();
        }
        let lock = File::open(&written).unwrap();
        lock.lock().unwrap();
        assert_eq!(names.make_room(40).unwrap(), [] as [PathBuf; 0]);
        assert_eq!(names.make_room(30).unwrap(), [killed]);
        // The newest clip and the one that is being written stay.
        assert_eq!(names.make_room(5).unwrap(), [clips[2].clone()]);
        assert!(
            others
                .iter()
                .chain([&written, &clips[3]])
                .all(|path| path.exists())
        );
    }
}
