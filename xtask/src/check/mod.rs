// SPDX-License-Identifier: MPL-2.0

//! One step of `cargo xtask test`.

pub(crate) mod cargo;
mod harness;
mod report;
mod rights;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::step::{Background, Step, cannot_start, words};
use crate::{Result, target_dir};
use harness::{Failure, Program, empty_for_all};

pub(crate) use harness::{Harness, python};
pub(crate) use report::{Failed, Planned, Report};
pub(crate) use rights::{Home, Rights, runner};

/// A step, with its prerequisites, its rights and the command that repeats it.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) step: Step,
    /// The names of the steps that must pass first.
    pub(super) needs: &'static [&'static str],
    pub(super) rights: Rights,
    /// The format of the results. `None`: the step passes or fails as a whole.
    harness: Option<Harness>,
    /// The command that repeats the step.
    repeat: String,
    /// The command that is running already.
    background: Option<Result<Background>>,
}

/// The result of a step.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) programs: Vec<Program>,
    /// The tests that did not run, each with the reason.
    pub(crate) not_run: BTreeSet<(String, String)>,
    /// The step failed, but none of its tests did: for example, the build failed.
    pub(crate) broken: bool,
}

impl From<Step> for Check {
    fn from(step: Step) -> Self {
        Self {
            repeat: words(&step.command),
            step,
            needs: &[],
            rights: Rights::Me,
            harness: None,
            background: None,
        }
    }
}

impl Check {
    /// A step that runs tests.
    pub(crate) fn of_tests(harness: Harness, rights: Rights, step: Step) -> Self {
        let mut check = Self {
            rights,
            harness: Some(harness),
            ..Self::from(step)
        };
        check.step.command.args(harness.arguments());
        check
    }

    pub(crate) fn needing(mut self, steps: &'static [&'static str]) -> Self {
        self.needs = steps;
        self
    }

    /// Adds arguments. The command that repeats a single test does not have them.
    pub(crate) fn only(mut self, arguments: &[String]) -> Self {
        self.step.command.args(arguments);
        self
    }

    /// Starts the command now, because it waits for downloads while the steps before it compute.
    pub(crate) fn in_background(mut self) -> Self {
        self.background = Some(Background::start(&mut self.step.command));
        self
    }

    pub(crate) fn label(&self) -> String {
        format!("{}{}", self.step.name, self.rights.suffix())
    }

    /// The command that repeats the step, or one test of it.
    pub(crate) fn repeat(&self, failure: Option<&Failure>) -> String {
        let only = failure.map(|failure| format!(" {}", failure.only));
        format!("{}{}", self.repeat, only.unwrap_or_default())
    }

    /// The path that must be accessible with the step's rights: the Python interpreter, or the target directory of cargo.
    fn program(&self) -> PathBuf {
        match self.harness {
            Some(Harness::Pytest) => python(),
            _ => target_dir(),
        }
    }

    /// Runs the step. `Err` gives the reason why it cannot run.
    pub(crate) fn run(&mut self, home: &Home) -> std::result::Result<Outcome, String> {
        if let Some(why) = self.rights.obstacle(&self.program(), home) {
            return Err(why);
        }
        Ok(self.try_run(home).unwrap_or_else(|error| {
            eprintln!("{}: {error}", self.label());
            Outcome {
                programs: Vec::new(),
                not_run: BTreeSet::new(),
                broken: true,
            }
        }))
    }

    fn try_run(&mut self, home: &Home) -> Result<Outcome> {
        // Tests in another Debian release have their own /tmp, but the same target directory.
        let not_run_file = target_dir().join("tests-not-run");
        empty_for_all(&not_run_file)?;
        let command = &mut self.step.command;
        command
            .env(NOT_RUN, &not_run_file)
            .env(Home::VARIABLE, home.of(self.rights));
        let (success, programs) = match self.harness {
            Some(harness) => harness.run(command)?,
            None => {
                let status = match self.background.take() {
                    Some(background) => background?.wait()?,
                    None => command
                        .status()
                        .map_err(|error| cannot_start(command, error))?,
                };
                (status.success(), Vec::new())
            }
        };
        let not_run = programs.iter().flat_map(|program| program.skipped.clone());
        Ok(Outcome {
            not_run: not_run.chain(tests_of(&not_run_file)?).collect(),
            broken: !success && programs.iter().all(|program| program.failed.is_empty()),
            programs,
        })
    }
}

/// Names the file to which tests write that they cannot run.
const NOT_RUN: &str = "XMEM_NOT_RUN";

/// The tests in such a file, and why each cannot run.
fn tests_of(not_run: &Path) -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(not_run)?;
    let tests = text.lines().filter_map(|line| line.split_once(": "));
    Ok(tests
        .map(|(test, why)| (test.to_owned(), why.to_owned()))
        .collect())
}
