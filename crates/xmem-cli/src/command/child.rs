// SPDX-License-Identifier: MPL-2.0

//! `xmem child COMMAND`, which `share` and others start tools with.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::Error;

/// Becomes the command. A tool must not outlive the process that started it, not even if that one is killed: it would
/// keep the camera and the pool.
pub(crate) fn run(command: &[OsString]) -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::INT))?;
    let (program, args) = command.split_first().ok_or("no command")?;
    Err(Command::new(program).args(args).exec().into())
}
