// SPDX-License-Identifier: MPL-2.0

//! Child processes: the test program starts itself with a role.
//!
//! A child writes lines that begin with `@` between the lines of the test harness, and reads commands from its standard input. It
//! ends when standard input is closed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitIdOptions, WaitOptions, kill_process, waitpid};

const ROLE: &str = "XMEM_TEST_ROLE";
const POOL: &str = "XMEM_TEST_POOL";

/// The role and the pool of this process. `None` if it is not a child.
pub fn role() -> Option<(String, String)> {
    Some((std::env::var(ROLE).ok()?, std::env::var(POOL).ok()?))
}

/// Sends a line to the parent.
pub fn reply(line: impl std::fmt::Display) {
    // The harness may have begun a line.
    println!("\n@{line}");
}

/// Waits for a line from the parent. Exits if the parent has ended.
pub fn read_line() -> String {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => line.trim().to_owned(),
        _ => std::process::exit(0),
    }
}

/// Lets this process end with its parent. Reads standard input from now on.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        loop {
            read_line();
        }
    });
}

/// A child process. It is killed when it is dropped.
pub struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    ended: bool,
}

impl Child {
    /// Starts the test `child` of this program with this role.
    pub fn start(role: &str, pool: &str) -> Self {
        Self::from(Command::new(std::env::current_exe().unwrap()), role, pool)
    }

    /// As `start`, with a command that runs this program with the arguments that follow.
    pub fn from(mut command: Command, role: &str, pool: &str) -> Self {
        let mut process = command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(POOL, pool)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: process.stdin.take(),
            stdout: BufReader::new(process.stdout.take().unwrap()),
            process,
            ended: false,
        }
    }

    /// Waits until the child reports that it is ready.
    #[track_caller]
    pub fn ready(mut self) -> Self {
        assert_eq!(self.reply(), "ready");
        self
    }

    /// Waits until the child reports that it is done, and ends it.
    #[track_caller]
    pub fn done(mut self) {
        assert_eq!(self.reply(), "done");
        assert!(self.end());
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The child's next line.
    #[track_caller]
    pub fn reply(&mut self) -> String {
        self.next_line()
            .expect("the child ended without a word; its message is above")
    }

    /// The child's next line. `None` if it has ended.
    pub fn next_line(&mut self) -> Option<String> {
        loop {
            let mut line = Vec::new();
            if self.stdout.read_until(b'\n', &mut line).unwrap() == 0 {
                return None;
            }
            let line = String::from_utf8_lossy(&line);
            if let Some(reply) = line.trim_end().strip_prefix('@') {
                return Some(reply.to_owned());
            }
        }
    }

    /// Sends a line to the child.
    pub fn send(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Sends a line to a child that may have died. Returns whether it was alive.
    pub fn try_send(&mut self, line: &str) -> bool {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").is_ok()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Sends SIGSTOP, and returns when the child is stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        rustix::process::waitid(
            rustix::process::WaitId::Pid(Pid::from_child(&self.process)),
            WaitIdOptions::STOPPED,
        )
        .unwrap();
    }

    /// Waits until the child stops itself or ends. Returns whether it stopped.
    pub fn stops(&self) -> bool {
        let status = rustix::process::waitid(
            rustix::process::WaitId::Pid(Pid::from_child(&self.process)),
            WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
        status.unwrap().unwrap().stopped()
    }

    /// Whether the child has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits until the child ends. Returns the signal that killed it, if any.
    pub fn dies_of(&mut self) -> Option<i32> {
        self.ended = true;
        self.process.wait().unwrap().signal()
    }

    /// Waits until the child ends by itself. Returns whether it succeeded.
    pub fn ends(&mut self) -> bool {
        self.ended = true;
        self.process.wait().unwrap().success()
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGKILL, and waits until the child has ended.
    pub fn kill(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    /// Closes the child's standard input, and waits until it has ended. Returns whether it succeeded.
    pub fn end(mut self) -> bool {
        self.stdin = None;
        self.ended = true;
        self.process.wait().unwrap().success()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a forked process. Returns its exit status, or the negative number of the signal that killed it.
pub fn exit_of(pid: i32) -> i32 {
    let pid = Pid::from_raw(pid).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    match status.exit_status() {
        Some(code) => code,
        None => -status.terminating_signal().unwrap_or(-1),
    }
}
