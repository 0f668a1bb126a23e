// SPDX-License-Identifier: MPL-2.0

//! Processes in different PID namespaces, as in containers.

use xmem_core::{Consumer, Producer};

use crate::support::child::{Child, read_line, reply};
use crate::support::*;

/// Creates a pool, and reports its own PID.
pub(crate) fn own_pid(pool: &str) {
    let _producer = Producer::builder(pool).build().unwrap();
    reply(std::process::id());
    read_line();
}

/// Reports the producer's PID as this process sees it.
pub(crate) fn ask_pid(pool: &str) {
    let consumer = Consumer::builder(pool).connect().unwrap();
    let pids = (stats_of(pool).pid, consumer.producer_pid());
    reply(format!("{pids:?}"));
    read_line();
}

/// A child in a new PID namespace. Returns `None` and prints a message if namespaces are not available.
fn in_pid_namespace(role: &str, place: &Place) -> Option<Child> {
    let mut command = users::in_pid_namespace()?;
    command.arg(std::env::current_exe().unwrap());
    Some(Child::from(command, role, &place.pool()))
}

#[test]
fn a_producers_pid_is_that_of_the_readers_namespace() {
    let place = Place::new();
    let Some(mut producer) = in_pid_namespace("own-pid", &place) else {
        return;
    };
    assert_eq!(producer.reply(), "1", "what it calls itself");
    let unshare = producer.pid();
    let children = format!("/proc/{unshare}/task/{unshare}/children");
    let pid: u32 = std::fs::read_to_string(children)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let consumer = Consumer::builder(place.pool()).connect().unwrap();
    assert_eq!(consumer.producer_pid(), pid);
    assert_eq!(stats_of(&place.pool()).pid, pid);
    // The producer cannot see the reader's PID.
    let consumers = stats_of(&place.pool()).consumers;
    assert_eq!(consumers[0].pid, 0);
    // The producer has no PID in another namespace.
    let mut other = in_pid_namespace("ask-pid", &place).unwrap();
    assert_eq!(other.reply(), "(0, 0)");
    drop(consumer);
}
