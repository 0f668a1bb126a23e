// SPDX-License-Identifier: MPL-2.0

//! The steps of the demo, and the checks between them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Result, root};

use super::input::Input;
use super::pool::Pool;
use super::process::Process;
use super::proof::Proof;
use super::screen::Screen;
use super::stage::{POOL, Stage};
use crate::recording::Recording;

/// The number of frames that the Rust consumer holds. It loses them when it is killed.
const KEPT: u64 = 6;
/// The time limit of each wait.
const PATIENCE: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Show<'a> {
    stage: &'a Stage,
    input: &'a Input,
    picture: &'a Path,
    screen: Screen,
    start: Instant,
    /// `None` between the kill and the restart.
    producer: Option<Process>,
    consumers: Vec<Process>,
}

/// The three consumers. The demo kills the last one.
fn consumers(stage: &Stage) -> Vec<(&'static str, Command)> {
    let launch = |name, rest| {
        let mut command = stage.command("gst-launch-1.0");
        let words = format!("-q xmemsrc pool={POOL} client-name={name} ! {rest} ! fakesink");
        command.args(words.split(' '));
        (name, command)
    };
    let mut rust = stage.command(Stage::built("xmem-consumer"));
    rust.args([POOL, &KEPT.to_string()]);
    vec![
        launch("preview", "videoconvert ! video/x-raw,format=BGRx"),
        launch("thumbnails", "videoscale ! video/x-raw,width=320"),
        ("xmem-consumer", rust),
    ]
}

impl<'a> Show<'a> {
    pub(super) fn new(stage: &'a Stage, input: &'a Input, picture: &'a Path) -> Result<Self> {
        let mut show = Self {
            stage,
            input,
            picture,
            screen: Screen::new(),
            start: Instant::now(),
            producer: None,
            consumers: Vec::new(),
        };
        show.start_producer()?;
        for (name, command) in consumers(stage) {
            show.consumers.push(Process::start(stage, name, command)?);
        }
        Ok(show)
    }

    pub(super) fn play(mut self, seconds: u32, proof: &mut Proof) -> Result<Recording> {
        let all = Duration::from_secs(seconds.into());
        let input = self.input.describe();
        self.screen
            .say(&format!("decoding {input}; three processes read it"));
        let first = self.wait_for_all_consumers()?;
        self.go_on_until(all.mul_f32(0.3))?;
        self.prove_sharing(&first, proof)?;
        self.kill_consumer(proof)?;
        self.go_on_until(all.mul_f32(0.55))?;
        self.kill_producer(proof)?;
        self.go_on_until(all.mul_f32(0.8))?;
        self.take_picture(proof)?;
        self.go_on_until(all)?;
        Ok(self.screen.recording())
    }

    fn prove_sharing(&mut self, first: &Pool, proof: &mut Proof) -> Result {
        let now = self.pool()?;
        let published = now.published - first.published;
        let mut missed = 0;
        let mut copied = 0;
        let mut all_read = published > 0;
        for process in &self.consumers {
            let (Some(a), Some(b)) = (first.consumer(process.pid()), now.consumer(process.pid()))
            else {
                all_read = false;
                continue;
            };
            missed += b.missed - a.missed;
            copied += b.copied;
            all_read &= 2 * (b.received - a.received) > published;
        }
        proof.claim(
            all_read && copied == 0,
            "one decoder fed 3 processes, which copied nothing",
            &format!("{} frames, {missed} missed", now.published),
        );
        // Copies that xmemsink makes before the decoder uses the pool are not an error.
        proof.claim(
            now.copied == first.copied || !self.input.is_copy_free(),
            &format!("xmemsink copied {} of them", now.copied),
            "",
        );
        Ok(())
    }

    /// Kills a consumer that holds frames, and checks that its slots become free.
    fn kill_consumer(&mut self, proof: &mut Proof) -> Result {
        let victim = self.consumers.pop().ok_or("there is no consumer")?;
        let (name, pid) = (victim.name, victim.pid());
        let before = self.until("the Rust consumer keeps its frames", |pool| {
            pool.consumer(pid).is_some_and(|c| c.held >= KEPT)
        })?;
        let held = before.consumer(pid).map_or(0, |c| c.held);
        victim.kill();
        let dead = Instant::now();
        let mut after = self.pool()?;
        while after.consumer(pid).is_some() && dead.elapsed() < PATIENCE {
            after = self.pool()?;
        }
        let back = after.consumer(pid).is_none();
        let time = dead.elapsed().as_millis();
        self.screen.say(&format!(
            "killed {name} ({pid}) with SIGKILL: it held {held} slots, they were free {time} ms later",
        ));
        proof.claim(
            back && held > 0,
            "a killed consumer's slots came back",
            &format!("{held} slots in {time} ms"),
        );

        self.go_on_for(Duration::from_secs(1))?;
        let later = self.pool()?;
        let others_go_on = self.consumers.iter().all(|process| {
            let received = |pool: &Pool| pool.consumer(process.pid()).map_or(0, |c| c.received);
            received(&later) > received(&after)
        });
        proof.claim(others_go_on, "the others did not notice", "");

        let (name, command) = consumers(self.stage).pop().ok_or("there is no consumer")?;
        self.consumers
            .push(Process::start(self.stage, name, command)?);
        self.screen.say(&format!("started {name} again"));
        Ok(())
    }

