// SPDX-License-Identifier: MPL-2.0

//! Events of a running tool, and of the user's signals.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::thread;

use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;
use signal_hook::iterator::Signals;

use crate::Error;
use crate::launch::not_started;

pub(crate) enum Event {
    /// SIGINT or SIGTERM was received.
    Stop,
    /// The tool printed a line on standard error.
    Printed(String),
    /// The tool has ended.
    Ended,
}

/// Sends an event for SIGINT and SIGTERM instead of ending the process.
pub(crate) fn stop_on_signals(events: Sender<Event>) -> Result<(), Error> {
    on_signals(&[SIGINT, SIGTERM], move || events.send(Event::Stop).is_ok())
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
    act: impl Fn() -> bool + Send + 'static,
) -> Result<(), Error> {
    let mut signals = Signals::new(signals)?;
    thread::Builder::new().spawn(move || signals.forever().all(|_| act()))?;
    Ok(())
}

/// Starts the tool, and sends what it prints.
pub(crate) fn start(command: &mut Command, events: Sender<Event>) -> Result<Child, Error> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // A separate process group: Ctrl+C would otherwise end the tool before this command can.
    command.process_group(0);
    let mut tool = command.spawn().map_err(not_started)?;
    let stderr = tool.stderr.take();
    let printed = events.clone();
    read_lines(&mut tool, stderr, events, move |line| {
        let _ = printed.send(Event::Printed(line));
    })?;
    Ok(tool)
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
