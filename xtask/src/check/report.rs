// SPDX-License-Identifier: MPL-2.0

//! Runs the steps of the tests, and prints a table of the results.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::rights::Home;
use super::{Check, Outcome};
use crate::Result;
use crate::step::words;

/// A step that will run, or the name of a step that cannot run and the reason.
pub(crate) type Planned = std::result::Result<Check, (&'static str, String)>;

/// The number of steps that are named as the slowest.
const SLOWEST: usize = 5;

/// At least one test failed. The table has its name.
#[derive(Debug)]
pub(crate) struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tests failed")
    }
}

impl std::error::Error for Failed {}

/// One row for each step.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// Printed below the table.
    note: String,
}

#[derive(Debug, Default)]
struct Row {
    name: String,
    passed: usize,
    /// The failed tests, each with the command that repeats it.
    failed: Vec<(String, String)>,
    advice: &'static str,
    /// The tests that did not run, grouped by the reason.
    not_run: BTreeMap<String, Vec<String>>,
    time: Duration,
}

impl Row {
    fn skipped(&self) -> usize {
        self.not_run.values().map(Vec::len).sum()
    }
}

impl Report {
    /// Runs the steps in order. A step whose prerequisites failed is not run.
    pub(crate) fn run(&mut self, steps: Vec<Planned>) -> Result {
        let home = Home::new()?;
        let count = steps.len();
        for (index, planned) in steps.into_iter().enumerate() {
            let (name, done) = match planned {
                Ok(check) => (check.label(), self.run_one(check, index + 1, count, &home)),
                Err((name, why)) => (name.to_owned(), Err(why)),
            };
            let row = done.unwrap_or_else(|why| Row {
                name: name.clone(),
                not_run: BTreeMap::from([(why, vec![name])]),
                ..Row::default()
            });
            self.rows.push(row);
        }
        Ok(())
    }

    fn run_one(
        &self,
        mut check: Check,
        number: usize,
        count: usize,
        home: &Home,
    ) -> std::result::Result<Row, String> {
        let label = check.label();
        let missing = |row: &&Row| check.needs.contains(&&*row.name) && row.passed == 0;
        if let Some(row) = self.rows.iter().find(missing) {
            return Err(format!("the step `{}` did not pass", row.name));
        }
        println!(
            "\n[{number}/{count}] {label}: {}",
            words(&check.step.command)
        );
        let start = Instant::now();
        let outcome = check.run(home)?;
        let row = Row {
            time: start.elapsed(),
            ..row(&check, outcome)
        };
        let seconds = row.time.as_secs_f32();
        let failed = match row.failed.len() {
            0 => String::new(),
            failed => format!(", {failed} FAILED"),
        };
        let before: Duration = self.rows.iter().map(|row| row.time).sum();
        let share = percent(row.time, before + row.time);
        println!("[{number}/{count}] {label}: {seconds:.1} s, {share}% of the time so far{failed}");
        Ok(row)
    }

    /// Adds the result of a check that is not a command.
    pub(crate) fn add(&mut self, name: &str, result: std::result::Result<(), String>) {
        self.rows.push(Row {
            name: name.to_owned(),
            passed: usize::from(result.is_ok()),
            failed: result
                .err()
                .into_iter()
                .map(|why| (why, String::new()))
                .collect(),
            ..Row::default()
        });
    }

    /// Adds text below the table.
    pub(crate) fn note(&mut self, text: String) {
        self.note = text;
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.rows.iter().all(|row| row.failed.is_empty())
    }

    /// Prints the table.
    pub(crate) fn finish(self) -> Result {
        print!("\n{self}");
        if self.has_passed() {
            Ok(())
        } else {
            Err(Failed.into())
        }
    }
}

/// 0 if all is no time.
fn percent(part: Duration, all: Duration) -> u32 {
    (100.0 * part.as_secs_f32() / all.as_secs_f32().max(f32::MIN_POSITIVE)).round() as u32
}

fn row(check: &Check, outcome: Outcome) -> Row {
    let mut row = Row {
        name: check.label(),
        advice: check.step.advice,
        ..Row::default()
    };
    for program in &outcome.programs {
        row.passed += program.passed;
        row.failed.extend(program.failed.iter().map(|failure| {
            let name = format!("{} {}", program.name, failure.test);
            (name, check.repeat(Some(failure)))
        }));
    }
    if outcome.broken {
        row.failed.push((check.label(), check.repeat(None)));
    } else if outcome.programs.is_empty() {
        row.passed = 1;
    }
    // A harness counts a test as passed that returned early because it could not run.
    let counted: usize = outcome
        .programs
        .iter()
        .map(|program| program.skipped.len())
        .sum();
    let ended_early = outcome.not_run.len().saturating_sub(counted);
    row.passed = row.passed.saturating_sub(ended_early);
    for (test, why) in outcome.not_run {
        row.not_run.entry(why).or_default().push(test);
    }
    row
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.len()).max();
        let width = width.unwrap_or_default();
        let time: Duration = self.rows.iter().map(|row| row.time).sum();
        writeln!(
            f,
            "{:<width$}  PASSED  FAILED  NOT RUN    TIME  SHARE",
            "STEP"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<width$}  {:>6}  {:>6}  {:>7}  {:>4} s  {:>4}%",
                row.name,
                row.passed,
                row.failed.len(),
                row.skipped(),
                row.time.as_secs(),
                percent(row.time, time)
            )?;
            for (what, repeat) in &row.failed {
                writeln!(f, "    FAILED {what}")?;
                if !repeat.is_empty() {
                    writeln!(f, "        {repeat}")?;
                }
            }
            if !row.failed.is_empty() && !row.advice.is_empty() {
                writeln!(f, "        {}", row.advice)?;
            }
            for (why, tests) in &row.not_run {
                let tests: Vec<&str> = tests.iter().map(String::as_str).collect();
                if tests == [row.name.as_str()] {
                    writeln!(f, "    not run: {why}")?;
                } else {
                    writeln!(
                        f,
                        "    not run ({}): {why}: {}",
                        tests.len(),
                        tests.join(", ")
                    )?;
                }
            }
        }
        let sum = |count: fn(&Row) -> usize| self.rows.iter().map(count).sum::<usize>();
        writeln!(f, "\n{} steps in {} s", self.rows.len(), time.as_secs())?;
        let mut slowest: Vec<&Row> = self.rows.iter().collect();
        slowest.sort_by_key(|row| Reverse(row.time));
        let slowest = slowest
            .iter()
            .take(SLOWEST)
            .map(|row| format!("{} {} s", row.name, row.time.as_secs()));
        writeln!(f, "The slowest: {}", slowest.collect::<Vec<_>>().join(", "))?;
        if !self.note.is_empty() {
            writeln!(f, "\n{}", self.note)?;
        }
        writeln!(
            f,
            "\n{} passed, {} failed, {} skipped",
            sum(|row| row.passed),
            sum(|row| row.failed.len()),
            sum(Row::skipped)
        )
    }
}
