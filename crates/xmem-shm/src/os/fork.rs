// SPDX-License-Identifier: MPL-2.0

//! Resources that a forked child must not inherit: handles, and the descriptors that stand for its parent's life.
#![allow(unsafe_code)] // pthread_atfork, and replacing descriptors in the child

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicI32;

use crate::sync::{AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};

/// A process, as a number that a forked child does not share. Compared without a system call where the kernel has the means.
///
/// One page that the kernel wipes in a forked child holds the number. A handle keeps the number it was made under; in a
/// child the page reads 0, which differs from the handle's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId(u64);

/// `None`: the kernel has no such pages.
static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A word in memory that a forked child finds wiped. Never given back.
fn wiped_on_fork() -> io::Result<&'static AtomicU64> {
    let len = rustix::param::page_size();
    // SAFETY: a fresh anonymous mapping overlaps nothing.
    let page = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    // SAFETY: the range is this mapping; the wipe happens in children only.
    unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }?;
    // SAFETY: the mapping is page-aligned, larger than the word, and never unmapped; every bit pattern is an AtomicU64.
    Ok(unsafe { &*page.cast::<AtomicU64>() })
}

impl ProcessId {
    /// This process.
    #[inline]
    pub fn current() -> Self {
        let Some(word) = *PAGE.get_or_init(|| wiped_on_fork().ok()) else {
            // Without the page (kernels before 4.14) it costs a system call, and numbers come again some day.
            return Self(std::process::id().into());
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
    #[inline]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

const NONE: i32 = -1;
/// Descriptors that children do not get. More than fit are inherited, as without this.
static DESCRIPTORS: [AtomicI32; 4096] = [const { AtomicI32::new(NONE) }; 4096];
/// `/dev/null`, which a child has in their place: the numbers stay taken, since handles in the child will close them.
static DEV_NULL: AtomicI32 = AtomicI32::new(NONE);

/// Keeps a descriptor from forked children, while it lives. A lock, a listener or a connection that a child inherits
/// would outlive its process, and the pool would seem alive.
#[derive(Debug)]
pub struct KeptFromChildren {
    number: RawFd,
    place: Option<&'static AtomicI32>,
}

impl KeptFromChildren {
    /// To be dropped before the descriptor is closed.
    pub fn new(fd: impl AsFd) -> Self {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let works = *REGISTERED.get_or_init(|| {
            let Ok(null) = std::fs::File::open("/dev/null") else {
                return false;
            };
            DEV_NULL.store(std::os::fd::IntoRawFd::into_raw_fd(null), Ordering::Release);
            // SAFETY: the handler does only operations allowed in a forked child of a process with threads.
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
            // In a child that inherited this, the place may belong to another descriptor, which has another number.
            let _ = place.compare_exchange(self.number, NONE, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Runs in the child, right after the fork.
extern "C" fn replace_in_child() {
    let null = DEV_NULL.load(Ordering::Acquire);
    for place in &DESCRIPTORS {
        let number = place.swap(NONE, Ordering::AcqRel);
        if number != NONE {
            // SAFETY: dup3 is safe to call here, and the descriptor was open when the process forked: it leaves
            // the list before it is closed. The handles that own the number close /dev/null instead.
            unsafe { libc::dup3(null, number, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::is_so_in_a_child;

    #[test]
    fn a_fork_is_noticed_without_the_page_too() {
        // Of a process of its own, unless another test was first: with the page it has to be noticed as well.
        let _ = PAGE.set(None);
        let here = ProcessId::current();
        assert!(here.is_current());
        assert!(is_so_in_a_child(|| !here.is_current()));
        assert!(here.is_current());
    }
}
