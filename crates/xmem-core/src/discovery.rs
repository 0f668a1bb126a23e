// SPDX-License-Identifier: MPL-2.0

//! Which pools there are on this host, where their files are, and how they do.

pub use crate::consumer::query;
pub use crate::producer::remove_stale;
pub use crate::region::remove_stale_segments;
pub use crate::rendezvous::{
    PoolEntry, check_runtime_dir, other_runtime_dirs, other_runtime_dirs_with, pools,
    pools_in_words, prepare_socket_dir, read_locks, read_pools, runtime_dir, socket_path,
};
pub use crate::survey::query_all;
pub use crate::watch::{PoolWatch, Watched};
pub use xmem_shm::printable::printable;
