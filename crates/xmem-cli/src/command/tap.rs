// SPDX-License-Identifier: MPL-2.0

//! `xmem tap POOL`

use std::ffi::OsStr;
use std::io::{IsTerminal, stdout};
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use crate::Error;
use crate::child::{self, END_TIMEOUT};
use crate::launch::{TOOL, check_decodable, decoder, newest_only, pipeline, video_pool};
use crate::play::play;

pub(crate) fn run(pool: &OsStr, raw: bool) -> Result<ExitCode, Error> {
    if stdout().is_terminal() {
        let name = pool.to_string_lossy();
        return Err(format!(
            "standard output is a terminal: send the frames to a program, for example `xmem tap {name} | ffplay -`"
        )
        .into());
    }
    let caps = video_pool(pool, None)?;
    // A descriptor that the tool inherits, because it prints warnings on its standard output.
    let out = rustix::io::dup(stdout())?;
    let sink = format!("fdsink fd={} sync=false", out.as_raw_fd());
    let decode = decoder(caps.is_raw());
    let rest = if raw {
        sink
    } else {
        check_decodable(&caps)?;
        // Y4M has one header.
        let filter = caps.filter();
        format!("{decode}{filter} ! videoconvert ! y4menc ! {sink}")
    };
    let source = [newest_only(caps.is_raw())];
    let command = pipeline(child::dependent(TOOL), pool, &source, &rest);
    // A reader that does not read would otherwise stop the tool's end.
    play(command, Some(END_TIMEOUT), || true)
}
