// SPDX-License-Identifier: MPL-2.0

//! A separate /dev/shm that can be filled, and a separate clock, without effects on other processes of the machine.
#![allow(unsafe_code)] // unshare, and the code of a child process between fork and exec

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, statvfs};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const SHM: &str = "/dev/shm";
const BALLAST: &str = "/dev/shm/ballast";

/// Mounts a separate /dev/shm for this process and its children. Must be called before other threads are started.
pub(crate) fn own_shm(megabytes: u64) -> io::Result<()> {
    // SAFETY: this is the only thread, and it has no open file that the new namespace affects.
    let unshare = |flags| unsafe { unshare_unsafe(flags) };
    if unshare(UnshareFlags::NEWNS).is_err() {
        // Without root: root of a new user namespace has the right to mount.
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write(
            "/proc/self/uid_map",
            format!("{uid} {uid} 1", uid = uid.as_raw()),
        )?;
        fs::write(
            "/proc/self/gid_map",
            format!("{gid} {gid} 1", gid = gid.as_raw()),
        )?;
    }
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
    )?;
    let size = std::ffi::CString::new(format!("size={megabytes}m"))?;
    mount(
        "xmem-faults",
        SHM,
        "tmpfs",
        MountFlags::empty(),
        size.as_c_str(),
    )?;
    Ok(())
}

/// Allocates all free memory of the separate /dev/shm.
pub(crate) fn fill_shm() -> io::Result<()> {
    let file = open(
        BALLAST,
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?;
    let mut taken = 0;
    // Repeat: other processes allocate and free memory at the same time.
    loop {
        let stat = statvfs(SHM)?;
        let free = stat.f_bavail * stat.f_frsize;
        if free == 0 || fallocate(&file, FallocateFlags::empty(), taken, free).is_err() {
            return Ok(());
        }
        taken += free;
    }
}

pub(crate) fn empty_shm() {
    let _ = fs::remove_file(BALLAST);
}

/// Runs the command in a time namespace whose CLOCK_MONOTONIC is ahead, as in a container.
pub(crate) fn with_clock_ahead(command: &mut Command, seconds: u64) {
    let offset = format!("monotonic {seconds} 0\n");
    let enter = move || {
        // SAFETY: the child has one thread. It enters the namespace at exec.
        unsafe { unshare_unsafe(UnshareFlags::NEWTIME) }?;
        let file = open("/proc/self/timens_offsets", OFlags::WRONLY, Mode::empty())?;
        rustix::io::write(&file, offset.as_bytes())?;
        Ok(())
    };
    // SAFETY: the closure only makes system calls and does not allocate.
    unsafe { command.pre_exec(enter) };
}

/// Whether this process can create time namespaces that children enter at exec.
pub(crate) fn clocks_can_differ() -> bool {
    let mut command = Command::new("readlink");
    command.arg("/proc/self/ns/time");
    with_clock_ahead(&mut command, 1000);
    let theirs = command.output().map(|output| output.stdout);
    let ours = fs::read_link("/proc/self/ns/time");
    match (theirs, ours) {
        (Ok(theirs), Ok(ours)) => {
            let theirs = String::from_utf8_lossy(&theirs);
            !theirs.trim().is_empty() && theirs.trim() != ours.to_string_lossy()
        }
        _ => false,
    }
}
