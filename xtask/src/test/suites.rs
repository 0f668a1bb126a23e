// SPDX-License-Identifier: MPL-2.0

//! The test programs, in groups that are built and run together.

use std::process::Command;

use crate::check::cargo::{has_nextest, of_rust, strict};
use crate::check::{Check, Rights};
use crate::step::Step;
use crate::{cargo, python};

/// Test programs whose names begin with the value of this variable run again in a later step. They write only then to the file of
/// tests that did not run.
const RUN_AGAIN: &str = "XMEM_RUN_AGAIN";

/// The selected test programs and their arguments.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Selection {
    /// Run only these test programs, by the NAME of `cargo test --test NAME`; `python` selects the Python module's tests
    pub(super) programs: Vec<String>,
    /// Arguments for the test programs, such as `-- --exact NAME`; for pytest if only `python` is selected
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Cargo's arguments for tests that need a core with fault points. Packages are named, so that no other package is built with fault
/// points.
pub(super) const FAULTS: [&str; 7] = [
    "--package",
    "xmem-core",
    "--package",
    "xmem-faults",
    "--features",
    "fault-points,xmem-core/cuda",
    "--locked",
];
/// The test programs that need fault points.
const FAULT_TESTS: [&str; 5] = ["fault_points", "fault_chains", "cuda", "short", "soak"];
/// The test program of `FAULT_TESTS` that also runs without fault points.
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

    /// The Rust test programs of the workspace.
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
        // Without the documentation tests, which are a separate step.
        Some(self.rust(step, rights, &programs, &["--tests"]))
    }

    /// The test programs that need a core with fault points.
    pub(super) fn faults(&self, rights: Rights) -> Option<Check> {
        let programs = self.of(|program| FAULT_TESTS.contains(&program))?;
        let step = Step {
            name: "faults",
            command: run(rights, &FAULTS),
            advice: "the last line of the test's output names the killed process and the fault point",
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

    /// The selected programs of one group. An empty list selects the whole group. `None`: no program of the group is selected.
    fn of(&self, belongs: impl Fn(&str) -> bool) -> Option<Vec<String>> {
        let programs = self.programs.iter().filter(|program| belongs(program));
        let programs: Vec<String> = programs.cloned().collect();
        (self.programs.is_empty() || !programs.is_empty()).then_some(programs)
    }

    /// `all` are cargo's arguments if no programs are named.
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

/// The command that runs the tests.
fn run(rights: Rights, args: &[&str]) -> Command {
    let mut command = strict(cargo());
    let run: &[&str] = if has_nextest() {
        &["nextest", "run"]
    } else {
        &["test"]
    };
    command.args(run).args(args).args(rights.arguments());
    command
}
