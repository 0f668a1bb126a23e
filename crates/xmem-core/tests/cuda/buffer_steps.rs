// SPDX-License-Identifier: MPL-2.0

//! Kills each process of a buffer pool on devices at each CUDA fault point of each step, and after the step.
//! `fault_points/buffers.rs` tests the other points in host memory.

use std::error::Error;

use xmem_core::fault::Point;
use xmem_core::{AccessMode, BufferGuard, BufferPool, GetError};

use crate::gpu::Gpu;
use crate::lab::Lab;
use crate::support::child::{Child, reply};
use crate::support::eventually;
use crate::support::victim::*;

const SIZE: usize = 100_000;

/// The step, the lines before it, fault points that it must pass, and the number of remaining reads if the reader is killed after
/// the step. If it is killed during the step, one more read may remain. Lines are as in `fault_points/buffers.rs`.
type Row = (&'static str, &'static str, &'static [Point], u32);

const MAKE: &[Point] = &[Point::TwinMade, Point::CanaryWritten, Point::EventsMade];
const IMPORT: &[Point] = &[Point::TwinImported, Point::CanaryRead, Point::EventOpened];

const STEPS: &[Row] = &[
    ("W preallocate", "", MAKE, 0),
    ("W acquire", "", MAKE, 0),
    (
        "W forget",
        "W acquire; W count 2",
        &[Point::EventRecorded],
        2,
    ),
    ("W edit", "W acquire; W count 2; W forget", &[], 0),
    (
        "W forget",
        "W acquire; W count 2; W forget; W edit",
        &[Point::EventRecorded],
        2,
    ),
    ("W to-cuda", "W host", MAKE, 0),
    ("W to-device", "W acquire", MAKE, 0),
    ("W to-cpu", "W acquire", &[], 0),
    ("R get", "W acquire; W count 2; W forget", IMPORT, 1),
    ("R drop", "W acquire; W count 2; W forget; R get", &[], 1),
    ("R to-cpu", "W acquire; W count 2; W forget; R get", &[], 1),
    (
        "R to-device",
        "W acquire; W count 2; W forget; R get",
        MAKE,
        1,
    ),
    ("R edit", "W acquire; W count 2; W forget", IMPORT, 1),
    (
        "R forget",
        "W acquire; W count 2; W forget; R edit",
        &[Point::EventRecorded],
        1,
    ),
    ("R to-cuda", "W host; W count 2; W forget; R get", MAKE, 1),
    (
        "W close",
        "W acquire; W forget; R get; R drop",
        &[Point::ClosedMarked, Point::DeviceSettled],
        0,
    ),
    ("R close", "W acquire; W count 2; W forget; R get", &[], 1),
];

struct Part {
    pool: BufferPool,
    gpu: Gpu,
    guards: Vec<BufferGuard>,
    byte: u8,
}

impl Part {
    /// The device may still be writing when this returns.
    fn write(&mut self, mut guard: BufferGuard) -> Result<u32, Box<dyn Error>> {
        self.byte = self.byte.wrapping_add(1).max(1);
        if guard.is_on_device() {
            let (stream, ptr) = (
                xmem_core::cuda::Stream::LEGACY_DEFAULT,
                guard.as_cuda_ptr_mut()?,
            );
            self.gpu.fill(stream, ptr, SIZE, self.byte);
        } else {
            guard.as_cpu_slice_mut()?.fill(self.byte);
        }
        Ok(self.keep(guard))
    }

    fn keep(&mut self, guard: BufferGuard) -> u32 {
        let index = guard.meta_index();
        self.guards.push(guard);
        index
    }

    fn assert_whole(&self, guard: &BufferGuard) -> Result<(), Box<dyn Error>> {
        let bytes = match guard.device().map(|device| device.ordinal()) {
            None => guard.as_cpu_slice()?.to_vec(),
            Some(0) => self.gpu.read(guard.as_cuda_ptr()?, SIZE),
            Some(_) => guard.copy_to_cpu()?.as_cpu_slice()?.to_vec(),
        };
        assert!(
            bytes[0] != 0 && bytes.iter().all(|byte| *byte == bytes[0]),
            "it is torn"
        );
        Ok(())
    }

    fn newest(&self) -> Result<&BufferGuard, Box<dyn Error>> {
        Ok(self.guards.last().ok_or("there is no guard")?)
    }

    fn step(&mut self, what: &str, index: u32, count: i32) -> Result<u32, Box<dyn Error>> {
        match what {
            "preallocate" => Ok(self.pool.preallocate_cuda(SIZE, 2, 0)?[0]),
            "acquire" => self.write(self.pool.acquire_cuda(SIZE, 0)?),
            "host" => self.write(self.pool.acquire_cpu(SIZE)?),
            "count" => {
                self.pool.set_ref_count(index, count)?;
                Ok(index)
            }
            "forget" => Ok(self.guards.pop().ok_or("there is no guard")?.forget()?),
            "drop" => {
                self.guards.pop();
                Ok(index)
            }
            "drop-all" => {
                self.gpu.finish(xmem_core::cuda::Stream::LEGACY_DEFAULT);
                self.guards.drain(..).for_each(BufferGuard::discard);
                Ok(0)
            }
            "get" => {
                let guard = self.pool.get(index)?;
                self.assert_whole(&guard)?;
                Ok(self.keep(guard))
            }
            "edit" => self.write(self.pool.get_mut(index)?),
            "to-cpu" => {
                let copy = self.newest()?.copy_to_cpu()?;
                self.assert_whole(&copy)?;
                Ok(self.keep(copy))
            }
            "to-cuda" | "to-device" => {
                let guard = self.newest()?;
                let copy = match what {
                    "to-cuda" => guard.copy_to_cuda(0)?,
                    _ => guard.copy_to_device(1)?,
                };
                self.assert_whole(&copy)?;
                Ok(self.keep(copy))
            }
            "check" => {
                let read = self.guards.iter();
                let mut read = read.filter(|guard| guard.mode() == AccessMode::ReadOnly);
                read.try_for_each(|guard| self.assert_whole(guard))?;
                Ok(0)
            }
            "alone" => {
                eventually("it is gone", || self.pool.stats().consumers.is_empty());
                Ok(0)
            }
            "rest" => {
                let mut reads = 0;
                loop {
                    match self.pool.get(index) {
                        Ok(guard) => self.assert_whole(&guard)?,
                        Err(GetError::Empty { .. } | GetError::NoWriter { .. }) => {
                            return Ok(reads);
                        }
                        Err(error) => return Err(error.into()),
                    }
                    reads += 1;
                }
            }
            "close" => {
                self.pool = BufferPool::new(self.pool.name())?;
                self.guards.clear();
                Ok(0)
            }
            other => panic!("no step {other:?}"),
        }
    }
}

pub fn take_part(pool: &str) {
    let commands = commands();
    let mut part = Part {
        pool: BufferPool::new(pool).unwrap(),
        gpu: Gpu::new(0),
        guards: Vec::new(),
        byte: 0,
    };
    reply("ready");
    do_steps(&commands, |what, index, count| {
        part.step(what, index, count)
    });
}

/// A writer and a reader.
struct Scene<'a> {
    lab: &'a Lab,
    children: [Child; 2],
    index: u32,
}

