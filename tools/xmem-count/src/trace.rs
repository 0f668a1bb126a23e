// SPDX-License-Identifier: MPL-2.0

//! Parses the output of Valgrind's lackey with `--trace-mem=yes`, and counts from one mark to the next.
//!
//! Lackey writes a line for each instruction, followed by a line for each memory access of the instruction.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender};

use crate::Error;
use crate::code::{Code, Owner};
use crate::figures::{Column, Cost};
use crate::mark::Mark;

/// The size of a cache line in bytes.
const LINE: u64 = 64;
/// The size of a page in bytes.
const PAGE: u64 = 4096;
/// The number of the system call that reads a clock.
const CLOCK: u32 = libc::SYS_clock_gettime as u32;

/// The figures from one mark to the next.
#[derive(Debug)]
pub(crate) struct Interval {
    /// `None` before the first mark.
    pub(crate) from: Option<Mark>,
    pub(crate) cost: Cost,
    /// The instructions, in the order of their first execution.
    pub(crate) places: Vec<Place>,
}

/// The cost of one instruction between two marks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: u64,
    /// The number of executions.
    pub(crate) times: u64,
    /// The number of cache lines that this instruction used first.
    pub(crate) code_lines: u64,
    pub(crate) data_lines: u64,
}

/// Parses a trace to its end. Lines before `code` is received are skipped. `seen` is the number of lines, from which other threads
/// detect that the process sleeps.
pub(crate) fn read(
    mut trace: impl BufRead,
    code: &Receiver<Code>,
    seen: &AtomicU64,
    intervals: &Sender<Interval>,
) -> Result<(), Error> {
    let mut line = Vec::new();
    let mut code_here = None;
    let mut counter = Counter::default();
    let mut from = None;
    while {
        line.clear();
        trace.read_until(b'\n', &mut line)? > 0
    } {
        seen.fetch_add(1, Relaxed);
        let Some((kind, address, size)) = event(&line) else {
            // Valgrind's messages begin with `==` or `--`. Other lines are messages of the process.
            if !matches!(line.get(..2), Some(b"==" | b"--")) {
                eprint!("{}", String::from_utf8_lossy(&line));
            }
            continue;
        };
        if code_here.is_none() {
            code_here = code.try_recv().ok();
        }
        let Some(code) = &mut code_here else {
            continue;
        };
        if let (b'S', Some(mark)) = (kind, code.mark(address)) {
            let (cost, places) = std::mem::take(&mut counter).finish();
            // The receiver may have been dropped at the end.
            let _ = intervals.send(Interval { from, cost, places });
            from = Some(mark);
        } else if from.is_none_or(|from| from == Mark::Rest) {
            // Nothing is counted after this mark.
        } else if kind == b'I' {
            counter.instruction(code, address, size)?;
        } else {
            counter.access(address, size);
        }
    }
    Ok(())
}

/// The kind, address and size in a line such as `I  04025310,3` or ` S 1ffeffe7e8,8`.
fn event(line: &[u8]) -> Option<(u8, u64, u64)> {
    let kind = match line.get(..3)? {
        b"I  " => b'I',
        [b' ', kind @ (b'L' | b'S' | b'M'), b' '] => *kind,
        _ => return None,
    };
    let text = std::str::from_utf8(line.get(3..)?).ok()?;
    let (address, size) = text.trim_end().split_once(',')?;
    Some((
        kind,
        u64::from_str_radix(address, 16).ok()?,
        size.parse().ok()?,
    ))
}

/// The counters between two marks.
#[derive(Debug, Default)]
struct Counter {
    cost: Cost,
    /// The cache lines that were used, and whether the plugin's code used them.
    code: HashMap<u64, bool>,
    data: HashMap<u64, bool>,
    /// The owner of the last instruction.
    owner: Option<Owner>,
    /// The owner of the last instruction outside of the C library.
    caller: Option<Owner>,
    /// The last constant that was loaded into EAX since the last system call.
    number: Option<u32>,
    places: Vec<Place>,
    /// The index in `places` of each address.
    indices: HashMap<u64, usize>,
    /// The index in `places` of the last instruction.
    place: usize,
}

impl Counter {
    fn instruction(&mut self, code: &mut Code, address: u64, size: u64) -> Result<(), Error> {
        let instruction = code.at(address, size as usize)?;
        let owner = Some(instruction.owner);
        self.owner = owner;
        if owner == Some(Owner::Tool) {
            return Ok(());
        }
        if instruction.number.is_some() {
            self.number = instruction.number;
        }
        match instruction.calls {
            // Under Valgrind, reading a clock is a system call. Without Valgrind it is not, so it has a separate column.
            Some(Column::SystemCalls) if self.number.take() == Some(CLOCK) => {
                self.count(Column::ClockReads, self.caller);
            }
            Some(column) => self.count(column, self.caller),
            None => {}
        }
        if owner != Some(Owner::Libc) {
            self.caller = owner;
        }
        self.count(Column::Instructions, owner);
        if instruction.is_locked {
            self.count(Column::Locked, owner);
        }
        self.place = *self.indices.entry(address).or_insert_with(|| {
            self.places.push(Place {
                address,
                times: 0,
                code_lines: 0,
                data_lines: 0,
            });
            self.places.len() - 1
        });
        let code_lines = touch(&mut self.code, address, size, owner);
        if let Some(place) = self.places.get_mut(self.place) {
            place.times += 1;
            place.code_lines += code_lines;
        }
        Ok(())
    }

    /// Counts a memory access of the last instruction.
    fn access(&mut self, address: u64, size: u64) {
        if self.owner != Some(Owner::Tool) {
            let lines = touch(&mut self.data, address, size, self.owner);
            if let Some(place) = self.places.get_mut(self.place) {
                place.data_lines += lines;
            }
        }
    }

    fn count(&mut self, column: Column, owner: Option<Owner>) {
        self.cost.all[column as usize] += 1;
        self.cost.ours[column as usize] += u64::from(owner == Some(Owner::Ours));
    }

    fn finish(mut self) -> (Cost, Vec<Place>) {
        let lines = [
            (Column::CodePages, pages(&self.code)),
            (Column::DataPages, pages(&self.data)),
            (Column::CodeLines, self.code),
            (Column::DataLines, self.data),
        ];
        for (column, lines) in lines {
            self.cost.all[column as usize] = lines.len() as u64;
            self.cost.ours[column as usize] = lines.values().filter(|ours| **ours).count() as u64;
        }
        (self.cost, self.places)
    }
}

/// The pages of these cache lines, and whether the plugin's code used them.
fn pages(lines: &HashMap<u64, bool>) -> HashMap<u64, bool> {
    let mut pages = HashMap::new();
    for (line, ours) in lines {
        *pages.entry(line * LINE / PAGE).or_default() |= ours;
    }
    pages
}

/// Adds the cache lines of an access. Returns the number of lines that were not used before.
fn touch(lines: &mut HashMap<u64, bool>, address: u64, size: u64, owner: Option<Owner>) -> u64 {
    let before = lines.len();
    for line in address / LINE..=(address + size.max(1) - 1) / LINE {
        *lines.entry(line).or_default() |= owner == Some(Owner::Ours);
    }
    (lines.len() - before) as u64
}
