// SPDX-License-Identifier: MPL-2.0

//! A soak test: four pools at 60 frames per second and sixteen consumers, some of which join and leave. Samples the resource usage
//! of the permanent processes, which must not grow.

pub(crate) mod consumer;
mod figures;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Error;
use crate::rig::{Actor, Shared, lock};
use figures::{Outcome, Series, Usage};

/// The number of consumers per pool whose processes end and are replaced.
const GUESTS: usize = 2;
/// The lifetime of a guest in milliseconds.
const LIFE: std::ops::Range<u64> = 500..12_000;
/// The interval at which the pool `sizes` changes its frame size.
const RESIZE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Duration in seconds
    #[arg(long, default_value_t = 1200)]
    seconds: u64,
    /// Interval between samples, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Size of a frame in bytes; the default is I420 of 640x360
    #[arg(long, default_value_t = 345_600)]
    frame_bytes: u64,
    /// Seed of the schedule; the same seed gives the same schedule [default: random; the program prints it]
    #[arg(long)]
    seed: Option<u64>,
    /// Write each sample to this file, as comma-separated values
    #[arg(long)]
    csv: Option<PathBuf>,
}

/// A pool and its processes.
struct TestPool {
    name: &'static str,
    pool: String,
    producer: Actor,
    /// A consumer that stays connected.
    stayer: Actor,
    /// A consumer that leaves and joins repeatedly.
    rejoiner: Actor,
    guests: Vec<(Actor, Instant)>,
    tally: Shared,
    usage: [Series; 3],
    segments: BTreeSet<String>,
    born: Instant,
}

impl TestPool {
    fn start(
        name: &'static str,
        options: &[&str],
        dir: &Path,
        plan: &Plan,
        random: &mut fastrand::Rng,
    ) -> Result<Self, Error> {
        let pool = dir.join(format!("{name}.sock"));
        let pool = pool.to_string_lossy().into_owned();
        let tally = Shared::default();
        let mut args = vec!["producer".to_owned(), pool.clone(), "1".to_owned()];
        args.extend(["--fps".into(), "60".into()]);
        args.extend(options.iter().map(ToString::to_string));
        let mut producer = Actor::start("producer", &args, &tally)?;
        producer.wait_for("ready")?;
        producer.send(&format!("size {}", plan.frame_bytes));
        let mut pool = Self {
            name,
            stayer: new_consumer("stayer", &pool, random, &tally)?,
            rejoiner: new_consumer("rejoiner", &pool, random, &tally)?,
            pool,
            producer,
            guests: Vec::new(),
            tally,
            usage: [(); 3].map(|()| Series::new(plan.every)),
            segments: BTreeSet::new(),
            born: Instant::now(),
        };
        for _ in 0..GUESTS {
            pool.start_guest(random)?;
        }
        // Samples begin after both have joined.
        pool.stayer.wait_for("joined")?;
        pool.rejoiner.wait_for("joined")?;
        Ok(pool)
    }

    fn start_guest(&mut self, random: &mut fastrand::Rng) -> Result<(), Error> {
        let guest = new_consumer("guest", &self.pool, random, &self.tally)?;
        let until = Instant::now() + Duration::from_millis(random.u64(LIFE));
        self.guests.push((guest, until));
        lock(&self.tally).add("guests", 1);
        Ok(())
    }

    /// Ends guests whose lifetime is over, one in four by SIGKILL, and starts replacements.
    fn update(&mut self, random: &mut fastrand::Rng) -> Result<(), Error> {
        while let Some(at) = (self.guests.iter()).position(|(_, until)| *until <= Instant::now()) {
            let (mut guest, _) = self.guests.swap_remove(at);
            if random.u8(..4) == 0 {
                guest.kill()?;
                lock(&self.tally).add("killed", 1);
            } else {
                guest.end(&self.tally)?;
            }
            self.start_guest(random)?;
        }
        for actor in self.permanent() {
            if actor.crashed() {
                return Err("a process died by itself".into());
            }
        }
        Ok(())
    }

    /// The processes that run from beginning to end.
    fn permanent(&mut self) -> [&mut Actor; 3] {
        [&mut self.producer, &mut self.stayer, &mut self.rejoiner]
    }

    fn sample(&mut self) -> Result<(), Error> {
        let pids = self.permanent().map(|actor| actor.pid());
        for (series, pid) in self.usage.iter_mut().zip(pids) {
            series.push(Usage::of(pid)?);
        }
        self.segments.extend(figures::segments_of(pids[0])?);
        Ok(())
    }

    /// Ends the processes and collects the result.
    fn end(mut self) -> Result<Outcome, Error> {
        for (mut guest, _) in self.guests.drain(..) {
            guest.end(&self.tally)?;
        }
        self.stayer.end(&self.tally)?;
        self.rejoiner.end(&self.tally)?;
        let seconds = self.born.elapsed().as_secs_f64();
        self.producer.end(&self.tally)?;
        let left = |name: &&String| Path::new("/dev/shm").join(name).exists();
        let tally = lock(&self.tally).clone();
        Ok(Outcome {
            name: self.name,
            tally,
            seconds,
            usage: std::mem::take(&mut self.usage),
            segments: self.segments.iter().filter(left).count(),
        })
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        for (guest, _) in &mut self.guests {
            let _ = guest.kill();
        }
        for actor in self.permanent() {
            let _ = actor.kill();
        }
    }
}

