// SPDX-License-Identifier: MPL-2.0

//! The test programs, in the groups that are built and run together.

use std::process::Command;

use super::check::Check;
use super::harness::Harness;
use super::rights::Rights;
use super::{RUN_AGAIN, strict};
use crate::step::Step;
use crate::{cargo, python};

/// Which test programs run, and their arguments.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Selection {
    /// Only these test programs, by the name that `cargo test --test NAME` takes; `python` is the Python module's
    pub(super) programs: Vec<String>,
    /// For the test programs, such as `-- --exact NAME`; for pytest if `python` is all that is run
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Cargo's arguments for what needs a core with points at which it can be killed. Packages are named, so that nothing else is
/// built on it.
pub(super) const FAULTS: [&str; 7] = [
    "--package",
    "xmem-core",
    "--package",
    "xmem-faults",
    "--features",
    "fault-points,xmem-core/cuda",
    "--locked",
];
/// The test programs of that.
const FAULT_TESTS: [&str; 5] = ["fault_points", "fault_chains", "cuda", "short", "soak"];
/// Those of them that are there without these points, too.
const ALSO_WITHOUT: &str = "cuda";
const PYTHON: &str = "python";

impl Selection {
    /// All test programs, without arguments.
    pub(super) fn is_everything(&self) -> bool {
        self.programs.is_empty() && self.arguments.is_empty()
    }

    pub(super) fn has_python(&self) -> bool {
        self.is_everything() || self.programs.iter().any(|program| program == PYTHON)
    }

    /// The Rust programs of the workspace.
    pub(super) fn workspace(&self, rights: Rights, runs_again: bool) -> Option<Check> {
        let programs = self.of(|program| {
            program != PYTHON && (program == ALSO_WITHOUT || !FAULT_TESTS.contains(&program))
        })?;
        let mut command = run(rights, &["--workspace", "--locked"]);
        if runs_again {
            command.env(RUN_AGAIN, "cuda");
        }
        let step = Step {
            name: "tests",
            command,
            advice: "",
        };
        // Not the examples in the docs, which have a step of their own.
        Some(self.rust(step, rights, &programs, &["--tests"]))
    }

    /// Tests that need a core with points at which it can be killed.
    pub(super) fn faults(&self, rights: Rights) -> Option<Check> {
        let programs = self.of(|program| FAULT_TESTS.contains(&program))?;
        let step = Step {
            name: "faults",
            command: run(rights, &FAULTS),
            advice: "what was killed, where, is the last line that the test printed",
        };
        let all = FAULT_TESTS.map(|program| format!("--test={program}"));
        let all: Vec<&str> = all.iter().map(String::as_str).chain(["--bins"]).collect();
        Some(self.rust(step, rights, &programs, &all))
    }

    pub(super) fn python(&self, rights: Rights) -> Option<Check> {
        let check = self.has_python().then(|| python::pytest(rights))?;
        let alone = self.programs == [PYTHON];
        Some(check.only(if alone { &self.arguments } else { &[] }))
    }

    /// Those of the programs that belong to a group; none is all. `None`: nothing of it is wanted.
    fn of(&self, belongs: impl Fn(&str) -> bool) -> Option<Vec<String>> {
        let programs = self.programs.iter().filter(|program| belongs(program));
        let programs: Vec<String> = programs.cloned().collect();
        (self.programs.is_empty() || !programs.is_empty()).then_some(programs)
    }

    /// `all`: cargo's arguments when no programs are named.
    fn rust(&self, step: Step, rights: Rights, programs: &[String], all: &[&str]) -> Check {
        let tests = programs.iter().map(|program| format!("--test={program}"));
        let mut only: Vec<String> = tests.collect();
        if only.is_empty() {
            only.extend(all.iter().map(ToString::to_string));
        }
        if !self.arguments.is_empty() {
            only.push("--".into());
            only.extend(self.arguments.iter().cloned());
        }
        of_rust(rights, step).only(&only)
    }
}

/// A step that runs test programs of Rust's.
pub(crate) fn of_rust(rights: Rights, step: Step) -> Check {
    let harness = if super::has_nextest() {
        Harness::Nextest
    } else {
        Harness::Libtest
    };
    Check::of_tests(harness, rights, step)
}

/// The command that runs tests.
fn run(rights: Rights, args: &[&str]) -> Command {
    let mut command = strict(cargo());
    let run: &[&str] = if super::has_nextest() {
        &["nextest", "run"]
    } else {
        &["test"]
    };
    command.args(run).args(args).args(rights.arguments());
    command
}
