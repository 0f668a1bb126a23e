// SPDX-License-Identifier: MPL-2.0

//! Files of other users at the paths of a pool's files and directory: an error names them, and they are not changed.

mod support;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use support::child::{self, Child, reply};
use support::raw::Fake;
use support::users::{
    OWNER, STRANGER, User, can_be_others, program_for_all, set_mode, with_own_tmp,
};
use support::*;
use xmem_core::discovery::{other_runtime_dirs_with, pools, query, runtime_dir};
use xmem_core::{Consumer, Producer};

/// Runs a role in a child process.
#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    // A wait without end, for example for a FIFO, fails the test.
    std::thread::spawn(|| {
        std::thread::sleep(HANG);
        eprintln!("hangs");
        std::process::exit(1);
    });
    match role.as_str() {
        "produce" => produce(&pool),
        "look" => look(&pool),
        "remove" => reply(xmem_core::discovery::remove_stale(&pool).unwrap_err()),
        "in-own-tmp" => runtime_dirs(),
        "elsewhere" => {
            let elsewhere = other_runtime_dirs_with("p");
            reply(elsewhere.iter().any(|dir| dir.is_relative()));
        }
        other => panic!("no role {other}"),
    }
}

/// Creates a pool, or reports the error.
fn produce(pool: &str) {
    match Producer::builder(pool).build() {
        Ok(producer) => {
            publish(&producer, 1, 1000);
            reply("ready");
            drop(producer);
        }
        Err(error) => reply(error),
    }
}

/// Reads a pool and a runtime directory from outside.
fn look(pool: &str) {
    let joined = Consumer::builder(pool).connect().map(drop);
    let asked = query(pool).map(drop);
    let live = pools().iter().filter(|entry| entry.live).count();
    for answer in [joined, asked] {
        reply(answer.map_or_else(|error| error.to_string(), |()| "joined".into()));
    }
    reply(format!("{live} live"));
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    // The umask removed some of the permissions.
    set_mode(path, 0o666);
}

/// The properties of a file, without opening it.
fn state_of(path: &Path) -> (u64, u32, u32, u64, i64) {
    let meta = fs::symlink_metadata(path).unwrap();
    (
        meta.ino(),
        meta.uid(),
        meta.mode(),
        meta.len(),
        meta.mtime_nsec(),
    )
}

/// A directory that all users can write to, without the sticky bit.
struct Common {
    place: Place,
    program: PathBuf,
}

