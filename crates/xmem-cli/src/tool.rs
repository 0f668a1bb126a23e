// SPDX-License-Identifier: MPL-2.0

//! Events of a running tool, and of the user's signals.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
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
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().spawn(move || {
        for _ in &mut signals {
            if events.send(Event::Stop).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Starts the tool, and sends what it prints.
pub(crate) fn start(command: &mut Command, events: Sender<Event>) -> Result<Child, Error> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // A separate process group: Ctrl+C would otherwise end the tool before this command can.
    command.process_group(0);
    let mut tool = command.spawn().map_err(|error| not_started(&error))?;
    let stderr = tool.stderr.take().map(BufReader::new);
    let reading = thread::Builder::new().spawn(move || {
        let lines = stderr
            .into_iter()
            .flat_map(|it| it.split(b'\n'))
            .map_while(Result::ok);
        for line in lines {
            let line = String::from_utf8_lossy(&line).into_owned();
            let _ = events.send(Event::Printed(line));
        }
        let _ = events.send(Event::Ended);
    });
    or_end(reading, &mut tool)?;
    Ok(tool)
}

/// Ends the tool if the thread that it needs was not started.
pub(crate) fn or_end<T>(thread: io::Result<T>, tool: &mut Child) -> io::Result<T> {
    if thread.is_err() {
        tool.kill()?;
        tool.wait()?;
    }
    thread
}
