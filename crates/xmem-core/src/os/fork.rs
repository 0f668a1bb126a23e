// SPDX-License-Identifier: MPL-2.0

//! Which process is this? Answered without a system call.
//!
//! One page that the kernel wipes in a forked child holds a number. A handle keeps the number it was made under; in
//! a child the page reads 0, so the handle knows that it was inherited.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mapping::Private;

/// A process, as a number that a forked child does not share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessId(u64);

static PAGE: OnceLock<Option<Private>> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

fn word() -> Option<&'static AtomicU64> {
    PAGE.get_or_init(|| Private::wiped_on_fork(8).ok())
        .as_ref()
        .and_then(|page| page.words64(1).first())
}

impl ProcessId {
    /// This process.
    pub(crate) fn current() -> Self {
        let Some(word) = word() else {
            // Without the page (kernels before 4.14) forks go unnoticed.
            return Self(0);
        };
        match word.load(Ordering::Relaxed) {
            0 => {
                // The counter is inherited, so a child continues where its parent was: no number comes twice.
                let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
                match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => Self(fresh),
                    Err(other) => Self(other),
                }
            }
            number => Self(number),
        }
    }

    /// Whether this is still the process.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}
