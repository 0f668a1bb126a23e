// SPDX-License-Identifier: MPL-2.0

//! Checks the kernel and its limits.

use std::path::Path;
use std::time::Duration;

use rustix::fs::StatVfsMountFlags;
use rustix::process::{Resource, getrlimit};
use tempfile::TempDir;
use xmem_core::discovery::runtime_dir;
use xmem_core::{Consumer, FrameMeta, Producer};

use super::finding::{Finding, is_older};

/// The recommended limit. A producer needs a few descriptors for each consumer and region, and applications need more.
const DESCRIPTORS: u64 = 1024;
/// The recommended size of /dev/shm: a few 4K frames.
const SEGMENTS: u64 = 256 << 20;

pub(super) fn check() -> Vec<Finding> {
    let mut findings = vec![kernel(), frame(), descriptors()];
    findings.extend(segments());
    findings.extend(container());
    findings
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let what = format!("Linux {release} on {}", uname.machine().to_string_lossy());
    if is_older(&release, (5, 1)) {
        let advice = "xmem needs Linux 5.1 or newer, which has the seal F_SEAL_FUTURE_WRITE";
        return Finding::problem("kernel", what, advice);
    }
    Finding::ok("kernel", what)
}

/// Passes a frame through a pool: tests memory, seals, the socket and the transfer of descriptors.
fn frame() -> Finding {
    const CHECK: &str = "shared memory";
    match pass_a_frame() {
        Ok(()) => Finding::ok(CHECK, "a frame was passed through a pool of this process"),
        Err(error) => Finding::problem(
            CHECK,
            format!("a pool of this process does not work: {error}"),
            "Unless the error names another cause: in a container or a sandbox, allow memfd_create, sealing, Unix sockets and futexes",
        ),
    }
}

fn pass_a_frame() -> Result<(), Box<dyn std::error::Error>> {
    const BYTES: &[u8] = b"xmem doctor";
    let dir = trial_directory()?;
    let pool = dir.path().join("p");
    let producer = Producer::builder(&pool).build()?;
    let mut consumer = Consumer::builder(&pool).connect()?;
    let mut slot = producer.acquire(BYTES.len())?;
    slot.as_mut_slice().copy_from_slice(BYTES);
    slot.publish(FrameMeta::new(BYTES.len()))?;
    let frame = consumer.receive(Some(Duration::from_secs(5)))?;
    if frame.bytes() == Ok(BYTES) {
        Ok(())
    } else {
        Err("the bytes that arrived differ from those that were written".into())
    }
}

/// A directory for a pool. Pools do not use TMPDIR, which may be missing, or too long for a socket.
fn trial_directory() -> std::io::Result<TempDir> {
    let make = |dir: &Path| tempfile::Builder::new().prefix("d").tempdir_in(dir);
    make(&runtime_dir())
        .or_else(|_| make(Path::new("/tmp")))
        .or_else(|_| make(&std::env::temp_dir()))
}

fn descriptors() -> Finding {
    const CHECK: &str = "descriptors";
    let limit = getrlimit(Resource::Nofile);
    let number = |limit: Option<u64>| limit.map_or("any number".to_owned(), |it| it.to_string());
    let what = format!(
        "{} may be open in a process (hard limit: {})",
        number(limit.current),
        number(limit.maximum)
    );
    if limit.current.is_some_and(|current| current < DESCRIPTORS) {
        let advice = format!("For many pools or consumers in one process: ulimit -n {DESCRIPTORS}");
        return Finding::warning(CHECK, what, advice);
    }
    Finding::ok(CHECK, what)
}

/// /dev/shm in a container of Docker has 64 MiB by default.
fn segments() -> Option<Finding> {
    const CHECK: &str = "/dev/shm";
    let stat = rustix::fs::statvfs("/dev/shm").ok()?;
    if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
        let advice = "Use backing=memfd, the default, which does not use it, or mount it writable";
        return Some(Finding::warning(CHECK, "read-only".to_owned(), advice));
    }
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let what = format!("{} MiB free, for pools with backing=posix-shm", free >> 20);
    Some(if free < SEGMENTS {
        Finding::warning(
            CHECK,
            what,
            "Use backing=memfd, the default, which does not use it, or enlarge it (docker run --shm-size=1g)",
        )
    } else {
        Finding::ok(CHECK, what)
    })
}

fn container() -> Option<Finding> {
    let signs = ["/.dockerenv", "/run/.containerenv"];
    let is_in_one = signs.iter().any(|sign| Path::new(sign).exists())
        || std::env::var_os("container").is_some();
    is_in_one.then(|| {
        Finding::ok(
            "container",
            "xmem runs in a container; to share pools, mount one directory in all containers and set XMEM_RUNTIME_DIR to it",
        )
    })
}
