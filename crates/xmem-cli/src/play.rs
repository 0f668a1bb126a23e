// SPDX-License-Identifier: MPL-2.0

//! Runs a pipeline for as long as the user wants, and prints its warnings.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGPIPE};
use signal_hook::low_level::signal_name;
use xmem_core::discovery::printable;

use crate::Error;
use crate::caps::Caps;
use crate::format::to_stderr;
use crate::launch::{exit_code, failure, failure_to_write, not_started};
use crate::tool::{Event, interrupt, read_lines, stop_on_signals, warning};

const INTERVAL: Duration = Duration::from_secs(1);

/// Runs a command of [`pipeline`](crate::launch::pipeline) until it ends, and returns its exit code. It gets SIGINT when this process
/// gets SIGINT or SIGTERM, and is killed if it has not ended after `time`. `look` is called each second, and before the signal is
/// passed on. When it returns false, the tool gets SIGINT too. `explain` returns the reason of an error from the tool's report.
///
/// The tool prints warnings on its standard output, and errors on its standard error, as reports of several lines. Only the text of
/// a warning is printed, and the reason of its end.
pub(crate) fn play(
    mut command: Command,
    time: Option<Duration>,
    mut look: impl FnMut() -> bool,
    explain: impl FnOnce(&str) -> Error,
) -> Result<ExitCode, Error> {
    let (sender, events) = channel();
    stop_on_signals(sender.clone())?;
    // A separate process group: Ctrl+C would otherwise end the tool before the last look.
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    let mut tool = command.spawn().map_err(not_started)?;
    // With the tool's descriptors: the reader of a pipe waits until all are closed.
    drop(command);
    let (stdout, stderr) = (tool.stdout.take(), tool.stderr.take());
    read_lines(&mut tool, stdout, sender.clone(), |line| {
        if let Some(text) = warning(&line) {
            to_stderr(printable(text));
        }
    })?;
    let (to_report, report) = channel();
    let has_failed = Cell::new(false);
    read_lines(&mut tool, stderr, sender, move |line| {
        has_failed.set(has_failed.get() || begins_report(&line));
        if has_failed.get() {
            let _ = to_report.send(line);
        } else {
            // Such as what GST_DEBUG asks for.
            let _ = writeln!(std::io::stderr(), "{}", printable(&line));
        }
    })?;
    let mut deadline = None;
    let mut is_wanted = true;
    let mut open = 2;
    let (mut is_interrupted, mut is_killed) = (false, false);
    while open > 0 {
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            tool.kill()?;
            is_killed = true;
        }
        let event = events.recv_timeout(INTERVAL);
        if let Ok(Event::Ended) = event {
            open -= 1;
            continue;
        }
        let was_wanted = is_wanted;
        is_wanted &= look();
        if event.is_ok() || is_wanted != was_wanted {
            deadline = deadline.or(time.map(|time| Instant::now() + time));
            interrupt(&tool);
            is_interrupted = true;
        }
    }
    let status = tool.wait()?;
    let report: Vec<String> = report.try_iter().collect();
    if !report.is_empty() {
        to_stderr(explain(&report.join("\n")));
    } else if let Some(signal) = signal_of(status) {
        // The reader of `tap` has ended, or this command or its user has ended the tool.
        let is_wanted = signal == SIGPIPE || is_killed || (is_interrupted && signal == SIGINT);
        if !is_wanted {
            let name = signal_name(signal).unwrap_or("a signal");
            to_stderr(format_args!("{}: {name}", failure("")));
        }
    }
    Ok(exit_code(status))
}

/// The signal that ended the tool, also if the tool was [supervised](crate::child::supervised).
fn signal_of(status: ExitStatus) -> Option<i32> {
    let signal = status.code().and_then(|code| code.checked_sub(128));
    status.signal().or(signal.filter(|it| *it > 0))
}

/// Whether this is the first line of the tool's report.
fn begins_report(line: &str) -> bool {
    line.starts_with("ERROR: ") || line.starts_with("WARNING: erroneous pipeline")
}

/// Why a pipeline has ended that was made for these frames and writes to `output`. `what`: what has ended.
pub(crate) fn why(
    pool: &OsStr,
    caps: &Caps,
    what: &str,
    output: impl Display,
    report: &str,
) -> Error {
    let changed = changed(pool, caps, what).map(Error::from);
    changed.unwrap_or_else(|| failure_to_write(output, report))
}

/// Compares the frames of the pool with those that the pipeline was made for. `None`: they are alike.
fn changed(pool: &OsStr, caps: &Caps, what: &str) -> Option<String> {
    let now = Caps::of(&xmem_core::discovery::query(pool).ok()?)?;
    let (before, now) = caps.difference(&now)?;
    let text = format!(
        "the frames changed from {before} to {now}, so the {what} ended there: start another one"
    );
    Some(printable(&text))
}
