// SPDX-License-Identifier: MPL-2.0

//! Hints that cache lines are used soon. A line that another core wrote takes long to come, so several are asked for together.
#![allow(unsafe_code)] // the instructions

use std::arch::asm;

/// The line at this address is read soon. The address may be invalid.
#[inline(always)]
pub fn to_read<T>(at: *const T) {
    // SAFETY: these instructions only load caches, and do not fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// The line at this address is written soon. The address may be invalid.
#[inline(always)]
pub fn to_write<T>(at: *const T) {
    // SAFETY: as above. Old processors ignore the first one. The intrinsic would not ask for the right to write.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
