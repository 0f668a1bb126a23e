// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask quick`: lints and tests of what was changed since the last commit.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::check::cargo::{SELECTED, has_nextest, strict, test, with};
use crate::step::{self, Step};
use crate::{Result, cargo, root};

/// Test programs that take long. They run only if they were changed themselves.
const SLOW: [&str; 16] = [
    "camera",
    "clips",
    "containers",
    "cuda",
    "cuda_elements",
    "docs",
    "embedded",
    "exhaustive",
    "fault_chains",
    "fault_points",
    "latency",
    "samples",
    "serve",
    "share",
    "short",
    "soak",
];
/// The slow modules of other programs.
const SLOW_MODULES: [&str; 13] = [
    "before_the_start",
    "cameras",
    "floods",
    "model",
    "other_software",
    "outside_segment",
    "pictures",
    "plain_readers",
    "stream_headers",
    "torrents",
    "two_processes",
    "waiting_sinks",
    "zero_copy",
];
/// The crates whose tests start no program of another crate.
const ALONE: [&str; 5] = [
    "xmem-core",
    "xmem-cuda",
    "xmem-cuda-standin",
    "xmem-shm",
    "xtask",
];
const PLUGIN: &str = "gst-plugin-xmem";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these test programs instead, by the NAME of `cargo test --test NAME`
    programs: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    let mut change = Change::default();
    for path in changed()? {
        change.add(&path);
    }
    change.programs.extend(args.programs.iter().cloned());
    let mut steps = vec![Step::new(
        "format",
        with(cargo(), &["fmt", "--all", "--check"]),
        "run `cargo fmt --all`",
    )];
    if !change.crates.is_empty() {
        let mut lints = with(cargo(), &["clippy", "--locked"]);
        // Other tests have the same lints as before, and are compiled below.
        if change.has_tests {
            lints.arg("--all-targets");
        }
        lints.args(change.crates.iter().flat_map(|name| ["--package", name]));
        lints.args(["--", "-D", "warnings"]);
        steps.push(Step::new("lints", lints, "fix clippy's warnings"));
    }
    let tested = args.programs.is_empty();
    if !change.is_alone() {
        let build = ["build", "--lib", "--bins", "--examples"];
        steps.push(Step::new(
            "build",
            with(with(cargo(), &build), &SELECTED),
            "see the compiler's error message above",
        ));
    }
    if let Some(command) = change.tests(tested) {
        steps.push(Step::new("tests", command, "see the failed tests above"));
    }
    step::run_all(steps)?;
    for (what, command) in &change.left_out {
        println!("Not tested: {what}. `{command}` tests it.");
    }
    println!("Slow tests and other crates are left out: `cargo xtask test` runs them.");
    Ok(())
}

/// What was changed.
#[derive(Debug, Default)]
struct Change {
    crates: BTreeSet<String>,
    /// The changed test programs.
    programs: BTreeSet<String>,
    /// Tests or examples were changed.
    has_tests: bool,
    left_out: BTreeSet<(String, &'static str)>,
}

impl Change {
    fn add(&mut self, path: &str) {
        let words: Vec<&str> = path.split('/').collect();
        let (name, inside) = match words[..] {
            ["crates", "xmem-python", ..] => {
                self.leave_out(path, "cargo xtask python");
                return;
            }
            ["bridge", ..] => {
                self.leave_out(path, "cargo xtask test --only bridge");
                return;
            }
            ["crates" | "tools", name, ref inside @ ..] => (name, inside),
            ["xtask", ref inside @ ..] => ("xtask", inside),
            ["src" | "tests" | "examples", ..] if !path.ends_with(".py") => (PLUGIN, &words[..]),
            _ => {
                // The sources are compared with the tables of the docs, and the docs with the programs.
                self.programs.extend(["docs".into(), "house".into()]);
                if !path.ends_with(".md") {
                    self.leave_out(path, "cargo xtask test");
                }
                return;
            }
        };
        self.crates.insert(name.to_owned());
        if SELECTED.contains(&name) {
            self.leave_out(path, "cargo xtask test --full");
        }
        self.has_tests |= matches!(inside, ["tests" | "examples" | "benches", ..]);
        if let ["tests", program, ..] = inside {
            let program = program.trim_end_matches(".rs");
            let known = programs(name).into_iter().find(|known| known == program);
            self.programs.extend(known);
        }
    }

