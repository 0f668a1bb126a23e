// SPDX-License-Identifier: MPL-2.0

//! The figures of several pools.

use std::ffi::OsStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::consumer::query;
use crate::error::QueryError;
use crate::stats::PoolStats;

/// Threads that ask at the same time. Most pools answer at once, so more threads would end unused.
const MAX_ASKING: usize = 64;

/// Asks pools for their figures, as [`query`] does, but all at the same time: pools whose process is stopped take one
/// second in all, instead of one each (two from 65 pools on, and so on). The answers are in the order of the pools.
///
/// ```
/// let answers = xmem_core::query_all(&["cam0", "no/such/pool"]);
/// assert!(answers[1].is_err());
/// ```
pub fn query_all<P: AsRef<OsStr> + Sync>(pools: &[P]) -> Vec<Result<PoolStats, QueryError>> {
    let answers: Vec<_> = pools.iter().map(|pool| (pool, OnceLock::new())).collect();
    let next = AtomicUsize::new(0);
    let ask = || {
        // Relaxed: it only hands out numbers. The answers are ordered by their locks and the end of the scope.
        while let Some((pool, answer)) = answers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let _ = answer.set(query(pool));
        }
    };
    thread::scope(|scope| {
        for _ in 1..pools.len().min(MAX_ASKING) {
            let thread = thread::Builder::new().name("xmem-query".into());
            if thread.spawn_scoped(scope, ask).is_err() {
                // Fewer threads ask, in the end this one alone.
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
