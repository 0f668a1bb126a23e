// SPDX-License-Identifier: MPL-2.0

//! The names of the pools that the processes of a buffer pool write.

use super::number::MAX_WRITERS;
use crate::rendezvous::socket_path;

/// The name of the pool with the buffers of one process.
pub(super) fn pool_of(name: &str, writer: u8) -> String {
    format!("{name}.b{writer:02x}")
}

/// The reverse of [`pool_of`].
pub(super) fn name_of(pool: &str) -> Option<&str> {
    let (name, writer) = pool.rsplit_once(".b")?;
    let number = u8::from_str_radix(writer, 16).ok()?;
    (number < MAX_WRITERS && pool_of(name, number) == pool).then_some(name)
}

/// The pools of a buffer pool's processes.
pub(super) fn pools_of(name: &str) -> Vec<String> {
    let pools = (0..MAX_WRITERS).map(|writer| pool_of(name, writer));
    pools.filter(|pool| has_socket(pool)).collect()
}

/// Whether the pool of a process has a socket. The process may have been killed.
pub(super) fn has_socket(pool: &str) -> bool {
    socket_path(pool).is_ok_and(|path| path.exists())
}
