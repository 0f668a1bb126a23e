// SPDX-License-Identifier: MPL-2.0

//! The rig: starts the processes, injects random faults, and reports the results.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::tally::Tally;
use crate::{Error, namespace};

/// A process that does not end within this time hangs.
const END_TIMEOUT: Duration = Duration::from_secs(20);
const VICTIMS: usize = 4;
/// The size of the rig's separate /dev/shm in megabytes.
const SHM_SIZE: u64 = 64;

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Number of faults
    #[arg(long, default_value_t = 1000)]
    faults: u64,
    /// Seed of the schedule; the same seed gives the same schedule [default: random; the program prints it]
    #[arg(long)]
    seed: Option<u64>,
    /// Fail if a live process waits longer than this for another process
    #[arg(long)]
    limit_ms: Option<u64>,
}

pub(crate) type Shared = Arc<Mutex<Tally>>;

/// A child process of the rig.
pub(crate) struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    role: &'static str,
    stopped_until: Option<Instant>,
}

impl Actor {
    pub(crate) fn start(
        role: &'static str,
        args: &[String],
        tally: &Shared,
    ) -> Result<Self, Error> {
        Self::spawn(Command::new(std::env::current_exe()?), role, args, tally)
    }

    fn spawn(
        mut command: Command,
        role: &'static str,
        args: &[String],
        tally: &Shared,
    ) -> Result<Self, Error> {
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("no pipe")?;
        let (send, lines): (Sender<String>, _) = channel();
        let tally = tally.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.starts_with("tally ") {
                    lock(&tally).add_line(&line, role);
                } else if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            stdin,
            lines,
            role,
            stopped_until: None,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            // The write fails if the process was killed.
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub(crate) fn wait_for(&self, word: &str) -> Result<(), Error> {
        let until = Instant::now() + END_TIMEOUT;
        loop {
            match self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(lines) if lines == word => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("the {} hangs", self.role).into());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("the {} died by itself", self.role).into());
                }
            }
        }
    }

    /// Asks the process to end and waits for it.
    pub(crate) fn end(&mut self, tally: &Shared) -> Result<(), Error> {
        self.signal(Signal::CONT);
        self.send("end");
        let result = self.wait_for("ended");
        if result.is_err() {
            let _ = self.kill();
        }
        let status = self.child.wait()?;
        if !status.success() {
            lock(tally).add("crashed", 1);
            eprintln!("the {} ended with {status}", self.role);
        }
        result
    }

    /// Whether the process ended and was not killed by the rig.
    pub(crate) fn crashed(&mut self) -> bool {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                eprintln!(
                    "the {} ended with {status} (signal {:?})",
                    self.role,
                    status.signal()
                );
                true
            }
            _ => false,
        }
    }
}

pub(crate) fn lock(tally: &Shared) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Live,
    Lossless,
    PosixShm,
}

/// A pool with its producer and consumers. Faults are injected into all consumers except for the watcher.
struct TestPool {
    kind: Kind,
    pool: String,
    epoch: u64,
    producer: Actor,
    watcher: Option<Actor>,
    victims: Vec<Actor>,
    tally: Shared,
    starved_until: Option<Instant>,
    full_until: Option<Instant>,
    abilities: Abilities,
}

/// The namespaces that the rig can create on this machine.
#[derive(Debug, Clone, Copy)]
struct Abilities {
    own_shm: bool,
    own_clocks: bool,
}

impl TestPool {
    fn start(
        kind: Kind,
        dir: &Path,
        abilities: Abilities,
        random: &mut fastrand::Rng,
    ) -> Result<Self, Error> {
        let pool = socket(dir, kind).to_string_lossy().into_owned();
        let tally = Shared::default();
        let producer = Self::new_producer(kind, &pool, 1, &tally)?;
        let mut pool = Self {
            kind,
            watcher: Some(Self::new_consumer(
                &pool, "watcher", abilities, random, &tally,
            )?),
            pool,
            epoch: 1,
            producer,
            victims: Vec::new(),
            tally,
            starved_until: None,
            full_until: None,
            abilities,
        };
        for _ in 0..VICTIMS {
            let victim = pool.new_victim(random)?;
            pool.victims.push(victim);
        }
        Ok(pool)
    }

