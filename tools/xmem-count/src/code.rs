// SPDX-License-Identifier: MPL-2.0

//! The instructions of a traced process: the owner of each, and whether it is counted.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::Error;
use crate::figures::Column;
use crate::mark::Mark;

/// The owner of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The plugin.
    Ours,
    /// This program. Its instructions are not counted.
    Tool,
    /// The C library. Its system calls and allocations count for the owner that called it.
    Libc,
    Other,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Instruction {
    pub(crate) owner: Owner,
    pub(crate) is_locked: bool,
    /// The column that counts the function which begins here, or the system call.
    pub(crate) calls: Option<Column>,
    /// The constant that the instruction loads into EAX. It may be the number of a system call.
    pub(crate) number: Option<u32>,
}

/// The code of a traced process.
#[derive(Debug)]
pub(crate) struct Code {
    pid: u32,
    marks: u64,
    memory: File,
    plugin: PathBuf,
    functions: HashMap<u64, Column>,
    mappings: Vec<(Range<u64>, Owner)>,
    known: HashMap<u64, Instruction>,
}

impl Code {
    /// `marks` is the address of the first mark. `functions` are the functions whose calls are counted.
    pub(crate) fn new(
        pid: u32,
        marks: u64,
        plugin: &Path,
        functions: HashMap<u64, Column>,
    ) -> Result<Self, Error> {
        Ok(Self {
            pid,
            marks,
            memory: File::open(format!("/proc/{pid}/mem"))?,
            plugin: plugin.to_owned(),
            functions,
            mappings: Vec::new(),
            known: HashMap::new(),
        })
    }

    /// The mark at an address. `None` if the address is not that of a mark.
    pub(crate) fn mark(&self, address: u64) -> Option<Mark> {
        let index = address.checked_sub(self.marks)?;
        Mark::value_variants()
            .get(usize::try_from(index).ok()?)
            .copied()
    }

    /// Decodes the instruction of `size` bytes at an address.
    pub(crate) fn at(&mut self, address: u64, size: usize) -> Result<Instruction, Error> {
        if let Some(known) = self.known.get(&address) {
            return Ok(*known);
        }
        // Valgrind reports its own requests as one instruction of 19 bytes. Other instructions have at most 15.
        let mut bytes = [0; 19];
        let bytes = bytes
            .get_mut(..size)
            .ok_or("an instruction of more than 19 bytes")?;
        self.memory.read_exact_at(bytes, address)?;
        let instruction = Instruction {
            owner: self.owner(address)?,
            is_locked: is_locked(bytes),
            calls: match bytes {
                [0x0f, 0x05] => Some(Column::SystemCalls),
                _ => self.functions.get(&address).copied(),
            },
            number: match *bytes {
                [0xb8, a, b, c, d] => Some(u32::from_le_bytes([a, b, c, d])),
                _ => None,
            },
        };
        self.known.insert(address, instruction);
        Ok(instruction)
    }

    fn owner(&mut self, address: u64) -> Result<Owner, Error> {
        let find = |mappings: &[(Range<u64>, Owner)]| {
            let found = mappings.iter().find(|(range, _)| range.contains(&address));
            found.map(|(_, owner)| *owner)
        };
        if let Some(owner) = find(&self.mappings) {
            return Ok(owner);
        }
        let tool = std::env::current_exe()?;
        let text = std::fs::read_to_string(format!("/proc/{}/maps", self.pid))?;
        let mappings = text.lines().filter_map(|line| {
            let (addresses, rest) = line.split_once(' ')?;
            let (start, end) = addresses.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            let path = rest.find('/').map_or("", |at| &rest[at..]);
            let owner = match Path::new(path) {
                path if path == self.plugin => Owner::Ours,
                path if path == tool => Owner::Tool,
                _ if path.contains("/libc.so") => Owner::Libc,
                _ => Owner::Other,
            };
            Some((number(start)?..number(end)?, owner))
        });
        self.mappings = mappings.collect();
        Ok(find(&self.mappings).unwrap_or(Owner::Other))
    }
}

/// Whether an instruction locks a cache line: it has a LOCK prefix, or exchanges a register with memory.
fn is_locked(bytes: &[u8]) -> bool {
    const PREFIXES: &[u8] = b"\xf0\xf2\xf3\x66\x67\x2e\x36\x3e\x26\x64\x65";
    let prefixes = bytes.iter().take_while(|byte| PREFIXES.contains(byte));
    let prefixes = prefixes.count();
    let (prefixes, rest) = bytes.split_at(prefixes);
    let rest = match rest {
        [0x40..=0x4f, rest @ ..] => rest,
        rest => rest,
    };
    // A mode below 3 is a memory operand.
    prefixes.contains(&0xf0) || matches!(rest, [0x86 | 0x87, modes, ..] if *modes < 0xc0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn finds_locked_instructions() {
        let is_locked = super::is_locked;
        assert!(is_locked(b"\xf0\x0f\xb1\x0f"), "lock cmpxchg %ecx,(%rdi)");
        assert!(is_locked(b"\x41\x86\x40\x10"), "xchg %al,0x10(%r8)");
        assert!(!is_locked(b"\x48\x87\xdb"), "xchg %rbx,%rbx");
        assert!(!is_locked(b"\x88\x07"), "mov %al,(%rdi)");
        assert!(!is_locked(b"\xb0\xf0"), "mov $0xf0,%al");
    }
}
