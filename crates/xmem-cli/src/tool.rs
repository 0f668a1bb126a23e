// SPDX-License-Identifier: MPL-2.0

//! Events of a running tool, and of the user's signals.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;
use signal_hook::iterator::Signals;

use crate::Error;
use crate::launch::not_started;

/// Signals within this time are one, because `timeout` sends two, to its child and to its group. A later one is for a tool that hangs.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

pub(crate) enum Event {
    /// SIGINT or SIGTERM was received.
    Stop,
    /// The tool printed a line on standard error.
    Printed(String),
    /// The text of a warning that an element posted.
    Warned(String),
    /// The source sends pictures one after another, as network cameras do over HTTP. Only if the tool prints messages (`-m`).
    Pictures,
    /// The tool has ended.
    Ended,
}

/// Sends an event for SIGINT and SIGTERM instead of ending the process.
pub(crate) fn stop_on_signals(events: Sender<Event>) -> Result<(), Error> {
    let mut last: Option<Instant> = None;
    on_signals(&[SIGINT, SIGTERM], move || {
        if last.is_some_and(|last| last.elapsed() < AGAIN) {
            return true;
        }
        last = Some(Instant::now());
        events.send(Event::Stop).is_ok()
    })
}

/// Waits for this time. Returns whether the user stopped the command meanwhile. Other events are of a run that has ended.
pub(crate) fn is_stopped(events: &Receiver<Event>, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(Event::Stop) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Lets SIGINT and SIGTERM end this process also as the first one of a container, for which the kernel ignores a signal without a
/// handler. For others the shell must see that a signal ended them.
pub(crate) fn end_as_first_process() -> io::Result<()> {
    if getpid().is_init() {
        for signal in [SIGINT, SIGTERM] {
            let always = Arc::new(AtomicBool::new(true));
            register_conditional_shutdown(signal, 128 + signal, always)?;
        }
    }
    Ok(())
}

/// Calls `act` for each of these signals, which then do not end the process, until it returns `false`.
pub(crate) fn on_signals(
    signals: &[i32],
    mut act: impl FnMut() -> bool + Send + 'static,
) -> Result<(), Error> {
    let mut signals = Signals::new(signals)?;
    thread::Builder::new().spawn(move || signals.forever().all(|_| act()))?;
    Ok(())
}

/// Starts the tool, and sends what it prints. It prints warnings on its standard output, unless it is quiet.
pub(crate) fn start(command: &mut Command, events: Sender<Event>) -> Result<Child, Error> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // A separate process group: Ctrl+C would otherwise end the tool before this command can.
    command.process_group(0);
    let mut tool = command.spawn().map_err(not_started)?;
    let (stdout, stderr) = (tool.stdout.take(), tool.stderr.take());
    let (printed, warned) = (events.clone(), events.clone());
    // It ends with standard error.
    let (not_needed, _) = channel();
    read_lines(&mut tool, stdout, not_needed, move |line| {
        if let Some(text) = warning(&line) {
            let _ = warned.send(Event::Warned(text.to_owned()));
        } else if has_parts(&line) {
            let _ = warned.send(Event::Pictures);
        }
    })?;
    read_lines(&mut tool, stderr, events, move |line| {
        let _ = printed.send(Event::Printed(line));
    })?;
    Ok(tool)
}

/// Whether a message of the tool is the answer of a server that sends several parts.
fn has_parts(line: &str) -> bool {
    if !line.contains("http-headers, ") {
        return false;
    }
    let line = line.to_ascii_lowercase();
    let kind = line.split_once("content-type").map(|(_, rest)| rest);
    kind.and_then(|rest| rest.split(',').next())
        .is_some_and(|kind| kind.contains("multipart/"))
}

/// The text of a warning in a line of the tool's output.
pub(crate) fn warning(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("WARNING: from element ")?;
    rest.split_once(": ").map(|(_, text)| text)
}

/// Calls `take` for each line of the tool's output, and sends an event when it ends.
pub(crate) fn read_lines(
    tool: &mut Child,
    output: Option<impl Read + Send + 'static>,
    events: Sender<Event>,
    take: impl Fn(String) + Send + 'static,
) -> io::Result<()> {
    let reading = thread::Builder::new().spawn(move || {
        let output = output.map(BufReader::new).into_iter();
        for line in output.flat_map(|it| it.split(b'\n')).map_while(Result::ok) {
            take(String::from_utf8_lossy(&line).into_owned());
        }
        let _ = events.send(Event::Ended);
    });
    or_end(reading, tool).map(drop)
}

/// Sends SIGINT to the tool.
pub(crate) fn interrupt(tool: &Child) {
    // Fails only if the tool has already ended.
    let _ = kill_process(Pid::from_child(tool), Signal::INT);
}

/// Ends the tool if the thread that it needs was not started.
pub(crate) fn or_end<T>(thread: io::Result<T>, tool: &mut Child) -> io::Result<T> {
    if thread.is_err() {
        tool.kill()?;
        tool.wait()?;
    }
    thread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_sends_parts_is_recognized() {
        let has_parts = |path, kind| {
            let kind = format!(r"Content-Type\=\(string\){kind}\,\ Server\=\(string\)b\;");
            let headers = format!(r#"response-headers=(structure)"response-headers\,\ {kind}""#);
            has_parts(&format!(
                "http-headers, uri=(string)http://a/{path}, {headers};"
            ))
        };
        let quoted = r#"\"Multipart/X-Mixed-Replace\\\;boundary\\\=a\""#;
        assert!(has_parts("a", quoted) && has_parts("a", "multipart/mixed"));
        assert!(!has_parts("multipart/a", "video/mp4"));
    }

    #[test]
    fn warnings_are_recognized() {
        let line = "WARNING: from element /GstPipeline:pipeline0/GstXmemSrc:xmemsrc0: Frames are missed: put a queue behind";
        assert_eq!(warning(line), Some("Frames are missed: put a queue behind"));
        assert_eq!(warning("Setting pipeline to PAUSED ..."), None);
    }
}
