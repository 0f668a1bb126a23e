// SPDX-License-Identifier: MPL-2.0

//! The kernel refuses writes: by a consumer with its descriptors, and by another user without descriptors.
#![allow(unsafe_code)] // mappings, ptrace, process_vm_writev

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, chown};
use std::ptr::null_mut;

use rustix::fs::{
    FallocateFlags, Mode, OFlags, SealFlags, copy_file_range, fallocate, fcntl_add_seals,
    ftruncate, open, sendfile,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};
use rustix::pipe::{SpliceFlags, pipe, splice};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use support::child::{self, read_line, reply};
use support::raw::{self, Raw};
use support::users::{OWNER, STRANGER, User, can_be_others, program_for_all, set_mode};
use support::*;
use xmem_core::{Backing, Consumer, Producer, Sticky};

const SIZE: usize = 100_000;
const PAGE: usize = 4096;

/// Runs a role in a child process.
#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["tamper"] => {
            tamper(&pool);
            reply("done");
        }
        ["produce", mode, backing] => produce(&pool, mode, backing),
        ["pry", pid, dir] => reply(pry(&pool, pid.parse().unwrap(), dir).join(", ")),
        _ => panic!("no role {role}"),
    }
}

/// The attempts that were not refused.
#[derive(Default)]
struct Allowed(Vec<String>);

impl Allowed {
    fn attempt<T, E>(&mut self, what: &str, result: Result<T, E>) {
        if result.is_ok() {
            self.0.push(what.to_owned());
        }
    }
}

/// Maps a page of a descriptor with this protection.
fn map(fd: impl AsFd, prot: ProtFlags) -> Result<*mut std::ffi::c_void, Errno> {
    // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing.
    unsafe { mmap(null_mut(), PAGE, prot, MapFlags::SHARED, fd, 0) }
}

/// Tries to resize a descriptor's memory, or to remove its pages.
fn resize(fd: BorrowedFd<'_>, allowed: &mut Allowed) {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    allowed.attempt("shrink", ftruncate(fd, 0));
    allowed.attempt(
        "cut one page off",
        ftruncate(fd, fs::metadata(&path).unwrap().len() - 1),
    );
    allowed.attempt("extend", ftruncate(fd, 1 << 30));
    allowed.attempt(
        "allocate behind the end",
        fallocate(fd, FallocateFlags::empty(), 1 << 30, 1),
    );
    let truncate = OpenOptions::new().write(true).truncate(true).open(&path);
    allowed.attempt("open and truncate", truncate);
    allowed.attempt("seal", fcntl_add_seals(fd, SealFlags::WRITE));
}

/// Tries to change the content of a descriptor's memory.
fn write(fd: BorrowedFd<'_>, allowed: &mut Allowed) {
    allowed.attempt("write", rustix::io::write(fd, b"x"));
    allowed.attempt("pwrite", rustix::io::pwrite(fd, b"x", 0));
    let vector = [std::io::IoSlice::new(b"x")];
    allowed.attempt("pwritev", rustix::io::pwritev(fd, &vector, 0));
    for (what, flags) in [
        (
            "punch",
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        ),
        ("zero", FallocateFlags::ZERO_RANGE),
        ("collapse", FallocateFlags::COLLAPSE_RANGE),
        ("insert", FallocateFlags::INSERT_RANGE),
    ] {
        allowed.attempt(what, fallocate(fd, flags, 0, PAGE as u64));
    }

    // By a system call that writes.
    let file = File::open("/proc/self/exe").unwrap();
    allowed.attempt("sendfile", sendfile(fd, &file, Some(&mut 0), 8));
    let copied = copy_file_range(&file, Some(&mut 0), fd, Some(&mut 0), 8);
    allowed.attempt("copy_file_range", copied);
    let (read_end, write_end) = pipe().unwrap();
    rustix::io::write(&write_end, b"xxxx").unwrap();
    let spliced = splice(&read_end, None, fd, Some(&mut 0), 4, SpliceFlags::empty());
    allowed.attempt("splice", spliced);

    // Through a mapping.
    let both = ProtFlags::READ | ProtFlags::WRITE;
    allowed.attempt("map for writing", map(fd, both));
    allowed.attempt("map for writing only", map(fd, ProtFlags::WRITE));
    let page = map(fd, ProtFlags::READ).unwrap();
    // SAFETY: this page was mapped above, and nothing refers to it.
    unsafe {
        allowed.attempt("remove pages", madvise(page, PAGE, Advice::LinuxRemove));
        let more = MprotectFlags::READ | MprotectFlags::WRITE;
        allowed.attempt("make a mapping writable", mprotect(page, PAGE, more));
    }
    // For debuggers, the kernel also writes to read-only mappings.
    let memory = OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    allowed.attempt(
        "write to /proc/self/mem",
        memory.write_at(b"x", page as u64),
    );
    // The kernel writes as part of a read.
    // SAFETY: as above; the kernel checks the address.
    let read = unsafe { libc::read(fs::File::open("/dev/zero").unwrap().as_raw_fd(), page, 8) };
    if read >= 0 {
        allowed.attempt("read into it", Ok::<_, ()>(()));
    }
    // SAFETY: as above.
    unsafe { munmap(page, PAGE) }.unwrap();
}

