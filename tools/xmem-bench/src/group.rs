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
use crate::{Error, pipewire, syscalls};

/// The time until pools are allocated, pages are mapped and the load is steady.
pub(crate) const WARM_UP: Duration = Duration::from_secs(1);

/// The duration of a run that counts system calls and page faults.
const COUNTED: Duration = Duration::from_secs(2);
/// The duration of a run with an eventfd.
const WAKEUP_SECONDS: u32 = 2;

/// What a measurement runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) transport: Transport,
    pub(crate) frames: Frames,
    /// The number of consumers of each pool.
    pub(crate) consumers: usize,
    pub(crate) pools: usize,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Group {
    /// One for each pool.
    pub(crate) producers: Vec<Figures>,
    /// Those of the first pool, then those of the next.
    pub(crate) consumers: Vec<Figures>,
}

/// Figures per frame. Index 0 is the producer, index 1 a consumer.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// System calls by name, the most frequent first.
    pub(crate) calls: [Vec<(String, f64)>; 2],
    pub(crate) page_faults: [f64; 2],
}

/// The figures of one scenario.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) wakeup: Vec<Figures>,
    pub(crate) alone: Vec<Figures>,
    pub(crate) cases: Vec<Measured>,
}

#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) case: Case,
    pub(crate) rounds: Vec<Group>,
    pub(crate) counts: Counts,
}

pub(crate) fn measure(case: Case, time: Duration, fps: u32) -> Result<Group, Error> {
    let run_dirs = (0..case.pools).map(|_| RunDir::new());
    let run_dirs = run_dirs.collect::<Result<Vec<_>, _>>()?;
    let start = |run_dir| Running::start(case, fps, run_dir, Watch::Clock);
    let pools = run_dirs.iter().map(start).collect::<Result<_, _>>()?;
    run(pools, time)
}

/// Counts system calls and page faults. This is a separate run, because strace slows the processes down, and touching each page
/// costs more than the transport. One pool is enough, because pools do not affect each other's counts.
pub(crate) fn count(case: Case, fps: u32) -> Result<Counts, Error> {
    let run_dir = RunDir::new()?;
    let running = Running::start(case, fps, &run_dir, Watch::Calls)?;
    let group = run(vec![running], COUNTED)?;
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
    let producer = group.producers.first().ok_or("no producer")?;
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
    /// Ends after them.
    _session: Option<pipewire::Session>,
}

impl Running {
    pub(crate) fn start(
        case: Case,
        fps: u32,
        run_dir: &RunDir,
        watch: Watch,
    ) -> Result<Self, Error> {
        let session = match case.transport {
            Transport::Pipewire => Some(pipewire::Session::start(run_dir.path())?),
            _ => None,
        };
        let mut producer = side(case, fps, run_dir, watch, "producer")?;
        let waits = session.is_some();
        if waits {
            // pipewiresink sends nothing before there is a consumer, which needs its node.
            thread::sleep(WARM_UP);
        } else {
            // The producer must be ready first: shmsrc and unixfdsrc do not wait for it.
            producer.expect(SENDING)?;
        }
        // One after the other: unixfdsrc fails if several connect at the same time.
        let mut consumers = Vec::new();
        for number in 0..case.consumers {
            let watch = if number == 0 { watch } else { Watch::Clock };
            let mut consumer = side(case, fps, run_dir, watch, "consumer")?;
            consumer.expect(RECEIVING)?;
            consumers.push(consumer);
        }
        if waits {
            producer.expect(SENDING)?;
        }
        Ok(Self {
            producer,
            consumers,
            _session: session,
        })
    }

    fn sides(&mut self) -> impl Iterator<Item = &mut Side> {
        std::iter::once(&mut self.producer).chain(&mut self.consumers)
    }
}

/// Starts one side of a transport.
pub(crate) fn side(
    case: Case,
    fps: u32,
    run_dir: &RunDir,
    watch: Watch,
    role: &str,
) -> Result<Side, Error> {
    let mut command = own_program()?;
    if watch == Watch::Calls {
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
    if watch != Watch::Clock {
        command.arg("--touch");
    }
    if case.transport == Transport::Pipewire {
        pipewire::join(&mut command, run_dir.path());
    }
    Side::start(command)
}

/// Measures pools that are running, all at the same time.
fn run(mut pools: Vec<Running>, time: Duration) -> Result<Group, Error> {
    thread::sleep(WARM_UP);
    let each = |pools: &mut Vec<Running>, command: fn(&mut Side) -> Result<(), Error>| {
        let mut sides = pools.iter_mut().flat_map(Running::sides);
        sides.try_for_each(command)
    };
    each(&mut pools, Side::measure)?;
    thread::sleep(time);
    each(&mut pools, Side::stop)?;
    let mut group = Group::default();
    for pool in &mut pools {
        group.producers.push(pool.producer.figures()?);
        for consumer in &mut pool.consumers {
            group.consumers.push(consumer.figures()?);
        }
    }
    for pool in pools {
        pool.consumers.into_iter().try_for_each(Side::end)?;
        pool.producer.end()?;
    }
    Ok(group)
}

fn own_program() -> Result<Command, Error> {
    Ok(Command::new(std::env::current_exe()?))
}
