// SPDX-License-Identifier: MPL-2.0

//! `xmem tap POOL`

use std::ffi::OsStr;
use std::io::{IsTerminal, stdout};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Error;
use crate::launch::{TOOL, decoder, newest_only, not_started, pipeline, video_pool};

/// Replaces this process with GStreamer's tool, so that it ends when its reader closes the pipe or a signal ends it.
pub(crate) fn run(pool: &OsStr, raw: bool) -> Result<(), Error> {
    if stdout().is_terminal() {
        let name = pool.to_string_lossy();
        return Err(format!(
            "standard output is a terminal: pipe it, such as `xmem tap {name} | ffplay -`"
        )
        .into());
    }
    let caps = video_pool(pool, None)?;
    let decode = decoder(caps.is_raw());
    let rest = if raw {
        "fdsink sync=false".to_owned()
    } else {
        // Y4M has one header.
        let filter = caps.filter();
        format!("{decode}{filter} ! videoconvert ! y4menc ! fdsink sync=false")
    };
    let error = pipeline(
        Command::new(TOOL),
        pool,
        &[newest_only(caps.is_raw())],
        &rest,
    )
    .exec();
    Err(not_started(&error))
}
