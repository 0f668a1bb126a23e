// SPDX-License-Identifier: MPL-2.0

//! The names of a channel's pools. The maker's pool has the channel's name, and the names of the others end with their number.

use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};
use xmem_core::discovery::remove_stale;

/// The request of a process that joins, with its number: the maker shall receive its messages.
pub(super) const HELLO: &str = "xmem:channel";

/// The maker's answer to that pool: it receives the messages.
pub(super) const TAKEN: &str = "xmem:channel:taken";
/// The maker's answer with the reason why it does not.
pub(super) const REFUSED: &str = "xmem:channel:refused";

/// The number of the maker.
pub(super) const MAKER: u64 = 0;

const DIGITS: usize = 16;

/// A random number that no other process of the channel has. Never 0. It is from the kernel, because forked children inherit
/// all other random states.
pub(super) fn new_id() -> u64 {
    let mut bytes = [0; 8];
    loop {
        let _ = getrandom(&mut bytes, GetRandomFlags::empty());
        match u64::from_ne_bytes(bytes) {
            MAKER => {}
            id => return id,
        }
    }
}

/// The socket of the pool of a process that joined the channel.
pub(super) fn socket_of(channel: &Path, id: u64) -> PathBuf {
    let mut path = channel.as_os_str().to_owned();
    path.push(format!(".{id:0DIGITS$x}"));
    path.into()
}

/// The number in a request.
pub(super) fn parse_id(data: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(data.try_into().ok()?)).filter(|id| *id != MAKER)
}

/// Removes the files of all killed processes of a channel, before the channel is made again.
pub(super) fn clean_up(channel: &Path) {
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
            // A running process joins again.
            let _ = remove_stale(entry.path());
        }
    }
}