    fn new_producer(kind: Kind, pool: &str, epoch: u64, tally: &Shared) -> Result<Actor, Error> {
        let mut args = vec!["producer".to_owned(), pool.to_owned(), epoch.to_string()];
        match kind {
            Kind::Live => {}
            Kind::Lossless => args.push("--lossless".into()),
            Kind::PosixShm => args.push("--posix-shm".into()),
        }
        let producer = Actor::start("producer", &args, tally)?;
        producer.wait_for("ready")?;
        Ok(producer)
    }

    fn new_consumer(
        pool: &str,
        role: &'static str,
        abilities: Abilities,
        random: &mut fastrand::Rng,
        tally: &Shared,
    ) -> Result<Actor, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut args = vec!["consumer".to_owned(), pool.to_owned()];
        let mut arg =
            |name: &str, value: u64| args.extend([format!("--{name}"), value.to_string()]);
        arg("seed", random.u64(..));
        if role == "watcher" {
            args.push("--watcher".into());
        } else {
            // Fast consumers, slow consumers, and consumers that never release frames.
            let budget = random.u64(1..8);
            arg("max-held", budget);
            let forever = random.u8(..4) == 0;
            arg("keep", if forever { 1000 } else { random.u64(..budget) });
            let slow = random.u8(..4) == 0;
            arg("slow", if slow { 40 } else { 0 });
            let elsewhere = random.u8(..4) == 0 && abilities.own_clocks;
            if elsewhere {
                namespace::with_clock_ahead(&mut command, random.u64(1..1_000_000));
            }
            for (is_so, key) in [
                (forever, "holding"),
                (slow, "slow"),
                (elsewhere, "elsewhere"),
            ] {
                lock(tally).add(key, is_so.into());
            }
        }
        Actor::spawn(command, role, &args, tally)
    }

    fn new_victim(&self, random: &mut fastrand::Rng) -> Result<Actor, Error> {
        Self::new_consumer(&self.pool, "victim", self.abilities, random, &self.tally)
    }

    /// Injects one fault. Returns its name.
    fn inject_fault(&mut self, random: &mut fastrand::Rng) -> Result<&'static str, Error> {
        let at = random.usize(..self.victims.len());
        Ok(match random.u8(..100) {
            0..28 => {
                self.victims[at].kill()?;
                self.victims[at] = self.new_victim(random)?;
                "SIGKILL of a consumer"
            }
            28..42 => {
                let victim = &mut self.victims[at];
                victim.signal(Signal::STOP);
                victim.stopped_until =
                    Some(Instant::now() + Duration::from_millis(random.u64(50..3000)));
                "SIGSTOP of a consumer"
            }
            42..49 => {
                self.producer.kill()?;
                self.epoch += 1;
                std::thread::sleep(Duration::from_millis(random.u64(..50)));
                self.producer = Self::new_producer(self.kind, &self.pool, self.epoch, &self.tally)?;
                self.starved_until = None;
                "SIGKILL and restart of the producer"
            }
            49..58 => {
                self.producer
                    .send(&format!("size {}", random.u64(16..200) << 10));
                "frames of another size"
            }
            58..63 => {
                self.producer.send(&format!("grab {}", random.u64(1..40)));
                "a pool that grows"
            }
            63..68 => {
                self.producer.send("drop");
                self.producer.send("collect");
                "a pool that shrinks"
            }
            68..72 => {
                self.producer.send("starve");
                self.starved_until =
                    Some(Instant::now() + Duration::from_millis(random.u64(20..400)));
                "no descriptors left in the producer (memfd fails)"
            }
            72..75 => {
                self.victims[at].send("starve");
                "no descriptors left in a consumer"
            }
            75..79 => {
                self.victims[at].send(&format!("fork {}", random.u64(1..1000)));
                "fork without exec in a consumer"
            }
            79..82 => {
                self.producer.send(&format!("fork {}", random.u64(1..1000)));
                "fork without exec in the producer"
            }
            82..87 => {
                let (call, name) = [
                    ("memfd", "memfd_create fails in the producer"),
                    ("fallocate", "fallocate fails in the producer"),
                    ("mmap", "mmap fails in the producer"),
                    ("send", "sendmsg fails in the producer"),
                ][random.usize(..4)];
                let millis = random.u64(20..400);
                self.producer.send(&format!("refuse {millis} {call}"));
                name
            }
            87..91 => {
                let (call, name) = [
                    ("mmap", "mmap fails in a consumer"),
                    ("send", "sendmsg fails in a consumer"),
                ][random.usize(..2)];
                let millis = random.u64(20..400);
                self.victims[at].send(&format!("refuse {millis} {call}"));
                name
            }
            91..94 => {
                let order = format!("jump {} {}", random.u64(20..400), random.i64(-9000..9000));
                self.victims[at].send(&order);
                "the clock of a consumer jumps"
            }
            94..96 => {
                let order = format!("jump {} {}", random.u64(20..400), random.i64(-9000..9000));
                self.producer.send(&order);
                "the clock of the producer jumps"
            }
            _ if self.abilities.own_shm && self.kind == Kind::PosixShm => {
                namespace::fill_shm()?;
                self.full_until = Some(Instant::now() + Duration::from_millis(random.u64(20..400)));
                // Larger frames and more slots, so that the pool needs more memory.
                self.producer
                    .send(&format!("size {}", random.u64(16..200) << 10));
                self.producer.send(&format!("grab {}", random.u64(1..40)));
                "a full /dev/shm"
            }
            _ => {
                self.producer
                    .send(&format!("size {}", random.u64(16..200) << 10));
                "frames of another size"
            }
        })
    }

    /// Ends faults whose time has passed, and checks that no process has crashed.
    fn update(&mut self, random: &mut fastrand::Rng) -> Result<(), Error> {
        let now = Instant::now();
        for at in 0..self.victims.len() {
            let victim = &mut self.victims[at];
            if victim.stopped_until.is_some_and(|until| until <= now) {
                victim.stopped_until = None;
                victim.signal(Signal::CONT);
            }
            if victim.crashed() {
                lock(&self.tally).add("crashed", 1);
                self.victims[at] = self.new_victim(random)?;
            }
        }
        if self.starved_until.is_some_and(|until| until <= now) {
            self.starved_until = None;
            self.producer.send("feed");
        }
        if self.full_until.is_some_and(|until| until <= now) {
            self.full_until = None;
            namespace::empty_shm();
        }
        if self.producer.crashed() {
            return Err("the producer died by itself".into());
        }
        if self.watcher.as_mut().is_some_and(Actor::crashed) {
            return Err("the watcher died by itself".into());
        }
        Ok(())
    }

    fn end(mut self) -> Result<Tally, Error> {
        if self.full_until.take().is_some() {
            namespace::empty_shm();
        }
        self.producer.send("feed");
        self.producer.send("drop");
        for mut victim in self.victims.drain(..) {
            victim.signal(Signal::CONT);
            victim.kill()?;
        }
        if let Some(mut watcher) = self.watcher.take() {
            watcher.end(&self.tally)?;
        }
        self.producer.end(&self.tally)?;
        let tally = lock(&self.tally).clone();
        Ok(tally)
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        for actor in self.victims.iter_mut().chain(self.watcher.as_mut()) {
            let _ = actor.kill();
        }
        let _ = self.producer.kill();
    }
}

