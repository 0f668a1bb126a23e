// SPDX-License-Identifier: MPL-2.0

//! A process between this program and a tool that completes a file at SIGINT.

// A mask of blocked signals can only be set by a function that is unsafe.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::process::{Command, ExitCode};
use std::ptr;
use std::time::Instant;

use rustix::process::getppid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Error;
use crate::launch::{exit_code, not_started};
use crate::tool::{AGAIN, interrupt};

/// Runs a tool that aborts at a second SIGINT, and returns its exit code.
///
/// This process passes on only one SIGINT, because several can arrive for one end: `timeout` sends two, and the kernel sends one
/// for each thread of a parent that is killed. Service managers send SIGTERM to all processes at the same time: the tool does not
/// get it, as its end comes from the parent. It also writes to a pipe that the parent may no longer read.
pub(crate) fn supervise(tool: &mut Command) -> Result<ExitCode, Error> {
    // The tool inherits the mask.
    mask(libc::SIG_BLOCK, &[SIGHUP, SIGPIPE, SIGTERM])?;
    let mut signals = Signals::new([SIGCHLD, SIGINT])?;
    let parent = getppid();
    let mut tool = tool.spawn().map_err(not_started)?;
    let mut interrupted: Option<Instant> = None;
    loop {
        for signal in signals.wait() {
            let is_wanted =
                interrupted.is_none_or(|before| before.elapsed() > AGAIN && getppid() == parent);
            if signal == SIGINT && is_wanted {
                interrupted = Some(Instant::now());
                interrupt(&tool);
            }
        }
        if let Some(status) = tool.try_wait()? {
            return Ok(exit_code(status));
        }
    }
}

/// Lets this process and its tools get the signals that end them. Some programs that start others leave them blocked.
pub(crate) fn unblock() -> io::Result<()> {
    mask(libc::SIG_UNBLOCK, &[SIGINT, SIGTERM])
}

fn mask(how: i32, signals: &[i32]) -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initializes the set, which the other functions read. The old mask is not asked for.
    let error = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut())
    };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
