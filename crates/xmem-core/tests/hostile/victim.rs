// SPDX-License-Identifier: MPL-2.0

//! A producer with one correct consumer in a separate process, in which the effects of an attack are measured.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Resource;
use xmem_core::{Delivery, Producer};

use crate::figures::Figures;
use crate::floods::late_consumer;
use crate::limits::limit;
use crate::support::child::{Child, read_line, reply};
use crate::support::*;
use crate::{Bystander, only_the_bystander_is_left};

pub(crate) const HISTORY: u32 = 2;

/// The child: publishes frames and checks that its consumer receives each of them, until the parent sends a stop command.
pub(crate) fn run(pool: &str, delivery: Delivery, descriptors: Option<u64>) {
    if let Some(descriptors) = descriptors {
        limit(Resource::Nofile, descriptors);
    }
    let producer = Producer::builder(pool)
        .delivery(delivery)
        .history(HISTORY)
        .max_slots(128)
        .min_slots(128)
        .lossless_timeout(Some(Duration::from_millis(50)))
        .socket_mode(0o666)
        .build()
        .unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(100);
    reply("ready");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            read_line();
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            bystander.frames(1);
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    bystander.frames(100);
    only_the_bystander_is_left(&producer);
    eventually("their slots are back", || {
        producer.stats().slots_held <= HISTORY
    });
    reply("alone");
    read_line();
}

/// Like `run`, as the user that owns the pool's directory. The kernel's limit of descriptors in flight is low for this user.
pub(crate) fn without_privileges(pool: &str) {
    if users::may_be_others() {
        let dir = Path::new(pool).parent().unwrap();
        set_user(std::fs::metadata(dir).unwrap().uid());
    }
    run(pool, Delivery::Live, Some(64));
}

#[allow(unsafe_code)] // setresuid of the whole process
fn set_user(uid: u32) {
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::setresuid(uid, uid, uid) }, 0);
}

/// Attacks a pool. Asserts that the correct consumer got all its frames, and that the producer's resources are as before.
#[track_caller]
pub(crate) fn attack(role: &str, attack: impl FnOnce(&str)) {
    let place = Place::new();
    let pool = place.pool();
    if role == "victim-in-flight" && users::may_be_others() {
        // The kernel counts per user, and other tests may run at the same time.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let user = (std::process::id() << 8) + NEXT.fetch_add(1, Ordering::Relaxed);
        chown(place.path(), Some(user), None).unwrap();
        set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    }
    let mut child = Child::start(role, &pool).ready();
    // Objects that are created once, such as the answering thread, exist after the first connection.
    drop(late_consumer(&pool));
    eventually("it is gone", || {
        xmem_core::discovery::query(&pool).is_ok_and(|stats| stats.consumers.len() == 1)
    });
    let before = Figures::of(child.pid());
    attack(&pool);
    child.send("stop");
    assert_eq!(child.reply(), "alone", "{role}");
    // Silent connections are closed as soon as their end is detected.
    let mut after = Figures::of(child.pid());
    let start = std::time::Instant::now();
    while after.descriptors > before.descriptors && start.elapsed() < HANG {
        std::thread::sleep(Duration::from_millis(10));
        after = Figures::of(child.pid());
    }
    // The C library keeps stacks and arenas of threads that have ended.
    assert!(
        after.descriptors <= before.descriptors
            && after.mappings <= before.mappings + 64
            && after.anonymous <= before.anonymous + (8 << 10),
        "{role}: {before:?}, now {after:?}"
    );
    child.send("end");
    child.done();
    place.assert_clean();
}
