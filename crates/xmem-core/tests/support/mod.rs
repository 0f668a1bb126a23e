// SPDX-License-Identifier: MPL-2.0

//! Functions that the tests share: pools, frames with known content, waiting.
#![allow(dead_code, unreachable_pub)] // every test program uses a part of it

pub mod buffers;
pub mod child;
pub mod raw;
pub mod users;
#[cfg(any(feature = "fault-points", debug_assertions))]
pub mod victim;

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use xmem_core::discovery::query;
use xmem_core::{
    ConnectError, Consumer, ConsumerBuilder, FrameMeta, PoolStats, Producer, ProducerBuilder,
    ReadLease, ReceiveError, Wait, WriteLease,
};

/// Not a limit on speed: a test that takes longer hangs.
pub const HANG: Duration = Duration::from_secs(60);

/// A directory for one test, with its pools.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self {
            dir: tempfile::Builder::new().prefix("xm").tempdir().unwrap(),
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The pool "p", by the absolute path of its socket.
    pub fn pool(&self) -> String {
        self.path().join("p.sock").to_str().unwrap().to_owned()
    }

    /// A producer of the pool "p" with these options.
    #[track_caller]
    pub fn producer(&self, options: impl FnOnce(ProducerBuilder) -> ProducerBuilder) -> Producer {
        options(Producer::builder(self.pool())).build().unwrap()
    }

    /// A consumer of the pool "p" with these options.
    #[track_caller]
    pub fn consumer(&self, options: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder) -> Consumer {
        options(Consumer::builder(self.pool())).connect().unwrap()
    }

    /// The files in the directory.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        files
    }

    /// The segments in /dev/shm that belong to the pool "p".
    pub fn segments(&self) -> Vec<PathBuf> {
        let prefix = self.segment_prefix();
        std::fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect()
    }

    /// The prefix of their names.
    pub fn segment_prefix(&self) -> String {
        let dir = std::fs::metadata(self.path()).unwrap();
        let hash = [dir.dev().to_le_bytes(), dir.ino().to_le_bytes()]
            .iter()
            .flatten()
            .chain(b"p.sock")
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let uid = rustix::process::geteuid().as_raw();
        format!("xmem-{uid}-{hash:016x}.")
    }

    /// Asserts that no socket, lock or segment is left after everything was dropped.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!(self.files(), Vec::<PathBuf>::new());
        assert_eq!(self.segments(), Vec::<PathBuf>::new());
    }
}

/// Waits until a condition is true.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < HANG, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asserts that a text contains this.
#[track_caller]
pub fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in this:\n{text}");
}

/// The statistics of a producer. The query is repeated if the producer of a busy machine does not answer in time.
#[track_caller]
pub fn stats_of(pool: &str) -> PoolStats {
    let mut stats = None;
    eventually("an answer", || {
        stats = match query(pool) {
            Err(ConnectError::NoAnswer { .. }) => None,
            answer => Some(answer.unwrap()),
        };
        stats.is_some()
    });
    stats.unwrap()
}

/// The content of a seed repeats after this number of bytes, except for the first eight of them. Only libc handles whole frames, because
/// loops over their words take most of the time of tests that are built without optimisation.
const BLOCK: usize = 1024;

