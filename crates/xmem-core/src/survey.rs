// SPDX-License-Identifier: MPL-2.0

//! What several pools say of themselves.

use std::ffi::OsStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::consumer::query;
use crate::error::QueryError;
use crate::stats::PoolStats;

/// Threads that ask at the same time. Most pools answer at once, so more would only be made to end again.
const MAX_ASKING: usize = 64;

/// Asks pools for their figures, as [`query`] does, but all at the same time: those whose process is stopped take one second
/// in all, and not one each (two from 65 pools on, and so forth). The answers are in the order of the pools.
///
/// ```
/// let answers = xmem_core::query_all(&["cam0", "no/such/pool"]);
/// assert!(answers[1].is_err());
/// ```
pub fn query_all<P: AsRef<OsStr> + Sync>(pools: &[P]) -> Vec<Result<PoolStats, QueryError>> {
    let answers: Vec<OnceLock<_>> = pools.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let ask = || {
        // Only hands out numbers; what is written goes by the locks, and the end of the scope.
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(pool) = pools.get(at)
        {
            let _ = answers[at].set(query(pool));
        }
    };
    thread::scope(|scope| {
        for _ in 1..pools.len().min(MAX_ASKING) {
            let thread = thread::Builder::new().name("xmem-query".into());
            if thread.spawn_scoped(scope, ask).is_err() {
                // Fewer ask, and at last this one alone.
                break;
            }
        }
        ask();
    });
    answers
        .into_iter()
        .map(|answer| answer.into_inner().expect("each was asked"))
        .collect()
}
