// SPDX-License-Identifier: MPL-2.0

//! A machine with stand-in devices and a pool, and child processes with roles.

#![allow(dead_code)] // each test program uses a part

use std::process::Command;

use xmem_cuda_standin::Machine;

use crate::support::child::Child;
use crate::support::{Place, eventually, users};

pub struct Lab {
    place: Place,
    pub machine: Machine,
}

impl Lab {
    pub fn new() -> Self {
        let place = Place::new();
        let machine = Machine::new(place.path().join("machine"));
        Self { place, machine }
    }

    /// Adds a setting of the stand-in.
    pub fn with(self, name: &str, value: impl ToString) -> Self {
        let Self { place, machine } = self;
        Self {
            place,
            machine: machine.with(name, value),
        }
    }

    pub fn without_symbols(self, names: &[&str]) -> Self {
        let Self { place, machine } = self;
        Self {
            place,
            machine: machine.without_symbols(names),
        }
    }

    pub fn pool(&self) -> String {
        self.place.pool()
    }

    pub fn start(&self, role: &str) -> Child {
        self.start_at(role, &self.pool())
    }

    /// A process with this role that uses the devices.
    pub fn start_at(&self, role: &str, pool: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        self.machine.prepare(&mut command);
        Child::from(command, role, pool)
    }

    /// As `start`, after it has reported that it is ready.
    #[track_caller]
    pub fn ready(&self, role: &str) -> Child {
        self.ready_at(role, &self.pool())
    }

    #[track_caller]
    pub fn ready_at(&self, role: &str, pool: &str) -> Child {
        self.start_at(role, pool).ready()
    }

    /// A producer with this argument, and a consumer of its pool.
    #[track_caller]
    pub fn pair(&self, producing: &str) -> (Child, Child) {
        let producer = self.ready(&format!("produce {producing}"));
        (producer, self.ready("consume"))
    }

    /// As `pair`, after the first frame.
    #[track_caller]
    pub fn begun(&self, producing: &str) -> (Child, Child) {
        let (mut producer, mut consumer) = self.pair(producing);
        first_round(&mut producer, &mut consumer);
        (producer, consumer)
    }

    /// A producer with this argument, a process that forwards its frames, and a consumer of those.
    #[track_caller]
    pub fn chain(&self, producing: &str) -> (Child, Child, Child) {
        let second = format!("{}-2", self.pool());
        let producer = self.ready(&format!("produce {producing}"));
        let relay = self.ready(&format!("relay {second}"));
        (producer, relay, self.ready_at("consume", &second))
    }

    /// A process in a new PID namespace, with another PID. Returns `None` and prints a message if namespaces are not available.
    #[track_caller]
    pub fn in_pid_namespace(&self, role: &str) -> Option<Child> {
        let mut command = users::in_pid_namespace()?;
        command.arg(std::env::current_exe().unwrap());
        self.machine.prepare(&mut command);
        Some(Child::from(command, role, &self.pool()).ready())
    }

    /// As `ready`, with an environment variable.
    #[track_caller]
    pub fn ready_with(&self, role: &str, name: &str, value: &str) -> Child {
        if name.starts_with("XMEM_STANDIN_") {
            self.machine.only_here("settings of the devices");
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        self.machine.prepare(&mut command);
        command.env(name, value);
        Child::from(command, role, &self.pool()).ready()
    }

    /// The number of calls of these driver functions in a process. `None` with a real driver, which does not count them.
    pub fn calls(&self, child: &Child, names: &[&str]) -> Option<u64> {
        if Machine::is_real() {
            return None;
        }
        let calls = self.machine.calls(child.pid());
        Some(names.iter().filter_map(|name| calls.get(*name)).sum())
    }

    /// Asserts the number of calls of these functions, if the driver counts them.
    #[track_caller]
    pub fn assert_calls(&self, child: &Child, names: &[&str], expected: u64) {
        let calls = self.calls(child, names);
        assert!(
            calls.is_none_or(|calls| calls == expected),
            "{names:?}: {calls:?}"
        );
    }

    /// Whether no process uses device memory. Unknown on a real device, which other programs may use.
    pub fn memory_is_free(&self) -> bool {
        Machine::is_real() || self.machine.used_memory(0) == 0
    }

    /// Asserts that no process made a forbidden call.
    #[track_caller]
    pub fn assert_allowed(&self) {
        assert_eq!(self.machine.violations(), Vec::<String>::new());
    }
}

/// Runs a command in a child and asserts its reply.
#[track_caller]
pub fn run(child: &mut Child, line: &str, answer: &str) {
    child.send(line);
    assert_eq!(child.reply(), answer, "to {line:?}");
}

/// Passes the first frame, after which all memory is imported.
#[track_caller]
pub fn first_round(producer: &mut Child, consumer: &mut Child) {
    run(producer, "publish", "published 0");
    run(consumer, "take", "took 0");
    run(consumer, "result", "0");
}

/// Asserts that the frame that a consumer holds is right, and all that it took.
#[track_caller]
pub fn looks(consumer: &mut Child) {
    run(consumer, "look", "looks");
    run(consumer, "result", "0");
}

/// Waits until no consumer has a lease.
#[track_caller]
pub fn until_released(producer: &mut Child) {
    eventually("all leases are over", || {
        ask(producer, "consumers").starts_with('0')
    });
}

/// Runs a command in a child and returns its reply.
#[track_caller]
pub fn ask(child: &mut Child, line: &str) -> String {
    child.send(line);
    child.reply()
}

/// A counter of a process (`xmem_core::cuda::counts`), by name.
#[track_caller]
pub fn count(child: &mut Child, name: &str) -> u64 {
    let reply = ask(child, "counts");
    let (_, from) = reply.split_once(&format!("{name}: ")).expect(&reply);
    let digits = from.split(|c: char| !c.is_ascii_digit()).next();
    digits.unwrap_or_default().parse().expect(&reply)
}

/// Repeats a command until the reply contains this text, because a message of another process may be in flight.
#[track_caller]
pub fn until_reply(child: &mut Child, line: &str, part: &str) {
    let mut reply = String::new();
    eventually(&format!("{part:?} to {line:?}"), || {
        reply = ask(child, line);
        reply.contains(part)
    });
}
