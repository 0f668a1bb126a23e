// SPDX-License-Identifier: MPL-2.0

//! The selected test programs.

use std::collections::BTreeSet;
use std::path::Path;

use crate::check::cargo::{SELECTED, has_nextest, of_rust, strict, test, with};
use crate::check::{Check, Rights};
use crate::step::Step;
use crate::{python, root};

/// Test programs whose names begin with the value of this variable run again in a later step. They write only then to the file of
/// tests that did not run.
const RUN_AGAIN: &str = "XMEM_RUN_AGAIN";

/// The selected test programs and their arguments.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Selection {
    /// Run only these test programs, by the NAME of `cargo test --test NAME`, or modules of one; `python` selects the Python module's
    /// tests
    pub(super) programs: Vec<String>,
    /// Arguments for the test programs, such as `-- --exact NAME`; for pytest if only `python` is selected
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// The test program with the model of the slot protocol.
pub(super) const MODEL: &str = "exhaustive";
const PYTHON: &str = "python";
/// pytest's arguments for all tests. They wait more than they compute.
const IN_PARALLEL: [&str; 2] = ["--numprocesses=6", "--dist=loadfile"];

/// What the tests of a run are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    All,
    /// Frames in host memory.
    Host,
    /// Frames in the memory of CUDA devices: programs and files whose names begin with `cuda`.
    Cuda,
}

impl Subject {
    /// The tests of this subject in nextest's words.
    fn filterset(self) -> String {
        match self {
            Self::All => format!("not binary(={MODEL})"),
            Self::Host => format!("not binary(={MODEL}) - binary(/^cuda/)"),
            Self::Cuda => "binary(/^cuda/)".to_owned(),
        }
    }

    /// The tests of this subject in pytest's words.
    fn keywords(self) -> Option<&'static str> {
        match self {
            Self::All => None,
            Self::Host => Some("not test_cuda_"),
            Self::Cuda => Some("test_cuda_"),
        }
    }
}

impl Selection {
    /// All test programs, without arguments.
    pub(super) fn is_everything(&self) -> bool {
        self.programs.is_empty() && self.arguments.is_empty()
    }

    pub(super) fn has_python(&self) -> bool {
        self.is_everything() || self.programs.iter().any(|program| program == PYTHON)
    }

    /// The Rust test programs.
    pub(super) fn workspace(
        &self,
        rights: Rights,
        subject: Subject,
        runs_again: bool,
    ) -> Option<Check> {
        let names = self.programs.iter().filter(|name| *name != PYTHON);
        let mut only = match &names.flat_map(|name| programs(name)).collect::<Vec<_>>()[..] {
            // Without the documentation tests, which are a separate step.
            [] if self.programs.is_empty() => {
                let mut only = vec!["--tests".to_owned()];
                if has_nextest() {
                    only.extend(["--filterset".into(), subject.filterset()]);
                }
                only
            }
            [] => return None,
            programs => {
                let target = |(program, _): &(String, _)| format!("--test={program}");
                let targets: BTreeSet<String> = programs.iter().map(target).collect();
                let mut only: Vec<String> = targets.into_iter().collect();
                if has_nextest() && programs.iter().any(|(_, module)| module.is_some()) {
                    only.extend(["--filterset".into(), filterset(programs)]);
                }
                only
            }
        };
        if !self.arguments.is_empty() {
            only.push("--".into());
            only.extend(self.arguments.iter().cloned());
        }
        let mut command = with(strict(test()), &SELECTED);
        command.args(rights.arguments());
        if runs_again {
            command.env(RUN_AGAIN, "cuda");
        }
        let step = Step {
            name: "tests",
            command,
            advice: "where a process was killed at a fault point, the last line of the test's output names both",
        };
        Some(of_rust(rights, step).only(&only))
    }

    pub(super) fn python(&self, rights: Rights, subject: Subject) -> Option<Check> {
        if !self.has_python() {
            return None;
        }
        let check = python::pytest(rights);
        if self.programs == [PYTHON] && !self.arguments.is_empty() {
            return Some(check.only(&self.arguments));
        }
        let mut arguments = IN_PARALLEL.to_vec();
        arguments.extend(subject.keywords().into_iter().flat_map(|it| ["-k", it]));
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        Some(check.only(&arguments))
    }
}

/// The test programs with this name, or those with a module of this name, and the module.
fn programs(name: &str) -> Vec<(String, Option<String>)> {
    let groups = ["crates", "tools"].map(|group| std::fs::read_dir(root().join(group)));
    let crates = groups.into_iter().flatten().flatten().flatten();
    let crates = crates.map(|entry| entry.path());
    let tests = crates
        .chain([root(), root().join("xtask")])
        .map(|dir| dir.join("tests"));
    let is_module =
        |dir: &Path| dir.join("main.rs").exists() && dir.join(name).with_extension("rs").exists();
    let mut programs = Vec::new();
    for entry in tests.flat_map(std::fs::read_dir).flatten().flatten() {
        let path = entry.path();
        let stem = path.file_stem().unwrap_or_default();
        if stem == name {
            return vec![(name.to_owned(), None)];
        }
        if is_module(&path) {
            programs.push((stem.display().to_string(), Some(name.to_owned())));
        }
    }
    // Cargo says that there is no such program.
    if programs.is_empty() {
        programs.push((name.to_owned(), None));
    }
    programs
}

/// These tests in nextest's words.
fn filterset(programs: &[(String, Option<String>)]) -> String {
    let one = |(program, module): &(String, Option<String>)| match module {
        None => format!("binary(={program})"),
        Some(module) => format!("binary(={program}) & test(/^{module}::/)"),
    };
    programs.iter().map(one).collect::<Vec<_>>().join(" | ")
}
