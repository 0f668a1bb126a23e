// SPDX-License-Identifier: MPL-2.0

//! Runs the transports in turn, several times over, so that what else the machine does hits both alike.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::event::{EventfdFlags, eventfd};

use crate::figures::Figures;
use crate::report;
use crate::scenario::{Scenario, Transport};
use crate::side::{MEASURE, RECEIVING, STOP};
use crate::{Error, syscalls};

/// Until pools are made, pages are mapped and the scheduler has settled.
const WARM_UP: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// How often each transport is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// What is sent [default: everything in turn]
    #[arg(long = "scenario", value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
}

/// Both sides of a transport.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) producer: Figures,
    pub(crate) consumer: Figures,
}

/// Everything that was measured of one scenario.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) floor: Vec<Figures>,
    pub(crate) alone: Vec<Figures>,
    pub(crate) shm: Vec<Pair>,
    pub(crate) xmem: Vec<Pair>,
    pub(crate) shm_counts: Counts,
    pub(crate) xmem_counts: Counts,
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    Clock,
    /// System calls and page faults. It takes a run of its own: strace slows down what it watches, and touching each
    /// page costs more than the transport does.
    Calls,
}

/// Per frame, on the producer's side and on the consumer's.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// System calls by name, the most frequent first.
    pub(crate) calls: [Vec<(String, f64)>; 2],
    pub(crate) page_faults: [f64; 2],
}

pub(crate) fn run(plan: &Plan, fps: u32) -> Result<(), Error> {
    gst::init()?;
    println!("{}", report::heading(plan.rounds, plan.seconds, fps));
    let all = if plan.scenarios.is_empty() {
        Scenario::value_variants()
    } else {
        &plan.scenarios
    };
    for scenario in all {
        let results = measure_all(plan, *scenario, fps)?;
        println!("{}", report::section(*scenario, &results));
    }
    Ok(())
}

fn measure_all(plan: &Plan, scenario: Scenario, fps: u32) -> Result<Results, Error> {
    let time = Duration::from_secs(plan.seconds.into());
    let mut results = Results::default();
    for round in 0..plan.rounds {
        eprintln!(
            "{}: round {} of {}",
            scenario.title(),
            round + 1,
            plan.rounds
        );
        results.floor.push(measure_floor(fps * plan.seconds, fps)?);
        results.alone.push(measure_alone(scenario, time, fps)?);
        let mut order = [Transport::Shm, Transport::Xmem];
        order.rotate_left(round as usize % 2);
        for transport in order {
            let pair = measure(transport, scenario, time, fps)?;
            match transport {
                Transport::Shm => results.shm.push(pair),
                Transport::Xmem => results.xmem.push(pair),
            }
        }
    }
    eprintln!("{}: system calls and page faults", scenario.title());
    results.shm_counts = count(Transport::Shm, scenario, fps)?;
    results.xmem_counts = count(Transport::Xmem, scenario, fps)?;
    Ok(results)
}

fn measure(
    transport: Transport,
    scenario: Scenario,
    time: Duration,
    fps: u32,
) -> Result<Pair, Error> {
    let dir = tempfile::tempdir()?;
    run_pair(transport, scenario, time, fps, dir.path(), Watch::Clock)
}

fn count(transport: Transport, scenario: Scenario, fps: u32) -> Result<Counts, Error> {
    let dir = tempfile::tempdir()?;
    let time = Duration::from_secs(3);
    let pair = run_pair(transport, scenario, time, fps, dir.path(), Watch::Calls)?;
    let calls = |role: &str, figures: Figures| -> Result<Vec<(String, f64)>, Error> {
        let trace = std::fs::read_to_string(dir.path().join(role))?;
        let mut calls: Vec<(String, f64)> = syscalls::between_marks(&trace)
            .into_iter()
            .map(|(name, count)| (name, per_frame(count, figures)))
            // Now and then a call has nothing to do with the frames.
            .filter(|(_, count)| *count >= 0.02)
            .collect();
        calls.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(calls)
    };
    let Pair { producer, consumer } = pair;
    Ok(Counts {
        calls: [calls("producer", producer)?, calls("consumer", consumer)?],
        page_faults: [producer, consumer].map(|f| per_frame(f.page_faults, f)),
    })
}

