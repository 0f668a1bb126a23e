// SPDX-License-Identifier: MPL-2.0

//! Runs a pipeline for as long as the user wants, and prints its warnings.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use xmem_core::discovery::printable;

use crate::Error;
use crate::format::to_stderr;
use crate::launch::{exit_code, not_started};
use crate::tool::{Event, interrupt, read_lines, stop_on_signals};

const INTERVAL: Duration = Duration::from_secs(1);

/// Runs a command of [`pipeline`](crate::launch::pipeline) until it ends, and returns its exit code. It gets SIGINT when this process
/// gets SIGINT or SIGTERM, and is killed if it has not ended after `time`. `look` is called each second, and before the signal is
/// passed on. When it returns false, the tool gets SIGINT too.
///
/// The tool prints warnings on its standard output.
pub(crate) fn play(
    mut command: Command,
    time: Option<Duration>,
    mut look: impl FnMut() -> bool,
) -> Result<ExitCode, Error> {
    let (sender, events) = channel();
    stop_on_signals(sender.clone())?;
    // A separate process group: Ctrl+C would otherwise end the tool before the last look.
    command.stdout(Stdio::piped()).process_group(0);
    let mut tool = command.spawn().map_err(not_started)?;
    // With the tool's descriptors: the reader of a pipe waits until all are closed.
    drop(command);
    let stdout = tool.stdout.take();
    read_lines(&mut tool, stdout, sender, |line| {
        if let Some(text) = warning(&line) {
            to_stderr(printable(text));
        }
    })?;
    let mut deadline = None;
    let mut is_wanted = true;
    loop {
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            tool.kill()?;
        }
        let event = events.recv_timeout(INTERVAL);
        if let Ok(Event::Ended) = event {
            break;
        }
        let was_wanted = is_wanted;
        is_wanted &= look();
        if event.is_ok() || is_wanted != was_wanted {
            deadline = deadline.or(time.map(|time| Instant::now() + time));
            interrupt(&tool);
        }
    }
    let status = tool.wait()?;
    Ok(exit_code(status))
}

/// The text of a warning in a line of the tool's output.
fn warning(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("WARNING: from element ")?;
    rest.split_once(": ").map(|(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_recognized() {
        let line = "WARNING: from element /GstPipeline:pipeline0/GstXmemSrc:xmemsrc0: Frames are missed: put a queue behind";
        assert_eq!(warning(line), Some("Frames are missed: put a queue behind"));
        assert_eq!(warning("Setting pipeline to PAUSED ..."), None);
    }
}