    /// Kills the producer, starts it again, and checks that the consumers continue.
    fn kill_producer(&mut self, proof: &mut Proof) -> Result {
        self.wait_for_all_consumers()?;
        let producer = self.producer.take().ok_or("there is no producer")?;
        let pid = producer.pid();
        producer.kill();
        self.screen
            .say(&format!("killed the producer ({pid}) with SIGKILL"));
        self.go_on_for(Duration::from_secs(1))?;

        self.start_producer()?;
        self.screen.say("started it again");
        let again = Instant::now();
        // The consumers must be the same processes: if one has ended, this returns an error.
        self.wait_for_all_consumers()?;
        let time = again.elapsed().as_secs_f32();
        self.screen.say(&format!(
            "all consumers continue, {time:.1} s after its start"
        ));
        proof.claim(
            true,
            "a killed producer's consumers waited for the next producer and continued",
            &format!("all 3 within {time:.1} s of its start"),
        );

        let log = self.consumers.last().map(Process::log).unwrap_or_default();
        let (same, held) = held_frames(&log).unwrap_or_default();
        proof.claim(
            held > 0 && same == held,
            "frames that they held did not change",
            &format!("{same} of {held}"),
        );
        Ok(())
    }

    /// Takes one frame out of the pool and writes it as a PNG.
    fn take_picture(&mut self, proof: &mut Proof) -> Result {
        // Remove the file of an earlier run, which would hide a failure.
        let _ = std::fs::remove_file(self.picture);
        let mut command = self.stage.command("gst-launch-1.0");
        let source = format!("-q xmemsrc pool={POOL} client-name=picture num-buffers=1");
        command.args(source.split(' '));
        command.args(["!", "videoconvert", "!", "pngenc", "!", "filesink"]);
        command.arg(format!("location={}", self.picture.display()));
        Process::start(self.stage, "picture", command)?.finish(PATIENCE)?;
        let size = png_size(self.picture);
        let path = self.picture.strip_prefix(root()).unwrap_or(self.picture);
        let path = path.display();
        self.screen.say(&format!("wrote {path}"));
        proof.claim(
            size.is_some(),
            "a fourth process wrote a frame as a PNG",
            &size.map_or_else(|| path.to_string(), |(w, h)| format!("{w}x{h}, {path}")),
        );
        Ok(())
    }

    fn start_producer(&mut self) -> Result {
        let command = self.input.producer(self.stage);
        self.producer = Some(Process::start(self.stage, "producer", command)?);
        Ok(())
    }

    /// Waits until each consumer gets frames from the current producer.
    fn wait_for_all_consumers(&mut self) -> Result<Pool> {
        let producer = self.producer.as_ref().map(Process::pid);
        let pids: Vec<u32> = self.consumers.iter().map(Process::pid).collect();
        self.until("each consumer gets frames", |pool| {
            Some(pool.pid) == producer
                && pids
                    .iter()
                    .all(|pid| pool.consumer(*pid).is_some_and(|c| c.received > 0))
        })
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Pool) -> bool) -> Result<Pool> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.tick()? {
                Some(pool) if done(&pool) => return Ok(pool),
                _ => {}
            }
        }
        Err(format!("{what}: not within {} s", PATIENCE.as_secs()).into())
    }

    fn go_on_until(&mut self, time: Duration) -> Result {
        while self.start.elapsed() < time {
            self.tick()?;
        }
        Ok(())
    }

    fn go_on_for(&mut self, time: Duration) -> Result {
        self.go_on_until(self.start.elapsed() + time)
    }

    /// Checks all processes, reads the pool, and draws the table.
    fn tick(&mut self) -> Result<Option<Pool>> {
        self.stage.check_interrupt()?;
        for process in self.producer.iter_mut().chain(&mut self.consumers) {
            process.check()?;
        }
        let pool = Pool::look(self.stage)?;
        self.screen.draw(pool.as_ref());
        std::thread::sleep(TICK);
        Ok(pool)
    }

    fn pool(&self) -> Result<Pool> {
        Pool::look(self.stage)?.ok_or_else(|| "the producer does not answer".into())
    }
}

/// Parses the Rust consumer's last log line about the frames that it held when its producer died.
fn held_frames(log: &str) -> Option<(u32, u32)> {
    let line = log
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("producer lost, "))?;
    let mut words = line.split(' ');
    let same = words.next()?.parse().ok()?;
    let held = words.nth(1)?.parse().ok()?;
    Some((same, held))
}

/// Width and height of a PNG file. `None` for other files.
fn png_size(path: &Path) -> Option<(u32, u32)> {
    let bytes = std::fs::read(path).ok()?;
    let header = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n")?;
    let number = |at: usize| Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
    // The fields follow the length and the name of the first chunk.
    Some((number(8)?, number(12)?))
}

#[cfg(test)]
mod tests {
    use super::held_frames;

    #[test]
    fn the_last_line_of_the_log_counts() {
        let log = "connected to process 1\nproducer lost, 2 of 6 frames held are unchanged\n\
                   producer lost, 6 of 6 frames held are unchanged\n";
        assert_eq!(held_frames(log), Some((6, 6)));
        assert_eq!(held_frames("connected to process 1\n"), None);
    }
}