fn per_frame(count: u64, figures: Figures) -> f64 {
    count as f64 / figures.frames.max(1) as f64
}

fn run_pair(
    transport: Transport,
    scenario: Scenario,
    time: Duration,
    fps: u32,
    dir: &Path,
    watch: Watch,
) -> Result<Pair, Error> {
    let socket = dir.join("socket");
    let start = |role| -> Result<Side, Error> {
        let mut command = own_program()?;
        if watch == Watch::Calls {
            command = Command::new("strace");
            command.args(["-f", "-qq", "-o"]).arg(dir.join(role));
            command.arg(std::env::current_exe()?);
        }
        command
            .args([role, transport.argument(), scenario.argument()])
            .arg(&socket)
            .args(["--fps", &fps.to_string()]);
        if watch == Watch::Calls {
            command.arg("--touch");
        }
        Side::start(command)
    };
    let mut producer = start("producer")?;
    // shmsrc does not wait for it.
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        if Instant::now() > deadline {
            return Err(format!("the producer of {} makes no socket", transport.name()).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let mut consumer = start("consumer")?;
    consumer.expect(RECEIVING)?;
    thread::sleep(WARM_UP);
    producer.order(MEASURE)?;
    consumer.order(MEASURE)?;
    thread::sleep(time);
    consumer.order(STOP)?;
    producer.order(STOP)?;
    Ok(Pair {
        producer: producer.finish()?,
        consumer: consumer.finish()?,
    })
}

fn measure_alone(scenario: Scenario, time: Duration, fps: u32) -> Result<Figures, Error> {
    let mut command = own_program()?;
    // The transport and the socket do not matter here.
    command.args(["alone", Transport::Shm.argument(), scenario.argument(), "-"]);
    command.args(["--fps", &fps.to_string()]);
    let mut side = Side::start(command)?;
    side.expect(RECEIVING)?;
    thread::sleep(WARM_UP);
    side.order(MEASURE)?;
    thread::sleep(time);
    side.order(STOP)?;
    side.finish()
}

fn measure_floor(count: u32, fps: u32) -> Result<Figures, Error> {
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC)?;
    let start = |role: &str, stdout| -> Result<Child, Error> {
        let mut command = own_program()?;
        command.args([role, &count.to_string(), "--fps", &fps.to_string()]);
        Ok(command.stdin(eventfd.try_clone()?).stdout(stdout).spawn()?)
    };
    let sleeper = start("sleeper", Stdio::piped())?;
    let waker = start("waker", Stdio::null())?.wait();
    // It has all it waits for, or else ends when it is told nothing more.
    let output = sleeper.wait_with_output()?;
    if !waker?.success() || !output.status.success() {
        return Err("the eventfd run failed".into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn own_program() -> Result<Command, Error> {
    Ok(Command::new(std::env::current_exe()?))
}

/// A process that takes orders. It ends when this value is dropped.
#[derive(Debug)]
struct Side {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Side {
    fn start(mut command: Command) -> Result<Self, Error> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                format!("cannot start {}: {error}", command.get_program().display())
            })?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self {
            child,
            orders,
            answers,
        })
    }

    fn order(&mut self, order: &str) -> Result<(), Error> {
        let orders = self.orders.as_mut().ok_or("it takes no more orders")?;
        Ok(writeln!(orders, "{order}")?)
    }

    fn answer(&mut self) -> Result<String, Error> {
        Ok(self
            .answers
            .next()
            .ok_or("a side of the transport ended early")??)
    }

    fn expect(&mut self, expected: &str) -> Result<(), Error> {
        let answer = self.answer()?;
        if answer == expected {
            Ok(())
        } else {
            Err(format!("expected {expected:?}, got {answer:?}").into())
        }
    }

    /// Its figures, and its end.
    fn finish(mut self) -> Result<Figures, Error> {
        let figures = serde_json::from_str(&self.answer()?)?;
        self.orders = None;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(figures)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // What strace watches is not our child; it ends because its orders end.
        self.orders = None;
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
