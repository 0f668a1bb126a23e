// SPDX-License-Identifier: MPL-2.0

//! A side of a transport under Valgrind.

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
use crate::side::{MARKS_AT, Mark};
use crate::trace::{self, Stretch};

/// The environment of the processes of a case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    /// The plugin whose code is "ours".
    pub(crate) plugin: &'a Path,
    /// Whatever else has to be loaded.
    pub(crate) others: &'a [PathBuf],
    /// An empty folder.
    pub(crate) room: &'a Path,
}

#[derive(Debug)]
pub(crate) struct Traced {
    child: Child,
    orders: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// How many lines its trace has.
    pub(crate) lines: Arc<AtomicU64>,
    code: Sender<Code>,
    stretches: Receiver<Stretch>,
}

impl Traced {
    pub(crate) fn start(setting: Setting, args: &[&str]) -> Result<Self, Error> {
        let mut command = Command::new("valgrind");
        command.args(["-q", "--tool=lackey", "--trace-mem=yes", "--log-fd=2"]);
        command.arg(std::env::current_exe()?).args(args);
        for plugin in setting.others {
            command.arg("--plugin").arg(plugin);
        }
        command.arg("--plugin").arg(setting.plugin);
        // No registry, which would be read or made under Valgrind. The rest of the environment would be on the stack.
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.env("GST_REGISTRY", setting.room.join("registry"));
        command.env("GST_REGISTRY_FORK", "no");
        for name in ["GST_PLUGIN_PATH_1_0", "GST_PLUGIN_SYSTEM_PATH_1_0"] {
            command.env(name, setting.room);
        }
        // Unless this is set, GLib allocates otherwise under Valgrind.
        command.env("G_SLICE", "");
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let cannot = |error| format!("cannot start valgrind: {error}");
        let mut child = command.spawn().map_err(cannot)?;
        let output = child.stdout.take().ok_or("no output")?;
        let trace = child.stderr.take().ok_or("no trace")?;
        let trace = BufReader::with_capacity(1 << 16, Leisurely(trace));
        let lines = Arc::new(AtomicU64::new(0));
        let (code, code_there) = mpsc::channel();
        let (counted, stretches) = mpsc::channel();
        let seen = lines.clone();
        thread::spawn(move || {
            // A thread that waits for a stretch notices the end.
            if let Err(error) = trace::read(trace, &code_there, &seen, &counted) {
                eprintln!("xmem-count: cannot read the trace: {error}");
            }
        });
        Ok(Self {
            orders: child.stdin.take(),
            child,
            output: BufReader::new(output),
            lines,
            code,
            stretches,
        })
    }

    /// Waits until the process is ready for orders.
    pub(crate) fn ready(&mut self, setting: Setting) -> Result<(), Error> {
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
                let code = Code::new(pid, address, setting.plugin, functions)?;
                return Ok(self.code.send(code)?);
            }
            functions.insert(address, Column::from_str(what, false)?);
        }
        Err("a traced process ended too early".into())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has the process take its next step.
    pub(crate) fn order(&mut self) -> Result<(), Error> {
        let orders = self.orders.as_mut().ok_or("the process was stopped")?;
        Ok(orders.write_all(b"\n")?)
    }

    /// Waits for what is counted from a mark to the next.
    pub(crate) fn counted(&self, from: Option<Mark>, time: Duration) -> Result<Stretch, Error> {
        loop {
            let stretch = self.stretches.recv_timeout(time);
            let stretch = stretch.map_err(|_| "a frame does not come through")?;
            if stretch.from == from {
                return Ok(stretch);
            }
        }
    }

    /// Ends the process as it would end by itself.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        self.orders = None;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("a traced process ended with {status}").into());
        }
        Ok(())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // It has ended already unless something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Valgrind writes each line by itself. To read each by itself would wake this process a million times a second.
#[derive(Debug)]
struct Leisurely<T>(T);

impl<T: Read> Read for Leisurely<T> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        thread::sleep(Duration::from_millis(1));
        self.0.read(bytes)
    }
}