fn new_consumer(
    role: &'static str,
    pool: &str,
    random: &mut fastrand::Rng,
    tally: &Shared,
) -> Result<Actor, Error> {
    let seed = random.u64(..).to_string();
    let mut args = vec!["soak-consumer".into(), pool.into(), "--seed".into(), seed];
    if role == "rejoiner" {
        args.push("--rejoin".into());
    }
    Actor::start(role, &args, tally)
}

/// Returns whether all checks passed.
pub(crate) fn run(plan: &Plan) -> Result<bool, Error> {
    let seed = plan.seed.unwrap_or_else(|| fastrand::u64(..));
    println!(
        "{} s, frames of {} bytes, seed {seed}",
        plan.seconds, plan.frame_bytes
    );
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir()?;
    let kinds: [(&str, &[&str]); 4] = [
        ("live", &[]),
        ("lossless", &["--lossless"]),
        ("posix-shm", &["--posix-shm"]),
        ("sizes", &[]),
    ];
    let mut pools = kinds
        .into_iter()
        .map(|(name, options)| TestPool::start(name, options, dir.path(), plan, &mut random))
        .collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let end = start + Duration::from_secs(plan.seconds);
    let every = Duration::from_secs(plan.every);
    let (mut next_sample, mut resize) = (start + every, start + RESIZE);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        for pool in &mut pools {
            pool.update(&mut random)?;
        }
        if Instant::now() >= next_sample {
            next_sample += every;
            pools.iter_mut().try_for_each(TestPool::sample)?;
        }
        if Instant::now() >= resize {
            resize += RESIZE;
            for pool in pools.iter_mut().filter(|pool| pool.name == "sizes") {
                let bytes = random.u64(plan.frame_bytes / 4..plan.frame_bytes * 2);
                pool.producer.send(&format!("size {bytes}"));
            }
        }
    }
    let outcomes = pools
        .into_iter()
        .map(TestPool::end)
        .collect::<Result<Vec<_>, _>>()?;
    let files = std::fs::read_dir(dir.path())?.count();
    if let Some(csv) = &plan.csv {
        std::fs::write(csv, figures::csv(&outcomes))?;
    }
    let mut passed = count(&outcomes);
    println!("| **files left behind** | {files} | | | |");
    passed &= files == 0;
    passed &= figures::report(&outcomes);
    println!(
        "\n{}",
        if passed {
            "PASSED: nothing grows, and all figures that must be 0 are 0."
        } else {
            "FAILED: a resource grows, or a figure that must be 0 is not."
        }
    );
    Ok(passed)
}

/// Prints the counters. Returns whether those that must be 0 are 0.
fn count(outcomes: &[Outcome]) -> bool {
    let row = |name: &str, value: &dyn Fn(&Outcome) -> String| {
        let values: Vec<String> = outcomes.iter().map(value).collect();
        println!("| {name} | {} |", values.join(" | "));
    };
    let sum = |keys: &'static [&'static str]| {
        move |outcome: &Outcome| keys.iter().map(|key| outcome.tally.get(key)).sum::<u64>()
    };
    let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.name).collect();
    println!("\n| | {} |\n|---|---:|---:|---:|---:|", names.join(" | "));
    row("frames published per second", &|outcome| {
        let published = outcome.tally.get("producer-published") as f64;
        format!("{:.1}", published / outcome.seconds)
    });
    for (name, keys) in [
        (
            "frames dropped because no slot was free",
            &["producer-dropped"][..],
        ),
        (
            "frames received and checked",
            &["stayer-received", "rejoiner-received", "guest-received"],
        ),
        (
            "frames missed by consumers that were late",
            &["stayer-missed", "rejoiner-missed", "guest-missed"],
        ),
        (
            "joins of consumers",
            &["stayer-joins", "rejoiner-joins", "guest-joins"],
        ),
        ("guests that were killed", &["killed"]),
        (
            "late lossless consumers disconnected",
            &["producer-timed-out"],
        ),
    ] {
        row(name, &|outcome| sum(keys)(outcome).to_string());
    }
    let mut passed = true;
    for (name, keys) in [
        (
            "**torn frames**",
            &["stayer-torn", "rejoiner-torn", "guest-torn"][..],
        ),
        ("**processes that crashed**", &["crashed"]),
        ("**correct consumers disconnected**", &["producer-cut-off"]),
        ("**slots not returned**", &["producer-slots-not-returned"]),
        ("**consumers still listed**", &["producer-consumers-left"]),
        (
            "**descriptors leaked by the producer**",
            &["producer-descriptors-leaked"],
        ),
        (
            "**mappings leaked by the producer**",
            &["producer-mappings-leaked"],
        ),
    ] {
        row(name, &|outcome| sum(keys)(outcome).to_string());
        passed &= outcomes.iter().all(|outcome| sum(keys)(outcome) == 0);
    }
    row("**segments left behind**", &|outcome| {
        outcome.segments.to_string()
    });
    passed &= outcomes.iter().all(|outcome| outcome.segments == 0);
    // Otherwise the run tested nothing.
    passed &= outcomes.iter().all(|outcome| {
        ["stayer-received", "rejoiner-received", "guest-received"]
            .iter()
            .all(|key| outcome.tally.get(key) > 0)
    });
    passed
}