fn word(seed: u64, number: usize) -> [u8; 8] {
    let start = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (start ^ number as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word.to_le_bytes()
}

/// Calls the function with each block of the content of a seed, and where it is.
fn each_block(seed: u64, len: usize, mut work: impl FnMut(Range<usize>, &[u8])) {
    let mut block = [0; BLOCK];
    let (words, _) = block.as_chunks_mut();
    for (number, to) in words.iter_mut().enumerate() {
        *to = word(seed, number);
    }
    for (number, start) in (0..len).step_by(BLOCK).enumerate() {
        let end = len.min(start + BLOCK);
        block[..8].copy_from_slice(&word(seed, BLOCK + number));
        work(start..end, &block[..end - start]);
    }
}

/// Writes the content of a seed. Different seeds differ in any eight bytes at the same position.
pub fn fill(seed: u64, bytes: &mut [u8]) {
    each_block(seed, bytes.len(), |at, block| {
        bytes[at].copy_from_slice(block);
    });
}

/// The first position at which bytes differ from the content of a seed.
pub fn difference(seed: u64, bytes: &[u8]) -> Option<usize> {
    let mut first = None;
    each_block(seed, bytes.len(), |at, block| {
        let part = &bytes[at.clone()];
        if first.is_none() && part != block {
            let differs = part.iter().zip(block).position(|(own, its)| own != its);
            first = differs.map(|it| at.start + it);
        }
    });
    first
}

/// Publishes the content of a seed. The frame's PTS is the seed.
#[track_caller]
pub fn publish(producer: &Producer, seed: u64, size: usize) -> ReadLease {
    filled(producer, seed, size)
        .publish(seeded(seed, size))
        .unwrap()
}

/// As `publish`, with a producer that waits for its consumers.
#[track_caller]
pub fn publish_wait(producer: &Producer, seed: u64, size: usize) -> ReadLease {
    producer.wait_for_room(Wait::FOREVER).unwrap();
    let mut slot = producer.acquire_wait(size, Wait::up_to(HANG)).unwrap();
    fill(seed, slot.as_mut_slice());
    slot.publish(seeded(seed, size)).unwrap()
}

/// An unpublished slot with the content of a seed.
#[track_caller]
pub fn filled(producer: &Producer, seed: u64, size: usize) -> WriteLease {
    let mut slot = producer.acquire(size).unwrap();
    fill(seed, slot.as_mut_slice());
    slot
}

pub fn seeded(seed: u64, size: usize) -> FrameMeta {
    FrameMeta::new(size).pts(seed)
}

/// Asserts that a frame has the content of this seed.
#[track_caller]
pub fn assert_frame(frame: &ReadLease, seed: u64, size: usize) {
    assert_eq!(frame.meta().pts, Some(seed));
    let bytes = frame.bytes().unwrap();
    assert_eq!(bytes.len(), size, "size of frame {seed}");
    assert_eq!(
        difference(seed, bytes),
        None,
        "frame {seed} is not what was published"
    );
}

/// Asserts that a frame has the content of the seed in its metadata.
#[track_caller]
pub fn assert_whole(frame: &ReadLease) {
    let seed = frame.meta().pts.expect("a seed");
    assert_eq!(
        difference(seed, frame.bytes().unwrap()),
        None,
        "frame {seed} is torn"
    );
}

/// Waits for the next frame.
#[track_caller]
pub fn receive(consumer: &mut Consumer) -> ReadLease {
    consumer.receive(Some(HANG)).unwrap()
}

/// Asserts that no frame waits for the consumer.
#[track_caller]
pub fn assert_no_frame(consumer: &mut Consumer) {
    let next = consumer.receive(Some(Duration::ZERO));
    assert!(matches!(next, Err(ReceiveError::Timeout)), "{next:?}");
}

/// A line of /proc/self/maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    pub start: usize,
    pub end: usize,
    pub perms: String,
    pub file: String,
}

/// The mappings of this process.
pub fn maps() -> Vec<Map> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    text.lines()
        .map(|line| {
            let mut fields = line.split_whitespace();
            let (start, end) = fields.next().unwrap().split_once('-').unwrap();
            let perms = fields.next().unwrap().to_owned();
            // Device and inode identify the file.
            let file = fields.skip(1).take(2).collect::<Vec<_>>().join(" ");
            Map {
                start: usize::from_str_radix(start, 16).unwrap(),
                end: usize::from_str_radix(end, 16).unwrap(),
                perms,
                file,
            }
        })
        .collect()
}

/// The mapping that contains an address.
pub fn map_of(address: *const u8) -> Option<Map> {
    let address = address as usize;
    maps()
        .into_iter()
        .find(|map| (map.start..map.end).contains(&address))
}

/// The number of mappings of a file in this process.
pub fn mapped(file: &str) -> usize {
    maps().iter().filter(|map| map.file == file).count()
}

/// Random numbers that are the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Takes the next frame and keeps it if the budget allows, otherwise copies it.
pub fn hold_or_copy(consumer: &mut Consumer, seed: u64, size: usize, held: &mut Vec<ReadLease>) {
    match consumer.receive(Some(HANG)) {
        Ok(frame) => {
            assert_frame(&frame, seed, size);
            // With a budget of 0, a frame is released immediately.
            if consumer.budget() > 0 {
                held.push(frame);
            }
        }
        Err(ReceiveError::OverBudget { .. }) => {
            let look = |frame: &ReadLease| assert_frame(frame, seed, size);
            consumer.receive_with(Some(HANG), look).unwrap();
        }
        Err(error) => panic!("{error}"),
    }
}