/// The socket of a pool.
fn socket(dir: &Path, kind: Kind) -> PathBuf {
    dir.join(format!("{kind:?}.sock"))
}

/// The number of segments that a pool left in `/dev/shm`. Segments of other programs are not counted.
fn segments_left(pool: &Path) -> Result<usize, Error> {
    let removed = xmem_core::discovery::remove_stale(pool)?;
    Ok(removed
        .iter()
        .filter(|path| path.starts_with("/dev/shm"))
        .count())
}

/// Returns whether all checks passed.
pub(crate) fn run(plan: &Plan) -> Result<bool, Error> {
    let seed = plan.seed.unwrap_or_else(|| fastrand::u64(..));
    println!("{} faults, seed {seed}", plan.faults);
    let mut random = fastrand::Rng::with_seed(seed);
    let own_shm = namespace::own_shm(SHM_SIZE);
    if let Err(error) = &own_shm {
        println!("NOT TESTED: a full /dev/shm; cannot create a mount namespace ({error})");
    }
    let abilities = Abilities {
        own_shm: own_shm.is_ok(),
        own_clocks: namespace::clocks_can_differ(),
    };
    if !abilities.own_clocks {
        println!(
            "NOT TESTED: consumers with another CLOCK_MONOTONIC; cannot create a time namespace"
        );
    }
    let dir = tempfile::tempdir()?;
    let start = Instant::now();
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let mut pools = [Kind::Live, Kind::Lossless, Kind::PosixShm]
        .into_iter()
        .map(|kind| TestPool::start(kind, dir.path(), abilities, &mut random))
        .collect::<Result<Vec<_>, _>>()?;
    for _ in 0..plan.faults {
        let at = random.usize(..pools.len());
        *faults
            .entry(pools[at].inject_fault(&mut random)?)
            .or_default() += 1;
        let pause = Instant::now() + Duration::from_millis(random.u64(..120));
        while Instant::now() < pause {
            std::thread::sleep(Duration::from_millis(5));
            for pool in &mut pools {
                pool.update(&mut random)?;
            }
        }
    }
    let tallies = pools
        .into_iter()
        .map(|pool| Ok((pool.kind, pool.end()?)))
        .collect::<Result<Vec<_>, Error>>()?;
    let left = std::fs::read_dir(dir.path())?.count();
    let segments_left = segments_left(&socket(dir.path(), Kind::PosixShm))?;
    println!("took {:.0} s\n", start.elapsed().as_secs_f32());
    println!("| fault | times |\n|---|---:|");
    for (fault, times) in &faults {
        println!("| {fault} | {times} |");
    }
    Ok(report(&tallies, left, segments_left, plan.limit_ms))
}

