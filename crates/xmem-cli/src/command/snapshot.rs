// SPDX-License-Identifier: MPL-2.0

//! `xmem snapshot POOL FILE`

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Error;
use crate::caps::Caps;
use crate::child;
use crate::cli::Snapshot;
use crate::launch::{
    TO_JPEG, TOOL, check_decodable, decoder, failure_to_write, not_started, parameter_sets,
    pipeline, video_pool,
};

/// File formats, by their extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Png,
    Jpeg,
    /// A NumPy array with the dimensions rows, columns and RGB channels.
    Npy,
    /// The frame in the pool's own format.
    Raw,
}

impl Kind {
    fn of(file: &Path) -> Result<Self, Error> {
        let extension = file.extension().unwrap_or_default().to_ascii_lowercase();
        match extension.to_str() {
            Some("png") => Ok(Self::Png),
            Some("jpg" | "jpeg") => Ok(Self::Jpeg),
            Some("npy") => Ok(Self::Npy),
            Some("raw") => Ok(Self::Raw),
            _ => Err(format!(
                "{}: use a name that ends in .png, .jpg, .npy or .raw",
                file.display()
            )
            .into()),
        }
    }

    /// The elements that convert a stream to this format, without the sink.
    fn elements(self, caps: &Caps) -> String {
        let decode = decoder(caps.is_raw());
        match self {
            Self::Png => format!("{decode}videoconvert ! pngenc snapshot=true"),
            Self::Jpeg => format!("{decode}{TO_JPEG} snapshot=true"),
            // The end of the stream replaces the second frame.
            Self::Npy => {
                format!("{decode}videoconvert ! video/x-raw,format=RGB ! identity eos-after=2")
            }
            Self::Raw => "identity".to_owned(),
        }
    }
}

pub(crate) fn run(snapshot: &Snapshot, out: &mut impl Write) -> Result<(), Error> {
    let (pool, file, timeout) = (&snapshot.pool, &*snapshot.file, snapshot.timeout);
    let kind = Kind::of(file)?;
    let caps = video_pool(pool, Some(timeout))?;
    if kind != Kind::Raw {
        check_decodable(&caps)?;
    }
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    let no_folder = |error| format!("cannot write to {}: {error}", dir.display());
    let no_file = |error| format!("cannot write {}: {error}", file.display());
    // Has no name, so nothing remains if this process ends while it waits.
    let mut frame = tempfile::tempfile_in(dir).map_err(no_folder)?;
    // A descriptor that the tool inherits.
    let inherited = rustix::io::dup(&frame)?;
    let start = if snapshot.newest { "newest" } else { "next" };
    let mut source = vec![
        format!("start-from={start}"),
        format!("connection-timeout={}", timeout.as_nanos()),
    ];
    // A decoder may need more frames. Without one, the pool may have only one, such as during a pause.
    if caps.is_raw() || kind == Kind::Raw {
        source.push("num-buffers=1".to_owned());
    }
    let rest = format!(
        "{} ! fdsink fd={}",
        kind.elements(&caps),
        inherited.as_raw_fd()
    );
    let command = pipeline(child::dependent(TOOL), pool, &source, &rest);
    wait(command, timeout, file, &caps)?;
    frame.rewind()?;
    let mut bytes = Vec::new();
    frame.read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Err("the stream ended before a frame came".into());
    }
    if kind == Kind::Npy {
        bytes = to_npy(&bytes, &caps).map_err(|error| no_file(io::Error::other(error)))?;
    }
    // Replaces the file only when it is complete.
    let mut unfinished = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o666)) // less the umask
        .tempfile_in(dir)
        .map_err(no_folder)?;
    unfinished.write_all(&bytes).map_err(no_file)?;
    unfinished
        .persist(file)
        .map_err(|error| no_file(error.error))?;
    writeln!(out, "{}: {}", file.display(), caps.summary())?;
    Ok(())
}

/// Runs the pipeline until it ends.
fn wait(mut command: Command, timeout: Duration, file: &Path, caps: &Caps) -> Result<(), Error> {
    let ended = child::run(&mut command, timeout).map_err(not_started)?;
    match ended {
        Some(ended) if ended.status.success() => Ok(()),
        Some(ended) => Err(failure_to_write(file.display(), &ended.stderr)),
        None => Err(format!("no picture within {timeout:?}{}", parameter_sets(caps)).into()),
    }
}

/// Adds the header of a NumPy file, and removes GStreamer's padding of rows to four bytes.
fn to_npy(bytes: &[u8], caps: &Caps) -> Result<Vec<u8>, &'static str> {
    let (width, height) = caps.size().ok_or("the caps have no width and height")?;
    // The size comes from another process.
    let row = width.checked_mul(3).filter(|row| *row > 0);
    let stride = row.and_then(|row| row.checked_next_multiple_of(4));
    let len = stride.and_then(|stride| stride.checked_mul(height));
    let (Some(row), Some(stride), true) = (row, stride, len == Some(bytes.len())) else {
        return Err("the frame has another size than its caps");
    };
    let head =
        format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({height}, {width}, 3), }}");
    // The array begins at a multiple of 64 bytes.
    let len = (10 + head.len() + 1).next_multiple_of(64) - 10;
    let mut array = b"\x93NUMPY\x01\x00".to_vec();
    array.extend((len as u16).to_le_bytes());
    array.extend(format!("{head:<0$}\n", len - 1).bytes());
    for line in bytes.chunks(stride).take(height) {
        array.extend(&line[..row]);
    }
    Ok(array)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmem_core::PoolStats;

    /// The caps come from another process.
    #[test]
    fn an_array_has_the_size_of_its_frame() {
        let array = |width: u64, height: u64, len: usize| {
            let mut stats = PoolStats::default();
            let caps = format!("video/x-raw, width=(int){width}, height=(int){height}");
            stats.sticky = vec![("caps".into(), caps)];
            to_npy(&vec![7; len], &Caps::of(&stats).unwrap()).map(|array| array.len())
        };
        assert_eq!(array(2, 3, 8 * 3), Ok(128 + 6 * 3));
        for (width, height, len) in [
            (2, 3, 8 * 3 - 1),
            (2, 2, 8 * 3),
            (0, 3, 0),
            (6_148_914_691_236_517_205, 1, 4),
            (1, 1 << 62, 4),
            (u64::MAX, u64::MAX, 4),
        ] {
            assert!(array(width, height, len).is_err(), "{width}x{height}");
        }
    }
}
