// SPDX-License-Identifier: MPL-2.0

//! `xmem tap POOL`

mod y4m;

use std::ffi::OsStr;
use std::io::{ErrorKind::BrokenPipe, IsTerminal, pipe, stdout};
use std::os::fd::AsRawFd;
use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;
use std::thread;

use xmem_core::Delivery;

use crate::Error;
use crate::caps::Caps;
use crate::child::{self, END_TIMEOUT};
use crate::format::to_stderr;
use crate::launch::{TOOL, check_decodable, decoder, newest_only, pipeline, video_pool};
use crate::play::{play, why};

pub(crate) fn run(pool: &OsStr, raw: bool) -> Result<ExitCode, Error> {
    if stdout().is_terminal() {
        let name = pool.to_string_lossy();
        return Err(format!(
            "standard output is a terminal: send the frames to a program, for example `xmem tap {name} | ffplay -`"
        )
        .into());
    }
    let caps = video_pool(pool, None)?;
    let elements = if raw {
        String::new()
    } else {
        check_decodable(&caps)?;
        if caps.is_raw() && caps.has_variable_rate() {
            to_stderr(
                "the frames have no fixed rate, so readers play them at one of their own: `xmem share --also` makes a pool with one",
            );
        }
        format!("{} ! ", to_y4m(&caps))
    };
    let is_lossless = xmem_core::discovery::query(pool)?.delivery == Delivery::Lossless;
    let tool = |fd| {
        let rest = format!("{elements}fdsink fd={fd} sync=false");
        let source = if is_lossless {
            // All frames, from the oldest one that is kept on, because the format of the first one was waited for.
            ["newest-only=false", "start-from=oldest"]
                .map(str::to_owned)
                .to_vec()
        } else {
            vec![newest_only(caps.is_raw())]
        };
        pipeline(child::dependent(TOOL), pool, &source, &rest)
    };
    // A reader that does not read would otherwise stop the tool's end.
    let explain = |report: &str| why(pool, &caps, "output", "standard output", report);
    let play = |command| play(command, Some(END_TIMEOUT), || true, explain);
    if !raw && may_be_padded(&caps) && y4m::has_padding()? {
        return without_padding(tool(0), play);
    }
    // A descriptor that the tool inherits, because it prints warnings on its standard output.
    let out = rustix::io::dup(stdout())?;
    play(tool(out.as_raw_fd()))
}

/// Plays a command that writes Y4M to descriptor 0.
fn without_padding(
    mut tool: Command,
    play: impl FnOnce(Command) -> Result<ExitCode, Error>,
) -> Result<ExitCode, Error> {
    let (from, to) = pipe()?;
    tool.stdin(to);
    let (sender, end) = channel();
    thread::Builder::new().spawn(move || {
        let _ = sender.send(y4m::copy(from, stdout()));
    })?;
    let code = play(tool)?;
    // What the tool wrote last. A reader that does not read is not waited for.
    match end.recv_timeout(END_TIMEOUT) {
        // The tool has ended by SIGPIPE, as it does without this thread if the reader has ended.
        Ok(Err(error)) if error.raw_os_error().is_some() && error.kind() != BrokenPipe => {
            Err(format!("standard output: {error}").into())
        }
        _ => Ok(code),
    }
}

/// Whether a frame in the layout of its caps has bytes between its rows or behind its planes, in a format of y4menc.
fn may_be_padded(caps: &Caps) -> bool {
    caps.size()
        .is_none_or(|(width, height)| width % 8 != 0 || height % 2 != 0)
}

/// The elements that convert frames to Y4M, which has one header, and no word for the range of values: it is the limited one.
fn to_y4m(caps: &Caps) -> String {
    let formats = if caps.has_full_range() {
        // By way of RGB, because videoconvert does not change the range alone.
        "video/x-raw,format=BGRx ! videoconvert ! video/x-raw,format=I420".to_owned()
    } else {
        let formats = y4m::FORMATS.map(|(format, _)| format).join(",");
        format!("video/x-raw,format=(string){{{formats}}}")
    };
    let decode = decoder(caps.is_raw());
    // Without the allocation query, y4menc gets the layout of the caps. The one of GStreamer 1.22 writes whatever a decoder leaves
    // between rows and planes.
    format!(
        "{decode}{} ! videoconvert ! {formats} ! identity drop-allocation=true ! y4menc",
        caps.filter()
    )
}
