// SPDX-License-Identifier: MPL-2.0

//! Figures of a process, from the kernel.

use std::fmt;

/// Whether a sanitizer keeps freed memory, so that only shared memory can be counted.
fn is_instrumented() -> bool {
    std::env::var_os("XMEM_INSTRUMENTED").is_some()
}

/// The resources of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) descriptors: usize,
    pub(crate) mappings: usize,
    /// Private memory in KiB.
    pub(crate) anonymous: usize,
}

impl Figures {
    pub(crate) fn own() -> Self {
        Self::of("self")
    }

    pub(crate) fn of(process: impl fmt::Display) -> Self {
        let read = |file| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap();
        let status = read("status");
        let anonymous = status
            .lines()
            // gVisor does not separate them.
            .filter_map(|line| {
                line.strip_prefix("RssAnon:")
                    .or(line.strip_prefix("VmRSS:"))
            })
            .filter_map(|rest| rest.trim().strip_suffix(" kB")?.parse().ok())
            .min();
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let maps = read("maps");
        let shared = maps.lines().filter(|line| line.contains("/memfd:"));
        let anonymous = anonymous.expect("a kernel that reports a process's memory");
        Self {
            descriptors: descriptors.count(),
            mappings: if is_instrumented() {
                shared.count()
            } else {
                maps.lines().count()
            },
            anonymous: if is_instrumented() { 0 } else { anonymous },
        }
    }
}
