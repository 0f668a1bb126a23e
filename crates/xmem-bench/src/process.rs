// SPDX-License-Identifier: MPL-2.0

//! A process that takes orders.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::figures::Figures;
use crate::orders::{MEASURE, STOP};

/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Side {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
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
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self {
            child,
            orders,
            answers,
        })
    }

    pub(crate) fn measure(&mut self) -> Result<(), Error> {
        self.order(MEASURE)
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        self.order(STOP)
    }

    fn order(&mut self, order: &str) -> Result<(), Error> {
        let orders = self.orders.as_mut().ok_or("it takes no more orders")?;
        Ok(writeln!(orders, "{order}")?)
    }

    fn answer(&mut self) -> Result<String, Error> {
        Ok(self
            .answers
            .next()
            .ok_or("a side of the transport ended early")??)
    }

    pub(crate) fn expect(&mut self, expected: &str) -> Result<(), Error> {
        let answer = self.answer()?;
        if answer == expected {
            Ok(())
        } else {
            Err(format!("expected {expected:?}, got {answer:?}").into())
        }
    }

    pub(crate) fn figures(&mut self) -> Result<Figures, Error> {
        Ok(serde_json::from_str(&self.answer()?)?)
    }

    /// Its figures, and its end.
    pub(crate) fn finish(mut self) -> Result<Figures, Error> {
        let figures = self.figures()?;
        self.end()?;
        Ok(figures)
    }

    /// Has it end by itself, so that it leaves nothing behind.
    pub(crate) fn end(mut self) -> Result<(), Error> {
        self.orders = None;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// SIGSTOP.
    pub(crate) fn freeze(&self) -> Result<(), Error> {
        let pid = Pid::from_raw(self.child.id() as i32).ok_or("a process without a number")?;
        Ok(kill_process(pid, Signal::STOP)?)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // The process under strace is not our child; it ends because its orders end.
        self.orders = None;
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
