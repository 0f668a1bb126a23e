// SPDX-License-Identifier: MPL-2.0

//! Child processes with faults at points of their code, on command.

use std::error::Error;
use std::ops::Range;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

use xmem_core::fault::{Action, Point, arm, arrivals, disarm};

use super::HANG;
use super::child::{Child, read_line, reply};

/// Points that are passed only when frames are forwarded (`fault_chains.rs`).
pub const IN_CHAINS: [Point; 11] = [
    Point::OriginMet,
    Point::OriginJoined,
    Point::OriginSaid,
    Point::Arrived,
    Point::OriginHeld,
    Point::BeginRead,
    Point::ConsumerArrived,
    Point::MemoryImported,
    Point::ImportForgotten,
    Point::OriginNoted,
    Point::PartsImported,
];

/// Commands from the parent. A command that arms a point takes effect immediately. The process ends with its parent.
pub fn commands() -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        loop {
            let line = read_line();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["arm", point, from, to, action] => {
                    let point = Point::ALL[point.parse::<usize>().unwrap()];
                    let action = match action {
                        "kill" => Action::Kill,
                        "stop" => Action::Stop,
                        errno => Action::Fail(errno.parse().unwrap()),
                    };
                    arm(point, from.parse().unwrap()..to.parse().unwrap(), action);
                    reply("armed");
                }
                ["record"] => {
                    for point in Point::ALL {
                        arm(*point, 0..0, Action::Kill);
                    }
                    reply("recording");
                }
                ["passed"] => {
                    let passed = (0..)
                        .zip(Point::ALL)
                        .map(|(at, point)| (at, arrivals(*point)));
                    let passed = passed.filter(|(_, arrivals)| *arrivals > 0);
                    let passed: Vec<String> = passed
                        .map(|(at, n): (u32, _)| format!("{at}:{n}"))
                        .collect();
                    disarm();
                    reply(passed.join(" "));
                }
                ["disarm"] => {
                    disarm();
                    reply("disarmed");
                }
                _ => {
                    if send.send(line).is_err() {
                        return;
                    }
                }
            }
        }
    });
    receive
}

/// Arms a point at which a child is killed. Returns whether the child is alive: it may reach the point immediately.
#[track_caller]
pub fn try_arm_child(child: &mut Child, point: Point, arrival: u32) -> bool {
    let order = format!("arm {} {arrival} {} kill", point as usize, arrival + 1);
    child.try_send(&order) && child.next_line().is_some_and(|reply| reply == "armed")
}

/// Disarms a child that may have died. Returns whether it is alive.
#[track_caller]
pub fn disarm_child(child: &mut Child) -> bool {
    child.try_send("disarm") && child.next_line().is_some_and(|reply| reply == "disarmed")
}

/// Counts the arrivals of a child at all points from now on.
#[track_caller]
pub fn record(child: &mut Child) {
    ask(child, "record", "recording");
}

/// The points that a child passed since [`record`], with counts.
#[track_caller]
pub fn passed(child: &mut Child) -> Vec<(Point, u32)> {
    child.send("passed");
    let reply = child.reply();
    let words = reply.split_whitespace().map(|word| {
        let (at, arrivals) = word.split_once(':').unwrap();
        let at: usize = at.parse().unwrap();
        (Point::ALL[at], arrivals.parse().unwrap())
    });
    words.collect()
}

/// The number of attempts to kill a process at a point that it may not pass.
const ATTEMPTS: u32 = 20;

/// Kills a process at a point of a step. `prepare` creates the prerequisites of the step, `child` selects the process, and `step`
/// runs the step until its end or the death. `None`: the process does not pass the point again, although it may.
#[track_caller]
pub fn kill_at<S>(
    what: &str,
    (point, arrival, is_expected): (Point, u32, bool),
    mut prepare: impl FnMut() -> S,
    child: impl Fn(&mut S) -> &mut Child,
    mut step: impl FnMut(&mut S),
) -> Option<S> {
    let start = Instant::now();
    let mut attempts = 0;
    // Threads pass some points a varying number of times. An unexpected point may belong to the preparation and may have been
    // passed late.
    while start.elapsed() < HANG && (is_expected || attempts < ATTEMPTS) {
        attempts += 1;
        let mut scene = prepare();
        // The preparation may pass the point.
        if !try_arm_child(child(&mut scene), point, arrival) {
            continue;
        }
        step(&mut scene);
        if !disarm_child(child(&mut scene)) {
            assert_eq!(child(&mut scene).dies_of(), SIGKILL);
            println!("{what} died at {point:?} {arrival}");
            return Some(scene);
        }
    }
    assert!(!is_expected, "{what} did not come to {point:?} {arrival}");
    println!("{what} did not come to {point:?} {arrival}");
    None
}

/// Executes a step at each command, which has two numbers, and replies with the step's number.
pub fn do_steps(
    commands: &Receiver<String>,
    mut step: impl FnMut(&str, u32, i32) -> Result<u32, Box<dyn Error>>,
) {
    while let Ok(command) = commands.recv() {
        let words: Vec<&str> = command.split(' ').collect();
        let [what, index, count] = words[..] else {
            break;
        };
        match step(what, index.parse().unwrap(), count.parse().unwrap()) {
            Ok(answer) => reply(format_args!("done {answer}")),
            Err(error) => reply(format_args!("failed: {error}")),
        }
    }
}

/// The number of the step that a child executed.
#[track_caller]
pub fn done(child: &mut Child, command: &str) -> u32 {
    child.send(command);
    let answer = child.reply();
    let number = answer.strip_prefix("done ");
    let number = number.unwrap_or_else(|| panic!("{command}: {answer}"));
    number.parse().unwrap()
}

pub fn next_command(commands: &Receiver<String>) -> Option<String> {
    match commands.try_recv() {
        Ok(command) => Some(command),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => std::process::exit(0),
    }
}

/// The descriptors and mappings that this process has of pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    pub descriptors: usize,
    pub mappings: usize,
}

pub fn resources() -> Resources {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    Resources {
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        mappings: maps.lines().filter(|line| line.contains("xmem-")).count(),
    }
}

pub const SIGKILL: Option<i32> = Some(9);

/// Waits for a reply of a child, and skips earlier lines.
#[track_caller]
pub fn wait_for_reply(child: &mut Child, answer: &str) {
    loop {
        let reply = child.reply();
        if reply == answer {
            return;
        }
        assert!(["joined", "not yet"].contains(&reply.as_str()), "{reply}");
    }
}

#[track_caller]
pub fn ask(child: &mut Child, question: &str, answer: &str) {
    child.send(question);
    wait_for_reply(child, answer);
}

#[track_caller]
pub fn arm_child(child: &mut Child, point: Point, arrivals: Range<u32>, action: &str) {
    let Range { start, end } = arrivals;
    let order = format!("arm {} {start} {end} {action}", point as usize);
    ask(child, &order, "armed");
}
