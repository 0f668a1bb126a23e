// SPDX-License-Identifier: MPL-2.0

//! Resources that a forked child must not inherit: handles, and descriptors that show that the parent is alive.
#![allow(unsafe_code)] // pthread_atfork, and replacing descriptors in the child

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicI32;

use crate::sync::{AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};

/// Identifies a process by a number that a forked child does not share. Comparing needs no system call if the kernel supports
/// MADV_WIPEONFORK.
///
/// The number is in a page that the kernel clears in a forked child. A handle stores the number of the process that made it. In
/// a child the page is 0, which differs from the number in the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId(u64);

/// `None`: the kernel does not support such pages.
static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A word in memory that the kernel clears in a forked child. Never freed.
fn wiped_on_fork() -> io::Result<&'static AtomicU64> {
    let len = rustix::param::page_size();
    // SAFETY: a new anonymous mapping overlaps nothing.
    let page = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    // SAFETY: the range is this mapping. The kernel clears it only in children.
    unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }?;
    // SAFETY: the mapping is page-aligned, larger than the word, and never unmapped; every bit pattern is an AtomicU64.
    Ok(unsafe { &*page.cast::<AtomicU64>() })
}

impl ProcessId {
    /// This process.
    #[inline]
    pub fn current() -> Self {
        let Some(word) = *PAGE.get_or_init(|| wiped_on_fork().ok()) else {
            // Without the page (kernels before 4.14) this needs a system call, and numbers can be reused.
            return Self(std::process::id().into());
        };
        match word.load(Ordering::Relaxed) {
            0 => {
                // A child inherits the counter and continues after its parent, so no number is used twice.
                let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
                match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => Self(fresh),
                    Err(other) => Self(other),
                }
            }
            number => Self(number),
        }
    }

    /// Whether this is the present process.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

const NONE: i32 = -1;
/// Descriptors that children must not inherit. If the list is full, further ones are inherited.
static DESCRIPTORS: [AtomicI32; 4096] = [const { AtomicI32::new(NONE) }; 4096];
/// `/dev/null`, which replaces them in a child. The numbers stay in use, because handles in the child will close them.
static DEV_NULL: AtomicI32 = AtomicI32::new(NONE);

/// Keeps a descriptor from forked children while this exists. A lock, a listener or a connection that a child inherits would
/// stay open after its process has ended, and the pool would appear to be live.
#[derive(Debug)]
pub struct KeptFromChildren {
    number: RawFd,
    place: Option<&'static AtomicI32>,
}

impl KeptFromChildren {
    /// Drop it before the descriptor is closed.
    pub fn new(fd: impl AsFd) -> Self {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let works = *REGISTERED.get_or_init(|| {
            let Ok(null) = std::fs::File::open("/dev/null") else {
                return false;
            };
            DEV_NULL.store(std::os::fd::IntoRawFd::into_raw_fd(null), Ordering::Release);
            // SAFETY: the handler only uses operations that are allowed in a forked child of a multi-threaded process.
            unsafe { libc::pthread_atfork(None, None, Some(replace_in_child)) == 0 }
        });
        let number: RawFd = fd.as_fd().as_raw_fd();
        let place = DESCRIPTORS.iter().filter(|_| works).find(|place| {
            place
                .compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        Self { number, place }
    }
}

impl Drop for KeptFromChildren {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            // In a child that inherited this, the place may belong to another descriptor with another number.
            let _ = place.compare_exchange(self.number, NONE, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Runs in the child, immediately after the fork.
extern "C" fn replace_in_child() {
    let null = DEV_NULL.load(Ordering::Acquire);
    for place in &DESCRIPTORS {
        let number = place.swap(NONE, Ordering::AcqRel);
        if number != NONE {
            // SAFETY: dup3 may be called here. The descriptor was open when the process forked, because it is removed from the
            // list before it is closed. The handles that own the number close /dev/null instead.
            unsafe { libc::dup3(null, number, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::is_so_in_a_child;

    #[test]
    fn a_fork_is_detected_without_the_page() {
        // Only in a process of its own, unless another test ran first. With the page, the fork must be detected too.
        let _ = PAGE.set(None);
        let here = ProcessId::current();
        assert!(here.is_current());
        assert!(is_so_in_a_child(|| !here.is_current()));
        assert!(here.is_current());
    }
}
