// SPDX-License-Identifier: MPL-2.0

//! The demo's processes. Each process is killed when its value is dropped.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

use super::stage::Stage;

#[derive(Debug)]
pub(crate) struct Process {
    pub(super) name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(stage: &Stage, name: &'static str, mut command: Command) -> Result<Self> {
        let log = stage.path(&format!("{name}.log"));
        // Append: a process that is started again continues the same log.
        let file = File::options().create(true).append(true).open(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .map_err(|error| {
                format!("cannot start {}: {error}", command.get_program().display())
            })?;
        Ok(Self { name, child, log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error with the end of the log if the process has ended.
    pub(crate) fn check(&mut self) -> Result {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.ended(status).into()),
        }
    }

    /// Waits until the process ends with success.
    pub(super) fn finish(mut self, timeout: Duration) -> Result {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.ended(status).into()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(format!("{} did not end: {}", self.name, self.log_end()).into())
    }

    /// Sends SIGKILL.
    pub(super) fn kill(mut self) {
        self.end();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn ended(&self, status: ExitStatus) -> String {
        format!("{} ended ({status}): {}", self.name, self.log_end())
    }

    fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n  ")
    }

    fn end(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
