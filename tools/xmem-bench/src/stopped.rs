// SPDX-License-Identifier: MPL-2.0

//! Two consumers, one of which is stopped (SIGSTOP) while it holds frames. Measures the producer and the other consumer.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use crate::Error;
use crate::figures::Figures;
use crate::group::{Case, Running, WARM_UP, Watch};
use crate::run_dir::RunDir;
use crate::scenario::Scenario;
use crate::table::{Cell, Column, Table};

/// The time for which the consumer is stopped.
const TIME: Duration = Duration::from_secs(10);

const COLUMNS: &[Column] = &[
    Column::new("sent", 2),
    Column::new("arrived at the other", 2),
    Column::new("its longest wait ms", 0),
    Column::new("memory before MiB", 1),
    Column::new("memory after MiB", 1),
    Column::new("descriptors before", 0),
    Column::new("descriptors after", 0),
];

pub(crate) fn section(fps: u32) -> Result<String, Error> {
    let mut table = Table::new(COLUMNS);
    let mut ended = Vec::new();
    for case in Scenario::Stopped.cases() {
        eprintln!("{}: {}", Scenario::Stopped.title(), case.transport.name());
        let (producer, reader) = run(case, fps)?;
        let due = TIME.as_secs_f64() * f64::from(fps);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let of_producer = |value: &dyn Fn(&Figures) -> f64| producer.as_ref().map(value);
        if producer.is_none() {
            ended.push(case.transport.name());
        }
        let cells = [
            of_producer(&|f| f.frames as f64 / due),
            reader.as_ref().map(|f| f.frames as f64 / due),
            reader.as_ref().map(|f| f.longest_gap_ns as f64 / 1e6),
            of_producer(&|f| mib(f.before.bytes)),
            of_producer(&|f| mib(f.after.bytes)),
            of_producer(&|f| f.before.descriptors as f64),
            of_producer(&|f| f.after.descriptors as f64),
        ];
        table.row(case.transport.name(), &cells.map(Cell::from));
    }
    let mut text = table.markdown();
    for name in ended {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{name}: the producer ended with an error.");
    }
    Ok(text)
}

/// The figures of the producer and of the consumer that runs. `None` if the process ended with an error.
fn run(case: Case, fps: u32) -> Result<(Option<Figures>, Option<Figures>), Error> {
    let run_dir = RunDir::new()?;
    let mut running = Running::start(case, fps, &run_dir, Watch::Pages)?;
    let stopped = running.consumers.pop().ok_or("no consumer to stop")?;
    let mut reader = running.consumers.pop().ok_or("no consumer to read")?;
    let mut producer = running.producer;
    thread::sleep(WARM_UP);
    stopped.freeze()?;
    producer.measure()?;
    reader.measure()?;
    thread::sleep(TIME);
    let mut figures = [None, None];
    for (side, figures) in [&mut producer, &mut reader].into_iter().zip(&mut figures) {
        *figures = side.stop().and_then(|()| side.figures()).ok();
    }
    // Kill the stopped consumer first: a producer that waits for it would not end.
    drop(stopped);
    reader.end()?;
    producer.end()?;
    Ok(figures.into())
}