const NAMES: [&str; 2] = ["W", "R"];

impl<'a> Scene<'a> {
    fn new(lab: &'a Lab, before: &str) -> Self {
        let children = [(); 2].map(|()| lab.ready("buffer-part"));
        let index = 0;
        let mut scene = Self {
            lab,
            children,
            index,
        };
        for line in before.split(';').filter(|line| !line.is_empty()) {
            let answer = scene.run(line.trim());
            assert!(
                answer.as_ref().is_some_and(|it| it.starts_with("done")),
                "{line}: {answer:?}"
            );
        }
        scene
    }

    /// `None` if the process died.
    fn run(&mut self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split(' ').collect();
        let (side, what) = (usize::from(words[0] == NAMES[1]), words[1]);
        let count = words.get(2).unwrap_or(&"0");
        self.children[side].try_send(&format!("{what} {} {count}", self.index));
        let answer = self.children[side].next_line()?;
        if let ("acquire" | "host", Some(index)) = (what, answer.strip_prefix("done ")) {
            self.index = index.parse().unwrap();
        }
        Some(answer)
    }

    fn assert_other_goes_on(mut self, dead: usize, left: std::ops::RangeInclusive<u32>) {
        let other = &mut self.children[1 - dead];
        if dead == 0 {
            done(other, "check 0 0");
        } else {
            done(other, "alone 0 0");
            done(other, "drop-all 0 0");
            let rest = done(other, &format!("rest {} 0", self.index));
            assert!(left.contains(&rest), "{rest} reads are left, not {left:?}");
        }
        // Each process reads what the other writes.
        let mut third = self.lab.ready("buffer-part");
        for turn in 0..2 {
            let [from, to] = if turn == 0 {
                [&mut third, &mut *other]
            } else {
                [&mut *other, &mut third]
            };
            let index = done(from, "acquire 0 0");
            done(from, "forget 0 0");
            done(to, &format!("get {index} 0"));
            done(to, "drop 0 0");
        }
        for child in [&mut third, other] {
            child.send("end");
            assert!(child.ends());
        }
        eventually("its memory is free", || self.lab.memory_is_free());
    }
}

#[test]
fn each_process_dies_at_each_point_of_each_step() {
    for quirk in ["", "no-vmm"] {
        let lab = Lab::new().with("QUIRKS", quirk);
        for (step, before, expected, left) in STEPS {
            let actor = usize::from(step.starts_with(NAMES[1]));
            for victim in [0, 1] {
                let mut scene = Scene::new(&lab, before);
                record(&mut scene.children[victim]);
                let answer = scene.run(step);
                assert!(
                    answer.as_ref().is_some_and(|it| it.starts_with("done")),
                    "{step}: {answer:?}"
                );
                let points = passed(&mut scene.children[victim]);
                let missing = expected
                    .iter()
                    .find(|point| !points.iter().any(|(passed, _)| passed == *point));
                assert!(
                    victim != actor || missing.is_none(),
                    "{step}: {missing:?} is not in {points:?}"
                );
                scene.children[victim].kill();
                scene.assert_other_goes_on(victim, *left..=*left);
                for (point, _) in points.into_iter().filter(|(point, _)| point.is_cuda()) {
                    let is_expected = victim == actor && expected.contains(&point);
                    let scene = kill_at(
                        &format!("{step}: {}", NAMES[victim]),
                        (point, 1, is_expected),
                        || Scene::new(&lab, before),
                        |scene| &mut scene.children[victim],
                        |scene| drop(scene.run(step)),
                    );
                    if let Some(scene) = scene {
                        scene.assert_other_goes_on(victim, *left..=*left + 1);
                    }
                }
            }
        }
        lab.assert_allowed();
    }
}
