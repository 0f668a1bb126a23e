// SPDX-License-Identifier: MPL-2.0

//! Runs one producer and its consumers as separate processes, and collects their figures.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::commands::{RECEIVING, SENDING};
use crate::figures::Figures;
use crate::frames::Frames;
use crate::process::Side;
use crate::run_dir::RunDir;
use crate::transport::{Transport, argument};
use crate::{Error, syscalls};

/// The time until pools are allocated, pages are mapped and the load is steady.
const WARM_UP: Duration = Duration::from_secs(1);

/// The duration of a run that counts system calls and page faults.
const COUNTED: Duration = Duration::from_secs(2);
/// The duration of a run with an eventfd.
const WAKEUP_SECONDS: u32 = 2;

/// The transport, the frames and the number of consumers of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) transport: Transport,
    pub(crate) frames: Frames,
    pub(crate) consumers: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) producer: Figures,
    pub(crate) consumers: Vec<Figures>,
}

/// Figures per frame. Index 0 is the producer, index 1 a consumer.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// System calls by name, the most frequent first.
    pub(crate) calls: [Vec<(String, f64)>; 2],
    pub(crate) page_faults: [f64; 2],
}

pub(crate) fn measure(case: Case, time: Duration, fps: u32) -> Result<Group, Error> {
    let run_dir = RunDir::new()?;
    let running = Running::start(case, fps, &run_dir, Watch::Clock)?;
    running.measure(time)
}

/// Counts system calls and page faults. This is a separate run, because strace slows the processes down, and touching each page
/// costs more than the transport.
pub(crate) fn count(case: Case, fps: u32) -> Result<Counts, Error> {
    let run_dir = RunDir::new()?;
    let running = Running::start(case, fps, &run_dir, Watch::Calls)?;
    let group = running.measure(COUNTED)?;
    let calls = |role: &str, figures: &Figures| -> Result<Vec<(String, f64)>, Error> {
        let trace = std::fs::read_to_string(run_dir.path().join(role))?;
        let mut calls: Vec<(String, f64)> = syscalls::between_marks(&trace)
            .into_iter()
            .map(|(name, count)| (name, per_frame(count, figures)))
            // Rare calls do not belong to the frames.
            .filter(|(_, count)| *count >= 0.02)
            .collect();
        calls.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(calls)
    };
    // Only the first consumer is traced.
    let consumer = group.consumers.first().ok_or("no consumer")?;
    let producer = &group.producer;
    Ok(Counts {
        calls: [calls("producer", producer)?, calls("consumer", consumer)?],
        page_faults: [producer, consumer].map(|f| per_frame(f.page_faults, f)),
    })
}

fn per_frame(count: u64, figures: &Figures) -> f64 {
    count as f64 / figures.frames.max(1) as f64
}

/// The source and the receiver in one process, without a transport.
pub(crate) fn measure_alone(frames: Frames, time: Duration, fps: u32) -> Result<Figures, Error> {
    let mut command = own_program()?;
    // The program ignores the transport and the socket here.
    command.args(["alone", &argument(Transport::Shm), &argument(frames), "-"]);
    command.args(["--fps", &fps.to_string()]);
    let mut side = Side::start(command)?;
    side.expect(RECEIVING)?;
    thread::sleep(WARM_UP);
    side.measure()?;
    thread::sleep(time);
    side.stop()?;
    side.finish()
}

/// One process wakes another process with an eventfd.
pub(crate) fn measure_wakeup(fps: u32) -> Result<Figures, Error> {
    let count = fps * WAKEUP_SECONDS;
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC)?;
    let start = |role: &str, stdout| -> Result<Child, Error> {
        let mut command = own_program()?;
        command.args([role, &count.to_string(), "--fps", &fps.to_string()]);
        Ok(command.stdin(eventfd.try_clone()?).stdout(stdout).spawn()?)
    };
    let sleeper = start("sleeper", Stdio::piped())?;
    let waker = start("waker", Stdio::null())?.wait();
    // The sleeper ends when it has counted all wake-ups.
    let output = sleeper.wait_with_output()?;
    if !waker?.success() || !output.status.success() {
        return Err("the eventfd run failed".into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What a run measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    Clock,
    /// Both sides touch each page of each frame.
    Pages,
    /// As `Pages`, with strace on the producer and one consumer.
    Calls,
}

/// Running processes. The producer has sent frames, and each consumer has received one.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) producer: Side,
    pub(crate) consumers: Vec<Side>,
}

impl Running {
    pub(crate) fn start(
        case: Case,
        fps: u32,
        run_dir: &RunDir,
        watch: Watch,
    ) -> Result<Self, Error> {
        let start = |role: &str, is_watched: bool| -> Result<Side, Error> {
            let mut command = own_program()?;
            if watch == Watch::Calls && is_watched {
                command = Command::new("strace");
                command
                    .args(["-f", "-qq", "-o"])
                    .arg(run_dir.path().join(role));
                command.arg(std::env::current_exe()?);
            }
            command
                .args([role, &argument(case.transport), &argument(case.frames)])
                .arg(run_dir.socket())
                .args(["--fps", &fps.to_string()]);
            if watch != Watch::Clock && is_watched {
                command.arg("--touch");
            }
            Side::start(command)
        };
        let mut producer = start("producer", true)?;
        // The producer must be ready first: shmsrc and unixfdsrc do not wait for it.
        producer.expect(SENDING)?;
        // One after the other: unixfdsrc fails if several connect at the same time.
        let mut consumers = Vec::new();
        for number in 0..case.consumers {
            let mut consumer = start("consumer", number == 0)?;
            consumer.expect(RECEIVING)?;
            consumers.push(consumer);
        }
        thread::sleep(WARM_UP);
        Ok(Self {
            producer,
            consumers,
        })
    }

    fn measure(mut self, time: Duration) -> Result<Group, Error> {
        self.producer.measure()?;
        for consumer in &mut self.consumers {
            consumer.measure()?;
        }
        thread::sleep(time);
        self.producer.stop()?;
        for consumer in &mut self.consumers {
            consumer.stop()?;
        }
        let consumers = self.consumers.iter_mut().map(Side::figures);
        let consumers = consumers.collect::<Result<_, _>>()?;
        self.consumers.into_iter().try_for_each(Side::end)?;
        Ok(Group {
            producer: self.producer.finish()?,
            consumers,
        })
    }
}

fn own_program() -> Result<Command, Error> {
    Ok(Command::new(std::env::current_exe()?))
}
