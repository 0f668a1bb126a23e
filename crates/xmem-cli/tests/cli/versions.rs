// SPDX-License-Identifier: MPL-2.0

//! A pool whose producer uses another version of the shared format.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept,
    bind, listen, recv, send, shutdown, socket_with,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{socket, stderr, stdout, xmem};

/// Calls `then` while a process of that version refuses all others at the socket.
fn with_producer_of(version: u32, path: &str, then: impl FnOnce()) {
    let kind = SocketType::SEQPACKET;
    let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 16).unwrap();
    let refusal = [&[2], &version.to_le_bytes()[..], &[0; 256]].concat();
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok(peer) = accept(&listener) {
                let first = recv(&peer, &mut [0; 512], RecvFlags::empty());
                // A process that only looks for a producer sends nothing.
                if first.is_ok_and(|(_, len)| len > 0) {
                    send(&peer, &refusal, SendFlags::NOSIGNAL).unwrap();
                }
            }
        });
        then();
        shutdown(&listener, Shutdown::Both).unwrap();
    });
}

#[test]
fn the_state_is_other_version_and_errors_name_the_side_to_update() {
    for (version, old) in [(11, "update the producer"), (99, "update this program")] {
        let dir = TempDir::new().unwrap();
        with_producer_of(version, &socket(&dir), || {
            let dir = dir.path();
            let table = xmem(dir, &["list"]);
            assert!(stdout(&table).contains("other version"), "{table:?}");
            let list = xmem(dir, &["list", "-f", "json"]);
            let list: Value = serde_json::from_str(stdout(&list)).unwrap();
            assert_eq!(list[0]["state"], "other-version");

            let show = xmem(dir, &["show", "cam0"]);
            assert!(stderr(&show).contains(old), "{show:?}");

            let doctor = xmem(dir, &["doctor", "-f", "json"]);
            let findings: Vec<Value> = serde_json::from_slice(&doctor.stdout).unwrap();
            let pools = findings.iter().find(|it| it["check"] == "pools").unwrap();
            assert_eq!(pools["verdict"], "warning");
            assert!(pools["what"].as_str().unwrap().contains(old), "{pools}");
        });
    }
}

/// `xmem share` can't see what its source publishes then, and would start it again every 20 seconds.
#[test]
fn a_shared_source_ends_if_the_plugin_has_another_version() {
    for options in [&[][..], &["--on-demand"]] {
        let dir = TempDir::new().unwrap();
        let tool = dir.path().join("gst-launch-1.0");
        fs::write(
            &tool,
            "#!/bin/sh\n[ \"$1\" = --version ] || exec /bin/sleep 60\n",
        )
        .unwrap();
        fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        with_producer_of(11, &socket(&dir), || {
            let mut share = Command::new(env!("CARGO_BIN_EXE_xmem"));
            share.env("XMEM_RUNTIME_DIR", dir.path());
            share.env("PATH", dir.path());
            share.args(["share", "test", "--pool", "cam0"]);
            let output = share.args(options).output().unwrap();
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(
                text.contains("update the producer") && text.contains("GStreamer's plugin"),
                "{text}"
            );
        });
    }
}
