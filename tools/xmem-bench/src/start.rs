// SPDX-License-Identifier: MPL-2.0

//! How long a consumer takes from its start until it has the first frame, and how much memory it has then.

use std::thread;
use std::time::Instant;

use crate::Error;
use crate::commands::RECEIVING;
use crate::group::{Case, Running, WARM_UP, Watch, side};
use crate::run_dir::RunDir;
use crate::scenario::Scenario;
use crate::table::{Cell, Column, Table};

const COLUMNS: &[Column] = &[Column::new("first frame ms", 1), Column::new("RSS MiB", 1)];

pub(crate) fn section(rounds: u32, fps: u32) -> Result<String, Error> {
    let mut table = Table::new(COLUMNS);
    let cases = Scenario::Start.cases();
    let mut rows = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        eprintln!(
            "{}: round {} of {rounds}",
            Scenario::Start.title(),
            round + 1
        );
        for (case, row) in cases.iter().zip(&mut rows) {
            row.push(run(*case, fps)?);
        }
    }
    for (case, row) in cases.iter().zip(&rows) {
        let cell = |at: usize| Cell::Rounds(row.iter().map(|it: &[f64; 2]| Some(it[at])).collect());
        table.row(case.transport.name(), &[cell(0), cell(1)]);
    }
    Ok(table.markdown())
}

/// The time until the consumer has a frame, in milliseconds, and its memory some time later, in MiB.
fn run(case: Case, fps: u32) -> Result<[f64; 2], Error> {
    let run_dir = RunDir::new()?;
    let running = Running::start(case, fps, &run_dir, Watch::Clock)?;
    let start = Instant::now();
    let mut consumer = side(case, fps, &run_dir, Watch::Clock, "consumer")?;
    consumer.expect(RECEIVING)?;
    let time = start.elapsed().as_secs_f64() * 1e3;
    thread::sleep(WARM_UP);
    let memory = consumer.resident()? as f64 / f64::from(1 << 20);
    consumer.end()?;
    running.producer.end()?;
    Ok([time, memory])
}
