// SPDX-License-Identifier: MPL-2.0

//! The number of calls of each process, in a file that is valid at all times, and a log of forbidden calls.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::files::Mapping;
use crate::settings;

/// A row has a name and its count.
const NAME: usize = 56;
const ROW: usize = NAME + 8;
const ROWS: usize = 512;

/// The number of calls of one function in this process.
#[derive(Debug)]
pub(crate) struct Count {
    name: &'static str,
    cell: OnceLock<&'static AtomicU64>,
}

impl Count {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            cell: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn add(&self) {
        self.cell
            .get_or_init(|| cell(self.name))
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// A new row of this process's file. Without a file, a counter that is never read.
fn cell(name: &'static str) -> &'static AtomicU64 {
    static TABLE: OnceLock<Option<Mapping>> = OnceLock::new();
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let table = TABLE.get_or_init(|| {
        let path = path(&settings::dir()?, std::process::id());
        std::fs::create_dir_all(path.parent()?).ok()?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .ok()?;
        file.set_len((ROW * ROWS) as u64).ok()?;
        Mapping::shared(&file, ROW * ROWS).ok()
    });
    let row = NEXT.fetch_add(1, Ordering::Relaxed);
    match table {
        Some(table) if row < ROWS && name.len() <= NAME => {
            // SAFETY: inside the mapping, which exists as long as the process, and aligned to 8 bytes. Only this row is written.
            unsafe {
                let start = table.start().add(row * ROW);
                start.copy_from_nonoverlapping(name.as_ptr(), name.len());
                &*start.add(NAME).cast::<AtomicU64>()
            }
        }
        _ => Box::leak(Box::new(AtomicU64::new(0))),
    }
}

fn path(dir: &Path, process: u32) -> PathBuf {
    dir.join("trace").join(process.to_string())
}

/// The call counts of a process, by function name.
pub(crate) fn read(dir: &Path, process: u32) -> BTreeMap<String, u64> {
    let bytes = std::fs::read(path(dir, process)).unwrap_or_default();
    let (rows, _) = bytes.as_chunks::<ROW>();
    rows.iter()
        .map(|row| {
            let name = row[..NAME]
                .split(|byte| *byte == 0)
                .next()
                .unwrap_or_default();
            let count = u64::from_le_bytes(row[NAME..].try_into().expect("eight bytes"));
            (String::from_utf8_lossy(name).into_owned(), count)
        })
        .filter(|(name, _)| !name.is_empty())
        .collect()
}

/// Logs a call that a program must not make.
pub(crate) fn violation(what: &str) {
    static COUNT: Count = Count::new("violations");
    COUNT.add();
    log("violations", what);
}

/// Writes a line to one of the machine's logs and to stderr.
pub(crate) fn log(name: &str, what: &str) {
    let line = format!("{}: {what}\n", std::process::id());
    eprint!("xmem stand-in for CUDA, {name}: process {line}");
    if let Some(dir) = settings::dir()
        && let Ok(mut log) = File::options()
            .append(true)
            .create(true)
            .open(dir.join(name))
    {
        // One write, so that lines of several processes are not mixed.
        let _ = log.write_all(line.as_bytes());
    }
}
