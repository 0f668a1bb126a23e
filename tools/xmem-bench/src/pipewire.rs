// SPDX-License-Identifier: MPL-2.0

//! The daemon of PipeWire with its session manager, for one run.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;

/// The name of the producer's node, by which consumers find it.
pub(crate) const NODE: &str = "xmem-bench";

const PROGRAMS: [&str; 3] = ["dbus-daemon", "pipewire", "wireplumber"];
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The first of the programs that this system does not have.
pub(crate) fn missing_program() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_missing =
        |name: &&str| !std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    PROGRAMS.into_iter().find(is_missing)
}

/// The running programs. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Session(Vec<Child>);

impl Session {
    /// Starts the programs, with their sockets in this folder.
    pub(crate) fn start(dir: &Path) -> Result<Self, Error> {
        let mut session = Self(Vec::new());
        let [bus, daemon, manager] = PROGRAMS;
        let mut start = |name: &str, args: &[String]| -> Result<(), Error> {
            let mut program = Command::new(name);
            join(&mut program, dir);
            program
                .args(args)
                .env("HOME", dir)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            for key in ["XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
                program.env_remove(key);
            }
            session.0.push(program.spawn()?);
            Ok(())
        };
        let address = format!("--address={}", address(dir));
        start(bus, &["--session".into(), "--nofork".into(), address])?;
        until_there(&dir.join("bus"))?;
        start(daemon, &[])?;
        until_there(&dir.join("pipewire-0"))?;
        start(manager, &[])?;
        Ok(session)
    }
}

fn address(dir: &Path) -> String {
    format!("unix:path={}", dir.join("bus").display())
}

/// Makes a program use the session in this folder.
pub(crate) fn join(program: &mut Command, dir: &Path) {
    program
        .env("XDG_RUNTIME_DIR", dir)
        .env("DBUS_SESSION_BUS_ADDRESS", address(dir))
        .env_remove("PIPEWIRE_RUNTIME_DIR");
}

fn until_there(path: &Path) -> Result<(), Error> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > START_TIMEOUT {
            return Err(format!("nothing listens at {}", path.display()).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Drop for Session {
    fn drop(&mut self) {
        for program in self.0.iter_mut().rev() {
            // Fails only if the program has already ended.
            let _ = kill_process(Pid::from_child(program), Signal::TERM);
            let _ = program.wait();
        }
    }
}
