// SPDX-License-Identifier: MPL-2.0

//! One step of the tests.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::empty_for_all;
use super::harness::{Failure, Harness, Program};
use super::rights::{Home, Rights};
use crate::step::{Step, cannot_start, words};
use crate::{Result, target_dir};

/// A step, and what is known about it.
#[derive(Debug)]
pub(crate) struct Check {
    pub(super) step: Step,
    /// The steps that make what this one needs.
    pub(super) needs: &'static [&'static str],
    pub(super) rights: Rights,
    /// `None`: the step passes or fails as a whole.
    harness: Option<Harness>,
    /// The command that repeats it.
    repeat: String,
}

/// The result of a step.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) programs: Vec<Program>,
    /// Tests, and why they did not run.
    pub(super) not_run: BTreeSet<(String, String)>,
    /// The step failed, and no test of it.
    pub(super) broken: bool,
}

impl From<Step> for Check {
    fn from(step: Step) -> Self {
        Self {
            repeat: words(&step.command),
            step,
            needs: &[],
            rights: Rights::Me,
            harness: None,
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

    /// With further arguments, which repeating a test does without.
    pub(super) fn only(mut self, arguments: &[String]) -> Self {
        self.step.command.args(arguments);
        self
    }

    pub(super) fn label(&self) -> String {
        format!("{}{}", self.step.name, self.rights.suffix())
    }

    /// The command that repeats it, or one test of it.
    pub(super) fn repeat(&self, failure: Option<&Failure>) -> String {
        let only = failure.map(|failure| format!(" {}", failure.only));
        format!("{}{}", self.repeat, only.unwrap_or_default())
    }

    /// The program that has to be there to run it.
    fn program(&self) -> PathBuf {
        match self.harness {
            Some(Harness::Pytest) => crate::python::interpreter(),
            _ => target_dir(),
        }
    }

    /// Runs it. `Err`: why that is not possible.
    pub(super) fn run(&mut self, home: &Home) -> std::result::Result<Outcome, String> {
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
        let file = NotRun::new()?;
        let command = &mut self.step.command;
        command
            .env(NotRun::VARIABLE, &file.0)
            .env(Home::VARIABLE, home.of(self.rights));
        let (success, programs) = match self.harness {
            Some(harness) => harness.run(command)?,
            None => {
                let status = command.status();
                let status = status.map_err(|error| cannot_start(command, error))?;
                (status.success(), Vec::new())
            }
        };
        let not_run = programs.iter().flat_map(|program| program.skipped.clone());
        Ok(Outcome {
            not_run: not_run.chain(file.tests()?).collect(),
            broken: !success && programs.iter().all(|program| program.failed.is_empty()),
            programs,
        })
    }
}

/// The file that tests of whatever user write into when they cannot run.
#[derive(Debug)]
struct NotRun(PathBuf);

impl NotRun {
    const VARIABLE: &str = "XMEM_NOT_RUN";

    fn new() -> Result<Self> {
        // The tests in another Debian have a /tmp of their own, and this folder.
        let file = target_dir().join("tests-not-run");
        empty_for_all(&file)?;
        Ok(Self(file))
    }

    fn tests(&self) -> Result<Vec<(String, String)>> {
        let text = std::fs::read_to_string(&self.0)?;
        let tests = text.lines().filter_map(|line| line.split_once(": "));
        Ok(tests
            .map(|(test, why)| (test.to_owned(), why.to_owned()))
            .collect())
    }
}
