// SPDX-License-Identifier: MPL-2.0

//! Runs GStreamer's command line tools as child processes, with a timeout.

use std::env::args_os;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::command::plugin;
use crate::launch::{TOOL, not_started};
use crate::supervisor::supervise;
use crate::tool::or_end;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The names with which this program starts itself before it executes or supervises a tool.
const NAME: &str = "xmem-child";
const SUPERVISOR: &str = "xmem-supervisor";

/// A command for a tool that gets SIGINT when this process ends, even by SIGKILL. Otherwise it would keep a camera and a pool. The
/// kernel sends the signal when the thread that started the tool ends, so start it from a thread that lives as long as the tool.
pub(crate) fn dependent(tool: &str) -> Command {
    start(NAME, tool)
}

/// As [`dependent`], for a tool that completes a file at SIGINT: see [`supervise`].
pub(crate) fn supervised(tool: &str) -> Command {
    start(SUPERVISOR, tool)
}

fn start(name: &str, tool: &str) -> Command {
    let mut command = this_program(name, tool);
    if tool == TOOL {
        // Otherwise it would catch a crash and wait for a debugger, and nobody would learn that it plays no more.
        command.arg("--no-fault");
    }
    command
}

fn this_program(name: &str, tool: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(name)
        .arg(std::process::id().to_string())
        .arg(tool)
        // The tool's messages are searched for words.
        .env("LANGUAGE", "en")
        // Control characters are not printed.
        .env("GST_DEBUG_NO_COLOR", "1");
    plugin::offer(&mut command);
    command
}

/// Executes or supervises the tool if this process was started for it. Otherwise returns `None`.
pub(crate) fn become_tool() -> Option<Result<ExitCode, Error>> {
    let mut args = args_os();
    let name = args.next()?;
    if name != NAME && name != SUPERVISOR {
        return None;
    }
    let parent = args.next()?.to_str()?.parse().ok();
    let tool = args.next()?;
    let signal = set_parent_process_death_signal(Some(Signal::INT));
    Some(match signal {
        // The parent ended before the signal was set.
        Ok(()) if getppid().map(Pid::as_raw_pid) != parent => Err("its parent has ended".into()),
        Ok(()) if name == NAME => Err(not_started(Command::new(tool).args(args).exec())),
        Ok(()) => supervise(this_program(NAME, tool).args(args)),
        Err(error) => Err(error.into()),
    })
}

/// The time within which an interrupted pipeline must end.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between checks whether a tool has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The exit status of a tool, and its output.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a tool to its end. `None`: it did not end in this time and was killed. `Err`: it cannot be started.
pub(crate) fn run(command: &mut Command, time: Duration) -> io::Result<Option<Ended>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Read both streams while the tool runs: a full pipe would block it.
    let stdout = or_end(read(child.stdout.take()), &mut child)?;
    let stderr = or_end(read(child.stderr.take()), &mut child)?;
    let Some(status) = wait(&mut child, time)? else {
        child.kill()?;
        child.wait()?;
        return Ok(None);
    };
    Ok(Some(Ended {
        status,
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
    }))
}

fn wait(child: &mut Child, time: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        let status = child.try_wait()?;
        if status.is_some() || start.elapsed() > time {
            return Ok(status);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn read(pipe: Option<impl Read + Send + 'static>) -> io::Result<thread::JoinHandle<String>> {
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // Bytes that were read before an error are returned.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
