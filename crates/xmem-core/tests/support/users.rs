// SPDX-License-Identifier: MPL-2.0

//! Processes of other users. Only root can start them, by setpriv(1).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::child::Child;

/// Prints that a test did not run. `cargo xtask test` lists it at the end.
pub fn not_run(why: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let line = format!("{}: {why}", thread.name().unwrap_or("a test"));
    eprintln!("NOT RUN: {line}");
    if let Some(file) = std::env::var_os("XMEM_NOT_RUN") {
        let file = std::fs::OpenOptions::new().append(true).open(file);
        // One write, because tests run in parallel.
        file.unwrap()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }
}

/// Whether this process can change its user. Root in a container may not be able to.
pub fn may_be_others() -> bool {
    let setpriv = |args: &[&str]| {
        let output = Command::new("setpriv").args(args).arg("true").output();
        output.is_ok_and(|output| output.status.success())
    };
    setpriv(&["--reuid=4242", "--regid=4242", "--clear-groups"])
}

/// Whether this process can start processes of other users. Prints a message if not.
pub fn can_be_others() -> bool {
    let can = may_be_others();
    if !can {
        not_run("only root can start processes of other users");
    }
    can
}

/// The user of a producer. Users of tests need no names on the system.
pub const OWNER: u32 = 42_101;
/// An unrelated user.
pub const STRANGER: u32 = 42_102;

/// The user and groups of a process.
#[derive(Debug, Clone)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// Groups besides the main group.
    pub groups: Vec<u32>,
}

impl User {
    /// A user with a separate main group.
    pub fn new(uid: u32) -> Self {
        Self::in_groups(uid, uid, &[])
    }

    pub fn in_groups(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self {
            uid,
            gid,
            groups: groups.to_vec(),
        }
    }

    /// Starts the test `child` of this program as this user. `program` is a copy that all users can run.
    pub fn start(&self, program: &Path, role: &str, pool: &str) -> Child {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={}", self.uid))
            .arg(format!("--regid={}", self.gid));
        if self.groups.is_empty() {
            command.arg("--clear-groups");
        } else {
            let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
            command.arg(format!("--groups={}", groups.join(",")));
        }
        command.arg(program).current_dir("/");
        Child::from(command, role, pool)
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Copies this program to a path where all users can run it.
pub fn program_for_all(dir: &Path) -> PathBuf {
    let program = dir.join("program");
    // In another process: a child that another test starts at the same time would inherit the copy's open descriptor until its own
    // exec, and a file that is open for writing cannot be executed (ETXTBSY).
    let this = format!("/proc/{}/exe", std::process::id());
    let status = Command::new("cp").arg(this).arg(&program).status();
    assert!(status.unwrap().success());
    for path in [dir, &program] {
        set_mode(path, 0o755);
    }
    program
}

/// The command prefix that runs a program in namespaces of this kind, by `unshare` with these arguments. Returns `None` and prints a
/// message if they are not available.
pub fn in_namespace(kind: &str, args: &[&str]) -> Option<Command> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(args);
        command
    };
    let works = unshare().arg("/bin/true").current_dir("/").output();
    if !works.is_ok_and(|output| output.status.success()) {
        not_run(&format!("there is no {kind} namespace to be had"));
        return None;
    }
    Some(unshare())
}

/// As `in_namespace`, with new PID and IPC namespaces.
pub fn in_pid_namespace() -> Option<Command> {
    let args = ["--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"];
    in_namespace("PID", &args)
}

/// A command that runs this program in a mount namespace with an empty /tmp and /dev/shm. Returns `None` and prints a message if
/// namespaces are not available.
pub fn with_own_tmp() -> Option<Command> {
    // The program may be in /tmp.
    const SCRIPT: &str = "exec 9<\"$0\" && mount -t tmpfs -o mode=1777 tmpfs /tmp \
        && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec /proc/self/fd/9 \"$@\"";
    let mut command = in_namespace("mount", &["--mount", "sh", "-c", SCRIPT])?;
    command
        .arg(std::env::current_exe().unwrap())
        .current_dir("/");
    Some(command)
}