/// Handles for a memory: the received one, and ones that are opened again.
fn handles(fd: &OwnedFd) -> Vec<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mut handles = vec![fd.try_clone().unwrap()];
    for flags in [OFlags::RDWR, OFlags::WRONLY, OFlags::RDWR | OFlags::APPEND] {
        // Opening may already be refused.
        handles.extend(open(&path, flags | OFlags::CLOEXEC, Mode::empty()));
    }
    handles
}

/// Joins, and tries to change all received memory.
fn tamper(pool: &str) {
    let (raw, joined) = Raw::join(pool, 1);
    raw.send(&raw::get_region(1), &[]).unwrap();
    let region = raw.recv_kind(3).1.remove(0);
    raw.send(&raw::get_sticky(2), &[]).unwrap();
    let sticky = raw.recv_kind(5).1.remove(0);
    for (what, memory) in [
        ("region", &region),
        ("control memory", &joined.control),
        ("sticky state", &sticky),
    ] {
        let mut allowed = Allowed::default();
        for fd in handles(memory) {
            // Not every handle can read the memory.
            if rustix::io::pread(&fd, &mut [0], 0).is_ok() {
                write(fd.as_fd(), &mut allowed);
            } else {
                allowed.attempt("write", rustix::io::write(&fd, b"x"));
            }
            resize(fd.as_fd(), &mut allowed);
        }
        assert_eq!(allowed.0, Vec::<String>::new(), "{what}");
    }
    let mut allowed = Allowed::default();
    for fd in handles(&joined.page) {
        resize(fd.as_fd(), &mut allowed);
    }
    assert_eq!(allowed.0, Vec::<String>::new(), "lease page");
    // The consumer can write its own page, and punch holes into it.
    write(joined.page.as_fd(), &mut allowed);
    for what in ["pwrite", "punch", "map for writing", "remove pages"] {
        assert!(
            allowed.0.iter().any(|was| was == what),
            "{what}: {:?}",
            allowed.0
        );
    }
}

/// Asserts that a frame of a pool does not change while another process tries to write it.
fn stays_whole(place: &Place, mode: u32, tamper: impl FnOnce()) {
    let builder = Producer::builder(place.pool()).socket_mode(mode);
    let producer = builder.build().unwrap();
    producer.set_sticky(&Sticky::new()).unwrap();
    let own = publish(&producer, 1, SIZE);
    let mut bystander = Consumer::builder(place.pool()).connect().unwrap();
    publish(&producer, 2, SIZE);
    let held = receive(&mut bystander);
    tamper();
    assert_frame(&own, 1, SIZE);
    assert_frame(&held, 2, SIZE);
    for seed in 3..100 {
        publish(&producer, seed, SIZE);
        assert_frame(&receive(&mut bystander), seed, SIZE);
    }
}

#[test]
fn a_consumer_can_change_neither_frames_nor_control_memory() {
    let place = Place::new();
    stays_whole(&place, 0o600, || tamper(&place.pool()));
}

#[test]
fn a_consumer_of_another_user_can_change_no_memory() {
    if !can_be_others() {
        return;
    }
    let place = Place::new();
    let program = program_for_all(place.path());
    stays_whole(&place, 0o666, || {
        User::new(STRANGER)
            .start(&program, "tamper", &place.pool())
            .done();
    });
}

fn produce(pool: &str, mode: &str, backing: &str) {
    let backing = match backing {
        "posix-shm" => Backing::PosixShm,
        _ => Backing::Memfd,
    };
    let producer = Producer::builder(pool)
        .socket_mode(u32::from_str_radix(mode, 8).unwrap())
        .backing(backing)
        .build()
        .unwrap();
    publish(&producer, 1, SIZE);
    reply("ready");
    read_line();
}

