// SPDX-License-Identifier: MPL-2.0

//! A /dev/shm that can be filled up, and clocks that are ahead, without disturbing the machine.
#![allow(unsafe_code)] // unshare, and what a child does before it becomes another program

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, statvfs};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const SHM: &str = "/dev/shm";
const BALLAST: &str = "/dev/shm/ballast";

/// Gives this process and its children a /dev/shm of their own. To be called before there are other threads.
pub(crate) fn own_shm(megabytes: u64) -> io::Result<()> {
    // SAFETY: this is the only thread, and it has nothing open whose meaning changes.
    let unshare = |flags| unsafe { unshare_unsafe(flags) };
    if unshare(UnshareFlags::NEWNS).is_err() {
        // Not root: root of a user namespace may mount, too.
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

/// Takes all the room that is left in our /dev/shm.
pub(crate) fn fill_shm() -> io::Result<()> {
    let file = open(
        BALLAST,
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?;
    let mut taken = 0;
    // Others take and give back meanwhile.
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

/// Has the program run in a time namespace whose CLOCK_MONOTONIC is ahead, as in a container.
pub(crate) fn with_clock_ahead(command: &mut Command, seconds: u64) {
    let offset = format!("monotonic {seconds} 0\n");
    let enter = move || {
        // SAFETY: the child has one thread; the namespace is entered at exec.
        unsafe { unshare_unsafe(UnshareFlags::NEWTIME) }?;
        let file = open("/proc/self/timens_offsets", OFlags::WRONLY, Mode::empty())?;
        rustix::io::write(&file, offset.as_bytes())?;
        Ok(())
    };
    // SAFETY: the closure makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(enter) };
}

/// Whether such namespaces can be made here, and are entered at exec.
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
