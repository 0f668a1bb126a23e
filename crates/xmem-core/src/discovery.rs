// SPDX-License-Identifier: MPL-2.0

//! Which pools there are on this host, where their files are, and how they do.

use std::ffi::OsStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub use crate::consumer::query;
pub use crate::producer::remove_stale;
pub use crate::region::remove_stale_segments;
pub use crate::rendezvous::{
    PoolEntry, check_runtime_dir, other_runtime_dirs, other_runtime_dirs_with, pools,
    pools_in_words, prepare_socket_dir, read_locks, read_pools, runtime_dir, socket_path,
};
pub use crate::watch::{PoolWatch, Watched};
pub use xmem_shm::printable::printable;

use crate::error::ConnectError;
use crate::stats::PoolStats;

/// The maximum number of threads that query at the same time. Most pools answer at once, so more threads would have nothing to
/// do.
const MAX_ASKING: usize = 64;

/// Queries the figures of pools like [`query`], but all at the same time. Stopped pools together take one second instead of one
/// each (two seconds from 65 pools on, and so on). The answers are in the order of the pools.
///
/// ```
/// let answers = xmem_core::discovery::query_all(&["cam0", "no/such/pool"]);
/// assert!(answers[1].is_err());
/// ```
pub fn query_all<P: AsRef<OsStr> + Sync>(pools: &[P]) -> Vec<Result<PoolStats, ConnectError>> {
    let answers: Vec<_> = pools.iter().map(|pool| (pool, OnceLock::new())).collect();
    let next = AtomicUsize::new(0);
    let ask = || {
        // Relaxed: the counter only assigns indices. The locks of the answers and the end of the scope order the answers.
        while let Some((pool, answer)) = answers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let _ = answer.set(query(pool));
        }
    };
    thread::scope(|scope| {
        for _ in 1..pools.len().min(MAX_ASKING) {
            let thread = thread::Builder::new().name("xmem-query".into());
            if thread.spawn_scoped(scope, ask).is_err() {
                // Fewer threads query, at least this one.
                break;
            }
        }
        ask();
    });
    answers
        .into_iter()
        .map(|(pool, answer)| answer.into_inner().unwrap_or_else(|| query(pool)))
        .collect()
}