/// Prints the figures. Returns whether all figures that must be 0 are 0, and no wait is above the limit.
fn report(
    tallies: &[(Kind, Tally)],
    files_left: usize,
    segments_left: usize,
    limit_ms: Option<u64>,
) -> bool {
    let row = |name: &str, value: &dyn Fn(&Tally) -> String| {
        let values: Vec<String> = tallies.iter().map(|(_, tally)| value(tally)).collect();
        println!("| {name} | {} |", values.join(" | "));
    };
    let sum = |keys: &'static [&'static str]| {
        move |tally: &Tally| keys.iter().map(|key| tally.get(key)).sum::<u64>()
    };
    let millis = |key: &'static str| {
        move |tally: &Tally| format!("{:.1} ms", tally.get(key) as f64 / 1000.0)
    };
    println!("\n| | live | lossless | posix-shm, live |\n|---|---:|---:|---:|");
    for (name, keys) in [
        ("frames published", &["producer-published"][..]),
        (
            "frames dropped by the producer, for want of slots or memory",
            &["producer-dropped"],
        ),
        ("frames received", &["watcher-received", "victim-received"]),
        (
            "frames checked a second time",
            &["watcher-checked", "victim-checked"],
        ),
        (
            "reconnections of consumers to a new producer",
            &["watcher-reconnects", "victim-reconnects"],
        ),
        ("consumers that never released frames", &["holding"]),
        (
            "consumers that processed each frame for up to 40 ms",
            &["slow"],
        ),
        ("consumers with another CLOCK_MONOTONIC", &["elsewhere"]),
        (
            "stopped lossless consumers disconnected",
            &["producer-timed-out"],
        ),
    ] {
        row(name, &|tally| sum(keys)(tally).to_string());
    }
    row(
        "longest wait of a live producer for any process",
        &millis("max-producer-wait"),
    );
    row(
        "longest wait of a lossless producer for consumers",
        &millis("max-producer-lossless-wait"),
    );
    row(
        "longest wait of an unharmed consumer for a published frame",
        &millis("max-watcher-wait"),
    );
    let mut passed = true;
    for (name, keys) in [
        ("**torn frames**", &["watcher-torn", "victim-torn"][..]),
        (
            "**frames lost by living lossless consumers**",
            &["watcher-lost", "victim-lost"],
        ),
        ("**processes that crashed**", &["crashed"]),
        (
            "**correct consumers disconnected**",
            &["producer-cut-off", "watcher-cut-off", "victim-cut-off"],
        ),
        ("**slots not returned**", &["producer-slots-not-returned"]),
        ("**consumers still listed**", &["producer-consumers-left"]),
        ("**descriptors leaked**", &["producer-descriptors-leaked"]),
        ("**mappings leaked**", &["producer-mappings-leaked"]),
    ] {
        row(name, &|tally| sum(keys)(tally).to_string());
        passed &= tallies.iter().all(|(_, tally)| sum(keys)(tally) == 0);
    }
    println!("| **files left behind** | {files_left} | | {segments_left} |");
    passed &= files_left == 0 && segments_left == 0;
    if let Some(limit) = limit_ms {
        let waits = ["max-producer-wait", "max-watcher-wait"];
        passed &= tallies
            .iter()
            .filter(|(kind, _)| *kind != Kind::Lossless)
            .all(|(_, tally)| waits.iter().all(|key| tally.get(key) <= limit * 1000));
    }
    println!(
        "\n{}",
        if passed {
            "PASSED: all figures that must be 0 are 0."
        } else {
            "FAILED: a figure that must be 0 is not, or a wait is above the limit."
        }
    );
    passed
}
