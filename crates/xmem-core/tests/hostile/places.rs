// SPDX-License-Identifier: MPL-2.0

//! Names, files and directories that do not belong to a pool.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use rustix::net::SocketType;
use xmem_core::discovery::query;
use xmem_core::{ConnectError, Consumer, CreateError, NameError, Producer};

use crate::support::child::Child;
use crate::support::raw::Fake;
use crate::support::*;

#[test]
fn files_of_other_programs_are_left_unchanged() {
    for kind in [SocketType::STREAM, SocketType::DGRAM, SocketType::SEQPACKET] {
        let place = Place::new();
        let theirs = Fake::of_kind(place.pool(), kind);
        let error = Producer::builder(place.pool()).build().unwrap_err();
        assert!(
            matches!(error, CreateError::InUse { .. }),
            "{kind:?}: {error}"
        );
        assert!(
            std::fs::symlink_metadata(place.pool()).is_ok(),
            "{kind:?}: their socket is gone"
        );
        if kind != SocketType::SEQPACKET {
            let error = Consumer::builder(place.pool()).connect().unwrap_err();
            assert!(
                matches!(&error, ConnectError::Protocol { reason, .. } if reason.contains("another program")),
                "{error}"
            );
        }
        drop(theirs);
        // The file has no owner now.
        drop(Producer::builder(place.pool()).build().unwrap());
        place.assert_clean();
    }
    // Files that are not sockets.
    let place = Place::new();
    std::fs::write(place.pool(), "mine").unwrap();
    let error = Producer::builder(place.pool()).build().unwrap_err();
    assert!(matches!(error, CreateError::NotASocket { .. }), "{error}");
    let is_refused = || {
        // Also a consumer that waits for a producer: there will be none.
        let error = Consumer::builder(place.pool())
            .connect_wait(None)
            .unwrap_err();
        assert!(
            matches!(&error, ConnectError::Protocol { reason, .. } if reason.contains("not a socket")),
            "{error}"
        );
    };
    is_refused();
    assert_eq!(std::fs::read_to_string(place.pool()).unwrap(), "mine");
    assert_eq!(place.files().len(), 1);
    std::fs::remove_file(place.pool()).unwrap();
    std::fs::create_dir(place.pool()).unwrap();
    assert!(matches!(
        Producer::builder(place.pool()).build(),
        Err(CreateError::NotASocket { .. })
    ));
    is_refused();
    std::fs::remove_dir(place.pool()).unwrap();
    std::os::unix::fs::symlink("/dev/null", place.pool()).unwrap();
    assert!(Producer::builder(place.pool()).build().is_err());
}

#[test]
fn bad_names_are_refused_on_both_sides() {
    let long = "x".repeat(200);
    let path = format!("/tmp/{}", "y".repeat(120));
    for name in ["", "a\nb", "a\0b", "/tmp/", ".", "..", &long, &path] {
        let error = Producer::builder(name).build().unwrap_err();
        assert!(matches!(error, CreateError::Name(_)), "{name:?}: {error}");
        let error = Consumer::builder(name).connect().unwrap_err();
        assert!(matches!(error, ConnectError::Name(_)), "{name:?}: {error}");
        let error = Consumer::builder(name).connect_wait(None).unwrap_err();
        assert!(matches!(error, ConnectError::Name(_)), "{name:?}: {error}");
        assert!(query(name).is_err());
    }
    let place = Place::new();
    let nowhere = place.path().join("none/p.sock");
    let nowhere = nowhere.to_str().unwrap();
    assert!(matches!(
        Producer::builder(nowhere).build(),
        Err(CreateError::Name(NameError::NoDirectory { .. }))
    ));
    assert!(matches!(
        Consumer::builder(nowhere).connect(),
        Err(ConnectError::NotFound { .. })
    ));
    for (history, max_slots) in [(2, 3), (1, 0), (300, 256), (1, u32::MAX), (u32::MAX, 256)] {
        let builder = Producer::builder(place.pool())
            .history(history)
            .max_slots(max_slots);
        let error = builder.build().unwrap_err();
        let setting = if history == u32::MAX {
            "history"
        } else {
            "max-slots"
        };
        assert!(
            matches!(&error, CreateError::Settings(text) if text.contains(setting)),
            "{error}"
        );
    }
    for consumers in [0, u32::MAX] {
        let builder = Producer::builder(place.pool()).max_consumers(consumers);
        let error = builder.build().unwrap_err();
        assert!(
            matches!(&error, CreateError::Settings(text) if text.contains("max-consumers")),
            "{error}"
        );
    }
    place.assert_clean();
}

#[test]
fn paths_need_not_be_utf_8() {
    let place = Place::new();
    let paths =
        [&b"\xff.sock"[..], b"\xfe.sock"].map(|name| place.path().join(OsStr::from_bytes(name)));
    // Each pool has its own lock.
    let producers = paths
        .each_ref()
        .map(|path| Producer::builder(path).build().unwrap());
    for (path, producer) in paths.iter().zip(&producers) {
        assert_eq!(producer.socket_path(), path);
        let consumer = Consumer::builder(path).connect().unwrap();
        assert_eq!(query(path).unwrap().consumers.len(), 1);
        drop(consumer);
        assert!(xmem_core::discovery::remove_stale(path).is_err());
        assert!(xmem_core::discovery::query_all(&[path])[0].is_ok());
    }
    drop(producers);
    assert!(place.files().is_empty());
    // A name is not a path, so this is an error there.
    let name = OsStr::from_bytes(b"cam\xff");
    let error = Producer::builder(name).build().unwrap_err();
    assert_contains(&error.to_string(), "UTF-8");
    let error = Consumer::builder(name).connect().unwrap_err();
    assert_contains(&error.to_string(), "UTF-8");
}

/// The runtime directory belongs to another user.
pub(crate) fn foreign_dir() {
    let error = Producer::builder("p").build().unwrap_err();
    assert!(
        matches!(&error, CreateError::Name(NameError::RuntimeDir { reason, .. }) if reason.contains("belongs to user")),
        "{error}"
    );
    assert!(error.to_string().contains("XMEM_RUNTIME_DIR"));
}

#[test]
fn a_runtime_dir_of_another_user_is_refused() {
    if !users::can_be_others() {
        return;
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.path(), Some(4242), None).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("XMEM_RUNTIME_DIR", place.path());
    Child::from(command, "foreign-dir", &place.pool()).done();
    assert!(place.files().is_empty());
}
