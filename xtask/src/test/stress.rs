// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask test --stress`: runs test programs repeatedly on a busy machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::Result;
use crate::check::{Check, Failed, Home, Outcome};

/// The number of busy loops beside the tests.
const LOOPS: usize = 4;

/// The results of a test program in all rounds.
#[derive(Debug, Default)]
struct Tally {
    runs: usize,
    failures: usize,
    /// The tests that failed, each with the command that repeats it.
    tests: BTreeMap<String, String>,
}

/// Runs all checks in each round, and prints a table.
pub(super) fn run(rounds: u32, mut checks: Vec<Check>) -> Result {
    let start = Instant::now();
    for check in &mut checks {
        // Do not print passed tests.
        check.step.command.env("NEXTEST_STATUS_LEVEL", "fail");
    }
    let home = Home::new()?;
    let mut tallies = BTreeMap::new();
    let mut not_run = BTreeSet::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..LOOPS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for round in 1..=rounds {
            for check in &mut checks {
                match check.run(&home) {
                    Ok(outcome) => add(&mut tallies, check, outcome),
                    Err(why) => {
                        not_run.insert(format!("{}: {why}", check.label()));
                    }
                }
            }
            let failures: usize = tallies.values().map(|tally| tally.failures).sum();
            println!(
                "\nround {round} of {rounds}: {failures} failures so far, {} s",
                start.elapsed().as_secs()
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
    print(&tallies);
    not_run.iter().for_each(|line| println!("not run: {line}"));
    let sum = |count: fn(&Tally) -> usize| tallies.values().map(count).sum::<usize>();
    let (runs, failures) = (sum(|tally| tally.runs), sum(|tally| tally.failures));
    println!(
        "\n{} passed, {failures} failed, {} skipped",
        runs - failures,
        not_run.len()
    );
    if failures == 0 {
        Ok(())
    } else {
        Err(Failed.into())
    }
}

fn add(tallies: &mut BTreeMap<String, Tally>, check: &Check, outcome: Outcome) {
    let label = check.label();
    if outcome.broken {
        let tally = tallies.entry(label.clone()).or_default();
        tally.runs += 1;
        tally.failures += 1;
        tally.tests.insert("all of it".into(), check.repeat(None));
    }
    for program in outcome.programs {
        // One row of the table for each test program of a step.
        let tally = tallies
            .entry(format!("{label}: {}", program.name))
            .or_default();
        tally.runs += 1;
        tally.failures += usize::from(!program.failed.is_empty());
        for failure in program.failed {
            let repeat = check.repeat(Some(&failure));
            tally.tests.insert(failure.test, repeat);
        }
    }
}

fn print(tallies: &BTreeMap<String, Tally>) {
    let width = tallies.keys().map(String::len).max().unwrap_or_default();
    println!("\n{:<width$}  RUNS  FAILURES", "PROGRAM");
    for (name, tally) in tallies {
        println!("{name:<width$}  {:>4}  {:>8}", tally.runs, tally.failures);
        for (test, repeat) in &tally.tests {
            println!("    FAILED {test}\n        {repeat}");
        }
    }
}
