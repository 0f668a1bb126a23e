// SPDX-License-Identifier: MPL-2.0

//! The pools of a channel: that of its maker has the channel's name, and the others one that ends in their number.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use xmem_core::Producer;

/// What a process that joined asks for, with its number: that its messages are taken.
pub(super) const HELLO: &str = "xmem:channel";

/// The maker's answer, to the pool of who joined: that it takes its messages, ...
pub(super) const TAKEN: &str = "xmem:channel:taken";
/// ... or why it does not.
pub(super) const REFUSED: &str = "xmem:channel:refused";

/// The number of whoever made the channel.
pub(super) const MAKER: u64 = 0;

const DIGITS: usize = 16;

/// A number that no other process of the channel has. Never 0.
///
/// From the kernel and not from anything that is kept here, as forked children inherit that.
pub(super) fn new_id() -> io::Result<u64> {
    loop {
        let mut bytes = [0; size_of::<u64>()];
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            // So few bytes come at once or not at all.
            Ok(len) if len == bytes.len() => match u64::from_ne_bytes(bytes) {
                MAKER => {}
                id => return Ok(id),
            },
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The socket of the pool of a process that joined the channel with this socket.
pub(super) fn socket_of(channel: &Path, id: u64) -> PathBuf {
    let mut path = channel.as_os_str().to_owned();
    path.push(format!(".{id:0DIGITS$x}"));
    path.into()
}

/// The number that another process says it has.
pub(super) fn parse_id(data: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(data.try_into().ok()?)).filter(|id| *id != MAKER)
}

/// Removes what a process that was killed left, if anything. Nothing that is in use.
pub(super) fn clean_up(socket: &Path) {
    if socket.exists()
        && let Some(path) = socket.to_str()
    {
        // Who becomes the producer of a pool replaces what its last one left, and takes it along at its end.
        drop(Producer::builder(path).build());
    }
}

/// The same for all processes that ever joined a channel, before it is made again.
pub(super) fn clean_up_all(channel: &Path) {
    let (Some(dir), Some(name)) = (channel.parent(), channel.file_name()) else {
        return;
    };
    let name = name.to_string_lossy();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let file = file.to_string_lossy();
        let number = file
            .strip_prefix(&*name)
            .and_then(|rest| rest.strip_prefix('.'));
        if number.is_some_and(|n| n.len() == DIGITS && n.bytes().all(|b| b.is_ascii_hexdigit())) {
            clean_up(&entry.path());
        }
    }
}
