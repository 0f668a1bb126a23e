// SPDX-License-Identifier: MPL-2.0

//! The roles of the child processes.

mod buffers;
mod consumer;
mod producer;
mod publish;
mod relay;
mod short;

use std::fmt::Display;

use xmem_core::cuda::{Mode, Rows};

use crate::gpu::Gpu;
use crate::support::child::{self, reply};

/// The size of a frame: more than the stand-in copies at once.
pub const SIZE: usize = 300_000;

/// Prints the library's warnings.
struct Aloud;

impl log::Log for Aloud {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        let message = record.args().to_string();
        if message.contains("release-timeout") {
            reply(&message);
        }
        if message.contains("a kernel of this process failed") {
            publish::call_back();
        }
    }

    fn flush(&self) {}
}

pub fn play() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    log::set_logger(&Aloud).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    // Arm fault points before anything else.
    let mut words = role.split_whitespace();
    #[cfg(any(feature = "fault-points", debug_assertions))]
    if role.starts_with("dying-at ") {
        use xmem_core::fault::{Action, Point, arm};
        words.next();
        let number: usize = words.next().unwrap().parse().unwrap();
        let arrival: u32 = words.next().unwrap().parse().unwrap();
        arm(Point::ALL[number], arrival..arrival + 1, Action::Kill);
    }
    match words.next().unwrap() {
        "produce" => producer::produce(&pool, words.collect()),
        "consume" => consumer::consume(&pool, words.collect()),
        "own-buffers" => buffers::own_buffers(&pool),
        "edit-buffers" => buffers::edit_buffers(&pool),
        "read-buffers" => buffers::read_buffers(&pool),
        #[cfg(any(feature = "fault-points", debug_assertions))]
        "buffer-part" => crate::buffer_steps::take_part(&pool),
        "design-producer" => crate::design::produce(&pool).unwrap(),
        "design-consumer" => crate::design::consume(&pool).unwrap(),
        "without-driver" => short::without_driver(&pool),
        "alone" => short::alone(&pool),
        "only-hold" => short::only_hold(&pool),
        "relay" => relay::relay(&pool, words.next().unwrap()),
        "read-forged" => {
            crate::forged::read_forged(&pool, words.next().unwrap(), words.next().unwrap())
        }
        other => panic!("no role {other:?}"),
    }
}

/// All bytes of a frame are the low byte of its number, but never 0, the value of new memory.
pub fn byte(number: u64) -> u8 {
    (number % 255) as u8 + 1
}

fn mode(word: &str) -> Mode {
    match word {
        "vmm" => Mode::Vmm,
        "legacy" => Mode::Legacy,
        _ => Mode::Auto,
    }
}

/// The device in its primary context, or with the word `elsewhere` in a new context.
fn gpu(ordinal: u32, words: &[&str]) -> Gpu {
    if words.contains(&"elsewhere") {
        Gpu::elsewhere(ordinal)
    } else {
        Gpu::new(ordinal)
    }
}

/// Rows with padding in source and slot: three planes, the last one without padding.
pub const ROWS: [Rows; 3] = [
    Rows {
        from: 64,
        from_pitch: 1024,
        to: 0,
        to_pitch: 768,
        width: 700,
        height: 90,
    },
    Rows {
        from: 100_000,
        from_pitch: 512,
        to: 70_000,
        to_pitch: 600,
        width: 511,
        height: 45,
    },
    Rows::plain(150_000, 100_000, 3001),
];

/// Memory into which such rows were copied.
pub fn with_rows(mut to: Vec<u8>, from: &[u8]) -> Vec<u8> {
    for rows in ROWS {
        for row in 0..rows.height {
            let (at, of) = (
                rows.to + row * rows.to_pitch,
                rows.from + row * rows.from_pitch,
            );
            to[at..at + rows.width].copy_from_slice(&from[of..of + rows.width]);
        }
    }
    to
}

/// The result as a word, or as the name of the error.
fn outcome<T>(result: Result<T, impl Display>, word: &str) -> String {
    result.map_or_else(|error| error.to_string(), |_| word.to_owned())
}

/// Bytes that differ by position.
fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    crate::support::fill(77, &mut bytes);
    bytes
}