impl Common {
    fn new() -> Self {
        let place = Place::new();
        let program = program_for_all(place.path());
        set_mode(place.path(), 0o777);
        Self { place, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn start(&self, uid: u32, role: &str) -> Child {
        User::new(uid).start(&self.program, role, &self.place.pool())
    }

    /// Asserts that a producer reports this error and does not change the file at the path, and that readers do not either.
    #[track_caller]
    fn refuses(&self, trap: &Path, words: &[&str]) {
        let before = state_of(trap);
        for uid in [OWNER, 0] {
            let mut child = self.start(uid, "produce");
            let reply = child.reply();
            assert!(child.end());
            for word in words {
                assert!(reply.contains(word), "{uid}: no {word:?} in: {reply}");
            }
            assert_contains(&reply, trap.to_str().unwrap());
            let mut child = self.start(uid, "look");
            for _ in 0..3 {
                assert_ne!(child.reply(), "joined");
            }
            assert!(child.end());
        }
        assert_eq!(state_of(trap), before, "{} was changed", trap.display());
        // The attempt leaves no files.
        let mut expected = vec![trap.to_owned(), self.program.clone()];
        expected.sort();
        assert_eq!(self.place.files(), expected);
    }
}

#[test]
fn a_foreign_lock_file_is_left_unchanged() {
    if !can_be_others() {
        return;
    }
    for (kind, words) in [
        ("a FIFO", "is not a pool's lock file"),
        ("a link", "is not a pool's lock file"),
        ("a link to nowhere", "is not a pool's lock file"),
        ("a directory", "is not a pool's lock file"),
        ("a socket", "is not a pool's lock file"),
        ("a device", "is not a pool's lock file"),
        ("a file of two names", "is not a pool's lock file"),
        ("an empty file", "belongs to user 42102"),
        ("another user's lock", "belongs to user 42102"),
        ("a file without permissions", "belongs to user 42102"),
    ] {
        println!("{kind}");
        let common = Common::new();
        let lock = common.path("p.lock");
        let elsewhere = Place::new();
        let secret = elsewhere.path().join("secret");
        fs::write(&secret, "").unwrap();
        set_mode(elsewhere.path(), 0o777);
        set_mode(&secret, 0o666);
        let mode = |mode| set_mode(&lock, mode);
        match kind {
            "a FIFO" => fifo(&lock),
            "a link" => symlink(&secret, &lock).unwrap(),
            "a link to nowhere" => symlink(elsewhere.path().join("new"), &lock).unwrap(),
            "a directory" => fs::create_dir(&lock).unwrap(),
            "a socket" => {
                drop(Fake::at(&lock));
                mode(0o666);
            }
            "a device" => {
                let zero = rustix::fs::makedev(1, 5);
                mknodat(CWD, &lock, FileType::CharacterDevice, Mode::empty(), zero).unwrap();
                mode(0o666);
            }
            "a file of two names" => fs::hard_link(&secret, &lock).unwrap(),
            "another user's lock" => fs::write(&lock, "gst-launch (process 4711)").unwrap(),
            _ => fs::write(&lock, "").unwrap(),
        }
        if lock.symlink_metadata().unwrap().is_file() && !kind.contains("two names") {
            chown(&lock, Some(STRANGER), Some(STRANGER)).unwrap();
            mode(if kind.contains("without permissions") {
                0
            } else {
                0o666
            });
        }
        common.refuses(&lock, &[words, "another pool name"]);
        assert_eq!(fs::read_to_string(&secret).unwrap(), "");
        assert!(!elsewhere.path().join("new").exists());
    }
}

#[test]
fn a_lock_held_by_another_user_is_an_error() {
    if !can_be_others() {
        return;
    }
    let common = Common::new();
    let lock = common.path("p.lock");
    fs::write(&lock, "\x1b[2Jme (process 1)").unwrap();
    chown(&lock, Some(STRANGER), None).unwrap();
    set_mode(&lock, 0o666);
    let file = fs::File::open(&lock).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut child = common.start(OWNER, "produce");
    let reply = child.reply();
    assert_contains(&reply, "already has a producer, \u{fffd}[2Jme (process 1)");
    assert!(child.end());
}

#[test]
fn a_producer_whose_socket_was_removed_is_named() {
    let place = Place::new();
    let build = || Producer::builder(place.pool()).build();
    let producer = build().unwrap();
    fs::remove_file(producer.socket_path()).unwrap();
    let text = build().unwrap_err().to_string();
    let pid = format!(
        "(process {}), whose socket file is missing",
        std::process::id()
    );
    assert_contains(&text, &pid);
}

#[test]
fn a_foreign_socket_is_left_unchanged() {
    if !can_be_others() {
        return;
    }
    for (kind, words) in [
        ("a FIFO", "is not a socket"),
        ("a link to a socket", "is not a socket"),
        ("a file", "is not a socket"),
        ("a dead socket", "belongs to user 42102"),
        ("a living socket", "already has a producer"),
    ] {
        println!("{kind}");
        let common = Common::new();
        let socket = common.path("p.sock");
        let elsewhere = Place::new();
        let target = elsewhere.path().join("socket");
        let mut living = Some(Fake::at(&target));
        match kind {
            "a FIFO" => fifo(&socket),
            "a link to a socket" => symlink(&target, &socket).unwrap(),
            "a file" => fs::write(&socket, "mine").unwrap(),
            _ => {
                living = Some(Fake::at(&socket));
                chown(&socket, Some(STRANGER), None).unwrap();
                set_mode(&socket, 0o666);
            }
        }
        if kind == "a living socket" {
            // The peer never answers. A query has a timeout.
            common.refuses_a_living(&socket, words);
        } else {
            drop(living.take());
            common.refuses(&socket, &[words, "another pool name"]);
        }
        drop(living);
    }
}

impl Common {
    fn refuses_a_living(&self, socket: &Path, words: &str) {
        let before = state_of(socket);
        let mut child = self.start(OWNER, "produce");
        let reply = child.reply();
        assert_contains(&reply, words);
        assert!(child.end());
        assert_eq!(state_of(socket), before);
    }
}

/// Starts the pool's owner, with the default runtime directory.
fn replies_of_owner(program: &Path, role: &str) -> Vec<String> {
    let mut child = User::new(OWNER).start(program, role, "p");
    let reply = std::iter::from_fn(|| child.next_line()).collect();
    assert!(child.end(), "{reply:?}");
    reply
}

/// In a mount namespace with a separate /tmp: the default runtime directory, replaced by other users.
fn runtime_dirs() {
    assert_eq!(
        fs::read_dir("/tmp").unwrap().count(),
        0,
        "a /tmp of one's own"
    );
    fs::create_dir("/tmp/bin").unwrap();
    let program = program_for_all(Path::new("/tmp/bin"));
    let dir = PathBuf::from(format!("/tmp/xmem-{OWNER}"));
    assert_eq!(runtime_dir(), Path::new("/tmp/xmem-0"));

    // The path was free.
    assert_eq!(replies_of_owner(&program, "produce"), ["ready"]);
    let meta = fs::symlink_metadata(&dir).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (OWNER, 0o700));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    fs::remove_dir(&dir).unwrap();

    // The path was taken. Each trap: description, owner, error, and the paths where no file may be created.
    let elsewhere = Path::new("/tmp/elsewhere");
    let make_dir = |path: &Path, uid, mode| {
        fs::create_dir(path).unwrap();
        chown(path, Some(uid), Some(uid)).unwrap();
        set_mode(path, mode);
    };
    for (kind, words) in [
        ("a directory of another user", "belongs to user 42102"),
        ("their directory, open for all", "belongs to user 42102"),
        ("their directory, open and sticky", "belongs to user 42102"),
        ("a link to their directory", "not a directory"),
        ("a link to one's own directory", "not a directory"),
        ("a link to nowhere", "not a directory"),
        ("a file", "not a directory"),
        ("a FIFO", "not a directory"),
        ("one's own, open for all", "others may write to it"),
        ("one's own, open for the group", "others may write to it"),
    ] {
        let mut inside = dir.as_path();
        match kind {
            "a directory of another user" => make_dir(&dir, STRANGER, 0o755),
            "their directory, open for all" => make_dir(&dir, STRANGER, 0o777),
            "their directory, open and sticky" => make_dir(&dir, STRANGER, 0o1777),
            "a link to their directory" | "a link to one's own directory" => {
                let uid = if kind.contains("own") {
                    OWNER
                } else {
                    STRANGER
                };
                make_dir(elsewhere, uid, 0o777);
                symlink(elsewhere, &dir).unwrap();
                inside = elsewhere;
            }
            "a link to nowhere" => symlink(elsewhere, &dir).unwrap(),
            "a file" => fs::write(&dir, "mine").unwrap(),
            "a FIFO" => fifo(&dir),
            "one's own, open for all" => make_dir(&dir, OWNER, 0o777),
            _ => make_dir(&dir, OWNER, 0o770),
        }
        // Traps for a consumer: a socket that answers, and a lock that is never released.
        let trap = fs::metadata(inside)
            .is_ok_and(|meta| meta.is_dir())
            .then(|| {
                fifo(&inside.join("p.lock"));
                Fake::at(inside.join("p.sock"))
            });
        let before = state_of(&dir);
        for role in ["produce", "look"] {
            let reply = replies_of_owner(&program, role);
            for reply in &reply[..if role == "look" { 2 } else { 1 }] {
                assert!(
                    reply.contains(words) && reply.contains("XMEM_RUNTIME_DIR"),
                    "{kind}: {role}: {reply}"
                );
            }
            if role == "look" {
                assert_eq!(reply[2], "0 live", "{kind}");
            }
        }
        assert_eq!(state_of(&dir), before, "{kind}: it was changed");
        match trap {
            Some(_) => {
                assert_eq!(fs::read_dir(inside).unwrap().count(), 2, "{kind}");
                let socket = fs::symlink_metadata(inside.join("p.sock")).unwrap();
                assert!(socket.file_type().is_socket(), "{kind}");
            }
            None => assert!(!elsewhere.exists(), "{kind}: it was followed"),
        }
        // Nothing remains at the path of the next trap.
        for path in [dir.as_path(), elsewhere] {
            let _ = fs::remove_file(path);
            let _ = fs::remove_dir_all(path);
        }
    }

    reply("done");
}

#[test]
fn a_default_runtime_dir_of_another_user_is_refused() {
    if !can_be_others() {
        return;
    }
    let Some(mut command) = with_own_tmp() else {
        return;
    };
    for name in ["XMEM_RUNTIME_DIR", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    Child::from(command, "in-own-tmp", "p").done();
}

/// `su` keeps the variable.
#[test]
fn no_runtime_dir_is_made_in_the_directory_of_another_user() {
    if !can_be_others() {
        return;
    }
    let place = Place::new();
    chown(place.path(), Some(4242), None).unwrap();
    let produce = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env_remove("XMEM_RUNTIME_DIR")
            .env("XDG_RUNTIME_DIR", place.path());
        Child::from(command, "produce", "p").reply()
    };
    let error = produce();
    assert_contains(&error, "which belongs to user 4242");
    assert_contains(&error, "set XMEM_RUNTIME_DIR");
    assert_eq!(place.files(), [] as [std::path::PathBuf; 0]);
    chown(place.path(), Some(0), None).unwrap();
    assert_eq!(produce(), "ready");
}

/// A socket in the current directory of the process is not in a runtime directory.
#[test]
fn a_relative_runtime_directory_is_ignored() {
    let place = Place::new();
    for (variable, there) in [("", "xmem"), ("relative", "relative/xmem")] {
        fs::create_dir_all(place.path().join(there)).unwrap();
        fs::write(place.path().join(there).join("p.sock"), "").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .current_dir(place.path())
            .env_remove("XMEM_RUNTIME_DIR")
            .env("XDG_RUNTIME_DIR", variable);
        let mut child = Child::from(command, "elsewhere", &place.pool());
        assert_eq!(child.reply(), "false", "{variable:?}");
    }
}

#[test]
fn stale_files_of_another_user_are_not_removed() {
    if !can_be_others() {
        return;
    }
    let place = Place::new();
    let pool = place.pool();
    drop(std::os::unix::net::UnixListener::bind(&pool).unwrap());
    let lock = || fs::write(place.path().join("p.lock"), "killed (process 1)").unwrap();
    lock();
    chown(&pool, Some(4242), None).unwrap();
    let error = xmem_core::discovery::remove_stale(&pool).unwrap_err();
    assert!(
        matches!(error, xmem_core::RemoveError::Foreign { uid: 4242, .. }),
        "{error}"
    );
    assert!(std::path::Path::new(&pool).exists());
    chown(&pool, Some(0), None).unwrap();
    lock();
    assert_eq!(xmem_core::discovery::remove_stale(&pool).unwrap().len(), 2);
    assert!(!std::path::Path::new(&pool).exists());
}

#[test]
fn a_live_pool_of_another_user_is_reported() {
    if !can_be_others() {
        return;
    }
    let place = Place::new();
    let program = program_for_all(place.path());
    let builder = Producer::builder(place.pool()).socket_mode(0o666);
    let _producer = builder.build().unwrap();
    let mut child = User::new(OWNER).start(&program, "remove", &place.pool());
    let reply = child.reply();
    assert_contains(&reply, "has a producer");
    assert_contains(&reply, "user 0");
    assert!(child.end());
}
