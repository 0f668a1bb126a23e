// SPDX-License-Identifier: MPL-2.0

//! A producer that executes commands, one per line.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use xmem_core::cuda::{Stream, StreamMark};
use xmem_core::{ImportError, ImportedMemory, Producer, ReadLease};

use super::{SIZE, gpu, mode, outcome, publish};
use crate::gpu::Gpu;
use crate::support::HANG;
use crate::support::child::{read_line, reply};

/// Creates a pool. `words`: mode, number of slots, and `elsewhere`, or `hasty` for a short wait at the end.
pub fn produce(pool: &str, words: Vec<&str>) {
    let gpu = gpu(0, &words);
    let stream = gpu.stream();
    let producer = Producer::builder(pool)
        .cuda_mode(mode(words.first().copied().unwrap_or("auto")))
        .max_slots(words.get(1).map_or(64, |word| word.parse().unwrap()))
        .history(1)
        .release_timeout(if words.contains(&"hasty") {
            Duration::from_millis(500)
        } else {
            HANG
        })
        .build()
        .unwrap();
    let mut maker = Maker {
        gpu,
        stream,
        captured: stream,
        producer: Some(producer),
        next: 0,
        kept: VecDeque::new(),
        borrowed: None,
        next_borrowed: 1000,
        released: Arc::new(AtomicBool::new(false)),
        freed: None,
        mark: None,
    };
    reply("ready");
    loop {
        let line = read_line();
        maker.run(&line.split_whitespace().collect::<Vec<_>>());
    }
}

pub struct Maker {
    pub gpu: Gpu,
    pub stream: Stream,
    captured: Stream,
    producer: Option<Producer>,
    /// The number of the next frame.
    pub next: u64,
    kept: VecDeque<ReadLease>,
    pub borrowed: Option<Borrowed>,
    pub next_borrowed: u64,
    released: Arc<AtomicBool>,
    /// An allocation whose last reference was released.
    freed: Option<u64>,
    /// A position in the order of a stream.
    pub mark: Option<StreamMark>,
}

/// Memory of the program that is larger than the frame, as of a library.
pub struct Borrowed {
    allocation: u64,
    pub ptr: u64,
    pub memory: ImportedMemory,
}

impl Maker {
    /// The producer, while the pool is open.
    pub fn producer(&self) -> &Producer {
        self.producer.as_ref().unwrap()
    }

    fn run(&mut self, words: &[&str]) {
        match *words {
            ["publish"] => match publish::next(self) {
                Ok(lease) => reply(format_args!("published {}", lease.info().sequence)),
                Err(error) => reply(error),
            },
            ["publish", count] if count.parse::<u64>().is_ok() => {
                publish::many(self, count.parse().unwrap());
                reply("published");
            }
            ["publish", "copied", how] => reply(publish::copied(self, how)),
            ["publish", how] => reply(match how {
                "borrowed" => publish::borrowed(self),
                "plain" => publish::plain(self),
                "from-logger" => publish::from_logger(self),
                "late" => publish::late(self),
                "behind" => publish::behind(self),
                "done" => publish::done(self),
                "part" => publish::part(self),
                "twice" => publish::twice(self),
                "host" => publish::host(self),
                other => panic!("unknown: publish {other:?}"),
            }),
            ["own-parts"] => reply(publish::own_parts(self)),
            ["keep"] => reply(outcome(self.keep(), "kept")),
            ["forget"] => {
                self.kept.clear();
                reply("forgot");
            }
            // Publishes the last kept frame again.
            ["again"] => {
                let lease = self.kept.back().unwrap();
                let meta = lease.meta().clone();
                self.producer().republish(lease, &meta).unwrap();
                reply("again");
            }
            ["trap"] => {
                self.gpu.trap(self.stream);
                reply("trapped");
            }
            ["finish"] => {
                self.gpu.finish(self.stream);
                reply("finished");
            }
            ["wait-for-mark"] => {
                let mark = self.mark.take().unwrap();
                while !mark.synchronize_for(Duration::from_millis(10)).unwrap() {}
                reply("is there");
            }
            ["go-on"] => {
                crate::gpu::go_on();
                reply("goes on");
            }
            // Captures a stream into a graph: the one on which frames are published, or another one.
            ["capture", which] => {
                self.captured = self.gpu.capture(which, self.stream);
                reply("captures");
            }
            ["end-capture"] => reply(self.gpu.end_capture(self.captured)),
            ["held"] => reply(self.producer().stats().slots_held),
            ["consumers"] => {
                let stats = self.producer().stats();
                let lines: Vec<String> = stats
                    .consumers
                    .iter()
                    .map(|c| format!("{} {}", c.held, c.device))
                    .collect();
                reply(lines.join(", "));
            }
            ["devices"] => reply(self.producer().stats().devices.join(", ")),
            ["counts"] => reply(format_args!("{:?}", xmem_core::cuda::counts())),
            ["collect"] => reply(self.producer().collect()),
            ["borrow"] => reply(outcome(self.borrow(), "borrowed")),
            ["release"] => {
                let borrowed = self.borrowed.take().unwrap();
                self.freed = Some(borrowed.allocation);
                drop(borrowed);
                reply("released");
            }
            ["released"] => reply(self.is_released()),
            ["close"] => {
                self.producer = None;
                reply("closed");
            }
            _ => panic!("unknown: {words:?}"),
        }
    }

    fn keep(&mut self) -> Result<(), String> {
        let lease = publish::next(self)?;
        self.kept.push_back(lease);
        Ok(())
    }

    fn borrow(&mut self) -> Result<(), ImportError> {
        let allocation = self.gpu.allocate(3 * SIZE);
        let (ptr, flag) = (allocation + SIZE as u64, self.released.clone());
        let released = move || flag.store(true, Ordering::Release);
        let producer = self.producer();
        // SAFETY: it is freed when it is released (`is_released`).
        let memory = unsafe { producer.import_cuda(ptr, SIZE, &self.gpu.device, released) }?;
        self.borrowed = Some(Borrowed {
            allocation,
            ptr,
            memory,
        });
        Ok(())
    }

    /// Whether borrowed memory was released. It is freed then, and not before.
    fn is_released(&mut self) -> bool {
        let is_released = self.released.load(Ordering::Acquire);
        if is_released && let Some(allocation) = self.freed.take() {
            self.gpu.free(allocation);
        }
        is_released
    }
}
