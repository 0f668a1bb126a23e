// SPDX-License-Identifier: MPL-2.0

//! One clip: a Matroska file that has its name when it is complete.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::matroska::{self, Frame, Header, Positions};

/// A clip that is being written.
#[derive(Debug)]
pub(super) struct Clip {
    /// Locked, so that another run does not remove it as a part of a killed one.
    file: File,
    part: PathBuf,
    name: PathBuf,
    positions: Positions,
    /// The end of the last complete write.
    end: u64,
    /// The time of the first frame in the stream, and the time of the last one in the clip, in milliseconds.
    start: i64,
    length: i64,
    cluster: Option<Cluster>,
    /// The time and the position of each cluster that begins with a key frame.
    cues: Vec<(i64, u64)>,
}

#[derive(Debug)]
struct Cluster {
    time: i64,
    /// The position of its size.
    size: u64,
}

impl Clip {
    /// Creates the file with `.part` behind its name. `first` is a key frame.
    pub(super) fn create(name: &Path, header: &Header, first: &Frame) -> io::Result<Self> {
        let part = part(name);
        let file = File::create_new(&part)?;
        file.lock()?;
        let (bytes, positions) = header.begin();
        let mut clip = Self {
            file,
            part,
            name: name.to_owned(),
            positions,
            end: 0,
            start: first.time,
            length: 0,
            cluster: None,
            cues: Vec::new(),
        };
        if let Err(error) = clip.append(&bytes) {
            fs::remove_file(&clip.part)?;
            return Err(error);
        }
        Ok(clip)
    }

    /// Appends a frame. After an error, the clip has the frames before it.
    pub(super) fn write(&mut self, frame: &Frame) -> io::Result<()> {
        let time = frame.time - self.start;
        if time < 0 {
            // It refers to frames before the clip.
            return Ok(());
        }
        let offset = |cluster: &Cluster| i16::try_from(time - cluster.time).ok();
        let offset = match self.cluster.as_ref().and_then(offset) {
            Some(offset) if !frame.is_key => offset,
            _ => {
                self.begin_cluster(time, frame.is_key)?;
                0
            }
        };
        self.append(&matroska::block(frame, offset))?;
        self.length = self.length.max(time);
        Ok(())
    }

    fn begin_cluster(&mut self, time: i64, is_key: bool) -> io::Result<()> {
        self.end_cluster()?;
        let begin = self.end;
        let (bytes, size) = matroska::cluster(time);
        self.append(&bytes)?;
        if is_key {
            self.cues.push((time, self.positions.in_segment(begin)));
        }
        self.cluster = Some(Cluster {
            time,
            size: begin + size,
        });
        Ok(())
    }

    fn end_cluster(&mut self) -> io::Result<()> {
        if let Some(cluster) = self.cluster.take() {
            let size = matroska::sized(self.end - cluster.size - 8);
            self.file.write_all_at(&size, cluster.size)?;
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all_at(bytes, self.end);
        match written {
            Ok(()) => self.end += bytes.len() as u64,
            // A part of it may be there.
            Err(_) => self.file.set_len(self.end)?,
        }
        written
    }

    /// Completes the file and gives it its name. Returns the length of the clip in seconds.
    pub(super) fn finish(mut self) -> io::Result<f64> {
        self.end_cluster()?;
        let cues = self.end;
        // Without room for the index, players search.
        let has_cues = self.append(&matroska::cues(&self.cues)).is_ok();
        let cues = has_cues.then_some(cues);
        for (position, bytes) in self.positions.complete(self.end, self.length, cues) {
            self.file.write_all_at(&bytes, position)?;
        }
        // After a power cut, the name would otherwise lead to a file with holes.
        self.file.sync_data()?;
        rename(&self.part, &self.name)?;
        Ok(self.length as f64 / 1000.0)
    }
}

/// The name of a clip that is not complete.
pub(super) fn part(name: &Path) -> PathBuf {
    let mut part = name.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

/// Replaces no file, except on file systems that can only rename so.
fn rename(part: &Path, name: &Path) -> io::Result<()> {
    match renameat_with(CWD, part, CWD, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) if !name.exists() => fs::rename(part, name),
        Err(Errno::EXIST) => Err(ErrorKind::AlreadyExists.into()),
        renamed => Ok(renamed?),
    }
}