/// Tries to access a pool's memory without permission. Returns the successful attempts.
fn pry(pool: &str, pid: i32, dir: &str) -> Vec<String> {
    let mut allowed = Allowed::default();
    allowed.attempt("join", Consumer::builder(pool).connect());
    allowed.attempt("ask", xmem_core::discovery::query(pool));
    allowed.attempt("list the directory", fs::read_dir(dir));
    allowed.attempt("make a file", File::create(format!("{dir}/file")));
    allowed.attempt("remove the socket", fs::remove_file(pool));
    allowed.attempt(
        "remove the lock",
        fs::remove_file(pool.replace(".sock", ".lock")),
    );

    let proc = format!("/proc/{pid}");
    allowed.attempt("list descriptors", fs::read_dir(format!("{proc}/fd")));
    allowed.attempt("list mappings", fs::read_dir(format!("{proc}/map_files")));
    for fd in 0..64 {
        for (how, writable) in [("read", false), ("write", true)] {
            let file = OpenOptions::new()
                .read(!writable)
                .write(writable)
                .open(format!("{proc}/fd/{fd}"));
            allowed.attempt(&format!("{how} a descriptor"), file);
        }
    }
    allowed.attempt("read its memory", File::open(format!("{proc}/mem")));
    let memory = OpenOptions::new().write(true).open(format!("{proc}/mem"));
    allowed.attempt("write its memory", memory);

    let pid = Pid::from_raw(pid).unwrap();
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        for fd in 3..64 {
            let taken = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty());
            allowed.attempt("take a descriptor", taken);
        }
    }
    let mut byte = 0_u8;
    let own = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // An unmapped address: the error depends on the permission to access the process.
    let theirs = libc::iovec {
        iov_base: null_mut(),
        iov_len: 1,
    };
    // SAFETY: each is given one vector; the kernel checks addresses in the other process.
    let wrote = unsafe { libc::process_vm_writev(pid.as_raw_pid(), &own, 1, &theirs, 1, 0) };
    let error = std::io::Error::last_os_error();
    assert_eq!(wrote, -1);
    if error.raw_os_error() != Some(libc::EPERM) {
        allowed.attempt("process_vm_writev", Ok::<_, ()>(()));
    }
    // SAFETY: passes no addresses. The process continues when this one ends.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid.as_raw_pid(), 0, 0) };
    if traced == 0 {
        allowed.attempt("ptrace", Ok::<_, ()>(()));
    }

    for entry in fs::read_dir("/dev/shm").unwrap().flatten() {
        let name = entry.file_name();
        // Segments of other tests may appear and disappear.
        if name
            .to_string_lossy()
            .starts_with(&format!("xmem-{OWNER}-"))
        {
            allowed.attempt("read a segment", File::open(entry.path()));
            let file = OpenOptions::new().write(true).open(entry.path());
            allowed.attempt(
                "write a segment",
                file.and_then(|mut file| file.write(b"x")),
            );
            allowed.attempt("remove a segment", fs::remove_file(entry.path()));
        }
    }
    allowed.0.sort();
    allowed.0.dedup();
    allowed.0
}

/// A directory that only this user can enter, with a pool.
fn pried_by(user: &User, backing: &str) -> String {
    let outer = Place::new();
    let program = program_for_all(outer.path());
    let place = Place::new();
    chown(place.path(), Some(OWNER), Some(OWNER)).unwrap();
    set_mode(place.path(), 0o700);
    let role = format!("produce 600 {backing}");
    let producer = User::new(OWNER)
        .start(&program, &role, &place.pool())
        .ready();
    let role = format!("pry {} {}", producer.pid(), place.path().display());
    let mut child = user.start(&program, &role, &place.pool());
    let reply = child.reply();
    assert!(child.end());
    assert!(producer.end());
    reply
}

#[test]
fn a_user_that_was_refused_reaches_no_memory() {
    if !can_be_others() {
        return;
    }
    for backing in ["memfd", "posix-shm"] {
        // As main group, as additional group, or not at all.
        for user in [
            User::new(STRANGER),
            User::in_groups(STRANGER, OWNER, &[]),
            User::in_groups(STRANGER, STRANGER, &[OWNER]),
        ] {
            assert_eq!(pried_by(&user, backing), "", "{user:?}, {backing}");
        }
    }
    // Control test: the same user succeeds with most attempts. Debugging also depends on another kernel setting.
    let reply = pried_by(&User::new(OWNER), "posix-shm");
    for what in [
        "ask",
        "join",
        "list descriptors",
        "list the directory",
        "make a file",
        "read a descriptor",
        "read a segment",
        "remove a segment",
        "write a segment",
    ] {
        assert!(reply.split(", ").any(|was| was == what), "{what}: {reply}");
    }
}
