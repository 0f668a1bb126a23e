// SPDX-License-Identifier: MPL-2.0

//! A child process that is one side of a transport.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::commands::{MEASURE, STOP};
use crate::figures::Figures;

/// The time within which a process must end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Kills the process when it is dropped.
#[derive(Debug)]
pub(crate) struct Side {
    child: Child,
    stdin: Option<ChildStdin>,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Side {
    pub(crate) fn start(mut command: Command) -> Result<Self, Error> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                format!("cannot start {}: {error}", command.get_program().display())
            })?;
        let stdin = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self {
            child,
            stdin,
            replies,
        })
    }

    pub(crate) fn measure(&mut self) -> Result<(), Error> {
        self.command(MEASURE)
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        self.command(STOP)
    }

    fn command(&mut self, command: &str) -> Result<(), Error> {
        let stdin = self.stdin.as_mut().ok_or("the process is being stopped")?;
        Ok(writeln!(stdin, "{command}")?)
    }

    fn reply(&mut self) -> Result<String, Error> {
        Ok(self
            .replies
            .next()
            .ok_or("a side of the transport ended early")??)
    }

    pub(crate) fn expect(&mut self, expected: &str) -> Result<(), Error> {
        let reply = self.reply()?;
        if reply == expected {
            Ok(())
        } else {
            Err(format!("expected {expected:?}, got {reply:?}").into())
        }
    }

    pub(crate) fn figures(&mut self) -> Result<Figures, Error> {
        Ok(serde_json::from_str(&self.reply()?)?)
    }

    /// Returns the figures and ends the process.
    pub(crate) fn finish(mut self) -> Result<Figures, Error> {
        let figures = self.figures()?;
        self.end()?;
        Ok(figures)
    }

    /// Lets the process end by itself, so that it removes its files. A process that does not end is killed.
    pub(crate) fn end(mut self) -> Result<(), Error> {
        self.stdin = None;
        let deadline = Instant::now() + END_TIMEOUT;
        while self.child.try_wait()?.is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The memory that is in the process's page table, in bytes.
    pub(crate) fn resident(&self) -> Result<u64, Error> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id()))?;
        let pages: u64 = statm.split(' ').nth(1).ok_or("an odd statm")?.parse()?;
        Ok(pages * rustix::param::page_size() as u64)
    }

    /// Sends SIGSTOP.
    pub(crate) fn freeze(&self) -> Result<(), Error> {
        let pid = Pid::from_raw(self.child.id() as i32).ok_or("a process without a number")?;
        Ok(kill_process(pid, Signal::STOP)?)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Under strace the process is not a child of this one. It ends when its standard input ends.
        self.stdin = None;
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
