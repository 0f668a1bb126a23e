// SPDX-License-Identifier: MPL-2.0

//! Counts system calls in the output of strace.

use std::collections::BTreeMap;

use crate::commands::MARK;

/// The source sleeps between frames. This is not part of the transport.
const PACING: &str = "clock_nanosleep";

/// The number of calls between the two marks, by name.
pub(crate) fn between_marks(trace: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    let mut marks = 0;
    for line in trace.lines() {
        if line.contains(MARK) {
            marks += 1;
        } else if let (1, Some(name)) = (marks, call(line)) {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// The name of the call that begins in this line: `123  futex(0x7f..., FUTEX_WAIT, ...`.
fn call(line: &str) -> Option<&str> {
    let (_pid, rest) = line.split_once(' ')?;
    let (name, _) = rest.trim_start().split_once('(')?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && name != PACING).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_between_the_marks_are_counted() {
        let trace = "\
            1 openat(AT_FDCWD, \"/x\", O_RDONLY) = 3\n\
            1 statx(AT_FDCWD, \"/xmem-bench-mark\", 0, 0, 0) = -1 ENOENT\n\
            12 futex(0x1, FUTEX_WAIT_PRIVATE, 2, NULL <unfinished ...>\n\
            1  sendto(4, \"x\", 1, 0, NULL, 0) = 1\n\
            12 <... futex resumed>) = 0\n\
            1 clock_nanosleep(CLOCK_MONOTONIC, 0, {}, NULL) = 0\n\
            1 --- SIGCHLD {si_signo=SIGCHLD} ---\n\
            12 futex(0x1, FUTEX_WAKE_PRIVATE, 1) = 0\n\
            1 statx(AT_FDCWD, \"/xmem-bench-mark\", 0, 0, 0) = -1 ENOENT\n\
            1 close(3) = 0\n";
        let calls = between_marks(trace);
        assert_eq!(
            calls,
            BTreeMap::from([("futex".to_owned(), 2), ("sendto".to_owned(), 1)])
        );
    }
}
