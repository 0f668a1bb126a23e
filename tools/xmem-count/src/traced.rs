// SPDX-License-Identifier: MPL-2.0

//! A child process under Valgrind that is one side of a transport.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;

use crate::Error;
use crate::code::Code;
use crate::figures::Column;
use crate::mark::{MARKS_AT, Mark};
use crate::trace::{self, Interval};

/// The settings of all processes of a case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment<'a> {
    /// The plugin whose code is counted as "ours".
    pub(crate) plugin: &'a Path,
    /// The other plugins to load.
    pub(crate) others: &'a [PathBuf],
    /// An empty folder.
    pub(crate) folder: &'a Path,
}

#[derive(Debug)]
pub(crate) struct Traced {
    child: Child,
    stdin: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The number of lines in the trace.
    pub(crate) lines: Arc<AtomicU64>,
    code: Sender<Code>,
    intervals: Receiver<Interval>,
}

impl Traced {
    pub(crate) fn start(environment: Environment, args: &[&str]) -> Result<Self, Error> {
        let mut command = Command::new("valgrind");
        command.args(["-q", "--tool=lackey", "--trace-mem=yes", "--log-fd=2"]);
        command.arg(std::env::current_exe()?).args(args);
        for plugin in environment.others {
            command.arg("--plugin").arg(plugin);
        }
        command.arg("--plugin").arg(environment.plugin);
        // An empty environment without plugin registry: reading or creating one under Valgrind is slow, and environment variables
        // change the layout of the stack.
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.env("GST_REGISTRY", environment.folder.join("registry"));
        command.env("GST_REGISTRY_FORK", "no");
        for name in ["GST_PLUGIN_PATH_1_0", "GST_PLUGIN_SYSTEM_PATH_1_0"] {
            command.env(name, environment.folder);
        }
        // Without this variable GLib uses another allocator under Valgrind.
        command.env("G_SLICE", "");
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let cannot = |error| format!("cannot start valgrind: {error}");
        let mut child = command.spawn().map_err(cannot)?;
        let output = child.stdout.take().ok_or("no output")?;
        let trace = child.stderr.take().ok_or("no trace")?;
        let trace = BufReader::with_capacity(1 << 16, BatchedReader(trace));
        let lines = Arc::new(AtomicU64::new(0));
        let (code, code_there) = mpsc::channel();
        let (counted, intervals) = mpsc::channel();
        let seen = lines.clone();
        thread::spawn(move || {
            // The channel closes, so a thread that waits for figures returns an error.
            if let Err(error) = trace::read(trace, &code_there, &seen, &counted) {
                eprintln!("xmem-count: cannot read the trace: {error}");
            }
        });
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            output: BufReader::new(output),
            lines,
            code,
            intervals,
        })
    }

    /// Waits until the process is ready for commands.
    pub(crate) fn ready(&mut self, environment: Environment) -> Result<(), Error> {
        let mut functions = HashMap::new();
        let mut line = String::new();
        while {
            line.clear();
            self.output.read_line(&mut line)? > 0
        } {
            let (what, address) = line.trim_end().split_once(' ').ok_or("an odd line")?;
            let address = address.parse()?;
            if what == MARKS_AT {
                let pid = self.child.id();
                let code = Code::new(pid, address, environment.plugin, functions)?;
                return Ok(self.code.send(code)?);
            }
            functions.insert(address, Column::from_str(what, false)?);
        }
        Err("a traced process ended too early".into())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Starts the next step of the process.
    pub(crate) fn next_step(&mut self) -> Result<(), Error> {
        let stdin = self.stdin.as_mut().ok_or("the process was stopped")?;
        Ok(stdin.write_all(b"\n")?)
    }

    /// Waits for the figures from a mark to the next one.
    pub(crate) fn counted(&self, from: Option<Mark>, time: Duration) -> Result<Interval, Error> {
        loop {
            let interval = self.intervals.recv_timeout(time);
            let interval = interval.map_err(|_| "a frame does not come through")?;
            if interval.from == from {
                return Ok(interval);
            }
        }
    }

    /// Closes standard input and waits until the process ends.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        self.stdin = None;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("a traced process ended with {status}").into());
        }
        Ok(())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // Has an effect only after an error; otherwise the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads several lines at once. Valgrind writes each line separately, and reading each separately would wake this process a million
/// times per second.
#[derive(Debug)]
struct BatchedReader<T>(T);

impl<T: Read> Read for BatchedReader<T> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        thread::sleep(Duration::from_millis(1));
        self.0.read(bytes)
    }
}