    fn leave_out(&mut self, path: &str, command: &'static str) {
        self.left_out.insert((path.to_owned(), command));
    }

    fn is_alone(&self) -> bool {
        let programs: Vec<String> = ALONE.into_iter().flat_map(programs).collect();
        self.crates.iter().all(|name| ALONE.contains(&&**name))
            && self.programs.iter().all(|name| programs.contains(name))
    }

    /// The tests of the changed crates, or only the named programs. `None`: there are none.
    fn tests(&self, of_crates: bool) -> Option<Command> {
        let crates = self.crates.iter();
        // The selection has the names of the packages that it leaves out.
        let crates = crates.filter(|name| of_crates && !SELECTED.contains(&&***name));
        let names = crates.clone().flat_map(|name| programs(name));
        let mut names: BTreeSet<String> = names.filter(|name| !SLOW.contains(&&**name)).collect();
        names.extend(self.programs.iter().cloned());
        let mut command = strict(test());
        if of_crates && self.is_alone() {
            // Without the unit tests of the others.
            command.arg("--locked");
            command.args(crates.clone().flat_map(|name| ["--package", name]));
        } else {
            command.args(SELECTED);
        }
        command.args(names.iter().map(|name| format!("--test={name}")));
        // Each of these builds the unit tests of all selected crates.
        let units = [("src/lib.rs", "--lib"), ("src/main.rs", "--bins")];
        let units = units
            .into_iter()
            .filter(|(file, _)| crates.clone().any(|name| folder(name).join(file).exists()));
        let units: Vec<&str> = units.map(|(_, option)| option).collect();
        if names.is_empty() && units.is_empty() {
            return None;
        }
        command.args(units);
        if has_nextest() {
            let slow = format!("test(/^({})::/)", SLOW_MODULES.join("|"));
            let changed = crates.map(|name| format!("(package(={name}) - {slow})"));
            let named = self.programs.iter().map(|name| format!("binary(={name})"));
            let all: Vec<String> = changed.chain(named).collect();
            command.args(["--filterset", &all.join(" | ")]);
        }
        Some(command)
    }
}

fn folder(name: &str) -> PathBuf {
    match name {
        PLUGIN => root(),
        "xtask" => root().join(name),
        name => {
            let of = |group| root().join(group).join(name);
            Some(of("crates"))
                .filter(|folder| folder.exists())
                .unwrap_or_else(|| of("tools"))
        }
    }
}

/// The test programs of a crate.
fn programs(name: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder(name).join("tests"))
        .into_iter()
        .flatten();
    let program = |path: &Path| {
        let is_one =
            path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").exists();
        let name = path.file_stem()?.to_str()?;
        is_one.then(|| name.to_owned())
    };
    entries
        .flatten()
        .filter_map(|entry| program(&entry.path()))
        .collect()
}

/// The files that differ from the last commit, or, if there are none, those of the last commit.
fn changed() -> Result<Vec<String>> {
    let git = |args: &[&str]| -> Result<Vec<String>> {
        let output = Command::new("git")
            .args(args)
            .current_dir(root())
            .output()
            .map_err(|error| format!("cannot start git: {error}"))?;
        if !output.status.success() {
            return Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().map(str::to_owned).collect())
    };
    let mut files = git(&["diff", "--name-only", "HEAD"])?;
    files.extend(git(&["ls-files", "--others", "--exclude-standard"])?);
    if files.is_empty() {
        println!("Nothing differs from the last commit, so this tests what that changed.");
        files = git(&["diff", "--name-only", "HEAD~1", "HEAD"])?;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_programs_and_modules_exist() {
        let crates = [
            PLUGIN,
            "xmem-core",
            "xmem-cli",
            "xmem-capi",
            "xmem-shm",
            "xmem-faults",
        ];
        let mut known = Vec::new();
        for name in crates {
            known.extend(programs(name).into_iter().map(|program| (name, program)));
        }
        for slow in SLOW {
            assert!(known.iter().any(|(_, program)| program == slow), "{slow}");
        }
        for slow in SLOW_MODULES {
            let has_it = |(name, program): &(&str, String)| {
                let module = folder(name).join("tests").join(program).join(slow);
                module.with_extension("rs").exists()
            };
            assert!(known.iter().any(has_it), "{slow}");
        }
    }
}
