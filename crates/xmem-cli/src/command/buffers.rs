// SPDX-License-Identifier: MPL-2.0

//! `xmem show POOL` for a pool of buffers by number: prints a row for each process that writes.

use std::io::Write;

use xmem_core::BufferPool;
use xmem_core::discovery::printable;

use crate::Error;
use crate::cli::Format;
use crate::format::{Table, duration, json, process, size};
use crate::pools::{self, Pool, buffers_of};

/// The processes that write buffers of this pool.
pub(super) fn writers(pool: &str) -> Vec<Pool> {
    pools::ask(BufferPool::writers(pool))
}

pub(super) fn show(
    pool: &str,
    writers: &[Pool],
    format: Format,
    out: &mut impl Write,
) -> Result<(), Error> {
    if format == Format::Json {
        return json(out, &pools::as_json(writers)?);
    }
    writeln!(out, "{}: {}\n", printable(pool), buffers_of(writers.len()))?;
    let titles =
        "WRITER  STATE  PID  UP  BUFFERS  IN USE  UNREAD  SET ASIDE  MEMORY  DEVICES  READERS";
    let mut table = Table::new(titles, &[2, 3, 4, 5, 6, 7, 8, 10]);
    for writer in writers {
        table.row(row(writer));
    }
    table.print(out)
}

fn row(writer: &Pool) -> [String; 11] {
    let (name, state) = (writer.name.clone(), writer.state.words().to_owned());
    let Some(stats) = &writer.stats else {
        let mut row = std::array::from_fn(|_| "-".to_owned());
        (row[0], row[1]) = (name, state);
        return row;
    };
    [
        name,
        state,
        process(stats.pid),
        duration(stats.up_ns),
        format!("{} of {}", stats.slots, stats.max_slots),
        stats.slots_held.to_string(),
        stats.unread.to_string(),
        stats.set_aside.to_string(),
        size(stats.bytes + stats.device_bytes),
        match stats.devices.is_empty() {
            true => "-".to_owned(),
            false => stats.devices.join(", "),
        },
        stats.consumers.len().to_string(),
    ]
}
