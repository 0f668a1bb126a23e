// SPDX-License-Identifier: MPL-2.0

//! Bytes of any length in one sealed descriptor. They cannot change.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use crate::fault::{self, Point};
use crate::os::memfd::{self, Seal};

/// Writes bytes to a sealed descriptor.
pub fn write(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    // An empty file cannot be reserved. The length is stored first, so the file is never empty.
    let fd = memfd::create(name, bytes.len() + 8)?;
    let mut file = File::from(fd);
    file.write_all(&(bytes.len() as u64).to_le_bytes())?;
    file.write_all(bytes)?;
    fault::point(Point::SealedFilled);
    let fd = OwnedFd::from(file);
    memfd::seal(&fd, Seal::Everything)?;
    Ok(fd)
}

/// Reads the bytes that `write` wrote, at most `max` of them.
pub fn read(fd: OwnedFd, max: usize) -> io::Result<Vec<u8>> {
    let len = memfd::sealed_len(&fd, Seal::Size)
        .map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))?;
    let file = File::from(fd);
    let mut size = [0; 8];
    // By position, because all processes with the descriptor share its offset.
    file.read_exact_at(&mut size, 0)?;
    let size = u64::from_le_bytes(size);
    if size > len as u64 || size > max as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 8)?;
    Ok(bytes)
}
