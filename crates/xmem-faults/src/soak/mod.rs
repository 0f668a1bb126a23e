// SPDX-License-Identifier: MPL-2.0

//! A soak: four pools at 60 frames a second, sixteen consumers that join and leave, and a look every few seconds at
//! what the processes that live on use. That has to stay where it was.

pub(crate) mod consumer;
mod figures;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Error;
use crate::rig::{Actor, Shared, lock};
use crate::tally::Tally;
use figures::{Series, Usage};

/// Consumers of each pool whose processes end, and are started anew.
const GUESTS: usize = 2;
/// How long a guest lives.
const LIFE: std::ops::Range<u64> = 500..12_000;
/// How often the pool of changing sizes has another one.
const RESIZE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// How long
    #[arg(long, default_value_t = 1200)]
    seconds: u64,
    /// How often to look, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Bytes of a frame; the default is I420 of 640x360
    #[arg(long, default_value_t = 345_600)]
    frame_bytes: u64,
    /// The same seed gives the same schedule; without one it is drawn, and printed
    #[arg(long)]
    seed: Option<u64>,
    /// Write each look into this file, as comma-separated values
    #[arg(long)]
    csv: Option<PathBuf>,
}

/// A pool and its processes.
struct Scene {
    name: &'static str,
    pool: String,
    producer: Actor,
    /// Stays connected all the time.
    stayer: Actor,
    /// One process that leaves and joins again.
    rejoiner: Actor,
    guests: Vec<(Actor, Instant)>,
    tally: Shared,
    usage: [Series; 3],
    segments: BTreeSet<String>,
    born: Instant,
}

/// The result of a pool.
struct Outcome {
    name: &'static str,
    tally: Tally,
    /// How long it was there, in seconds.
    seconds: f64,
    usage: [Series; 3],
    /// Segments that its producer had, and that are there still.
    segments: usize,
}

impl Scene {
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
        let mut scene = Self {
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
            scene.invite(random)?;
        }
        // Their use before does not count.
        scene.stayer.wait_for("joined")?;
        scene.rejoiner.wait_for("joined")?;
        Ok(scene)
    }

    fn invite(&mut self, random: &mut fastrand::Rng) -> Result<(), Error> {
        let guest = new_consumer("guest", &self.pool, random, &self.tally)?;
        let until = Instant::now() + Duration::from_millis(random.u64(LIFE));
        self.guests.push((guest, until));
        lock(&self.tally).add("guests", 1);
        Ok(())
    }

    /// Sees off guests whose time is over, one in four by SIGKILL, and has others come.
    fn tend(&mut self, random: &mut fastrand::Rng) -> Result<(), Error> {
        while let Some(at) = (self.guests.iter()).position(|(_, until)| *until <= Instant::now()) {
            let (mut guest, _) = self.guests.swap_remove(at);
            if random.u8(..4) == 0 {
                guest.kill()?;
                lock(&self.tally).add("killed", 1);
            } else {
                guest.end(&self.tally)?;
            }
            self.invite(random)?;
        }
        for actor in self.lasting() {
            if actor.crashed() {
                return Err("a process died by itself".into());
            }
        }
        Ok(())
    }

    /// The processes that are there from beginning to end.
    fn lasting(&mut self) -> [&mut Actor; 3] {
        [&mut self.producer, &mut self.stayer, &mut self.rejoiner]
    }

    fn look(&mut self) -> Result<(), Error> {
        let pids = self.lasting().map(|actor| actor.pid());
        for (series, pid) in self.usage.iter_mut().zip(pids) {
            series.push(Usage::of(pid)?);
        }
        self.segments.extend(figures::segments_of(pids[0])?);
        Ok(())
    }

    /// Ends its processes.
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

impl Drop for Scene {
    fn drop(&mut self) {
        for (guest, _) in &mut self.guests {
            let _ = guest.kill();
        }
        for actor in self.lasting() {
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

/// Returns whether all stayed as it was.
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
    let mut scenes = kinds
        .into_iter()
        .map(|(name, options)| Scene::start(name, options, dir.path(), plan, &mut random))
        .collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let end = start + Duration::from_secs(plan.seconds);
    let every = Duration::from_secs(plan.every);
    let (mut look, mut resize) = (start + every, start + RESIZE);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        for scene in &mut scenes {
            scene.tend(&mut random)?;
        }
        if Instant::now() >= look {
            look += every;
            scenes.iter_mut().try_for_each(Scene::look)?;
        }
        if Instant::now() >= resize {
            resize += RESIZE;
            for scene in scenes.iter_mut().filter(|scene| scene.name == "sizes") {
                let bytes = random.u64(plan.frame_bytes / 4..plan.frame_bytes * 2);
                scene.producer.send(&format!("size {bytes}"));
            }
        }
    }
    let outcomes = scenes
        .into_iter()
        .map(Scene::end)
        .collect::<Result<Vec<_>, _>>()?;
    let files = std::fs::read_dir(dir.path())?.count();
    if let Some(csv) = &plan.csv {
        std::fs::write(csv, figures::csv(&outcomes))?;
    }
    let mut well = count(&outcomes);
    println!("| **files left behind** | {files} | | | |");
    well &= files == 0;
    well &= figures::report(&outcomes);
    println!(
        "\n{}",
        if well {
            "All stayed as it was."
        } else {
            "NOT ALL STAYED AS IT WAS."
        }
    );
    Ok(well)
}

/// Prints what was counted. Returns whether what has to be 0 is.
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
            "frames dropped for want of slots",
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
            "times that a consumer joined",
            &["stayer-joins", "rejoiner-joins", "guest-joins"],
        ),
        ("of the leaving ones, killed", &["killed"]),
        (
            "late lossless consumers given up on",
            &["producer-timed-out"],
        ),
    ] {
        row(name, &|outcome| sum(keys)(outcome).to_string());
    }
    let mut well = true;
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
        well &= outcomes.iter().all(|outcome| sum(keys)(outcome) == 0);
    }
    row("**segments left behind**", &|outcome| {
        outcome.segments.to_string()
    });
    well &= outcomes.iter().all(|outcome| outcome.segments == 0);
    // Otherwise nothing was tried.
    well &= outcomes.iter().all(|outcome| {
        ["stayer-received", "rejoiner-received", "guest-received"]
            .iter()
            .all(|key| outcome.tally.get(key) > 0)
    });
    well
}
