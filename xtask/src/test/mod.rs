// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask test`: the checks that a change must pass.

mod bridge;
mod parts;
mod stress;
mod suites;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use crate::check::cargo::{BUILD, SELECTED, build, strict, with};
use crate::check::{Check, Harness, Planned, Report, Rights};
use crate::step::{Step, output, succeeds};
use crate::{Result, apt, cargo, compat, packages, python, samples, target_dir};

use self::parts::Part;
use self::suites::{Selection, Subject};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Run test programs with the rights of these users; all other checks run only with `me` [default: me; with --stress as root:
    /// me,user]
    #[arg(long = "as", value_name = "USER", value_enum, value_delimiter = ',')]
    rights: Vec<Rights>,
    /// Run everything: also all parts of `--only`
    #[arg(long)]
    #[arg(conflicts_with_all = ["only", "stress", "compat", "programs", "arguments"])]
    full: bool,
    /// With `--full`: leave out these parts
    #[arg(
        long,
        value_name = "PART",
        value_enum,
        value_delimiter = ',',
        requires = "full"
    )]
    without: Vec<Part>,
    /// Run only these parts, which a run without `--full` leaves out
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    #[arg(conflicts_with_all = ["stress", "compat", "rights", "programs", "arguments"])]
    only: Vec<Part>,
    /// Run the test programs repeatedly, beside four busy loops
    #[arg(long, value_name = "TIMES", num_args = 0..=1, default_missing_value = "30")]
    stress: Option<u32>,
    /// Run the plugin's tests with the newer GStreamer of Debian 13, or of another Debian release (needs root and 2 GB)
    #[arg(long, value_name = "RELEASE", num_args = 0..=1, default_missing_value = compat::SUITE)]
    #[arg(conflicts_with_all = ["stress", "rights", "programs", "arguments"])]
    compat: Option<String>,
}

impl Args {
    /// The parts that run.
    fn parts(&self) -> BTreeSet<Part> {
        if self.full {
            let without = self.without.iter().copied().collect();
            return &Part::all() - &without;
        }
        self.only.iter().copied().collect()
    }
}

pub(crate) fn run(args: &Args) -> Result {
    if let Some(suite) = &args.compat {
        return compat::run(suite);
    }
    let rights = match &args.rights[..] {
        [] if args.stress.is_some() && apt::is_root() => vec![Rights::Me, Rights::User],
        [] => vec![Rights::Me],
        rights => rights.to_vec(),
    };
    let selection = &args.selection;
    let parts = args.parts();
    let is_all = selection.is_everything() && rights.contains(&Rights::Me) && args.stress.is_none();
    if is_all && args.only.is_empty() {
        announce(&parts)?;
    }
    packages::ensure_for_test()?;
    let mut report = Report::default();
    if let Some(rounds) = args.stress {
        report.run(prepare(selection, false))?;
        if !report.has_passed() {
            return report.finish();
        }
        let checks = rights
            .iter()
            .flat_map(|rights| programs(selection, *rights, Subject::All));
        return stress::run(rounds, checks.collect());
    }
    let mut steps = Vec::new();
    if is_all {
        if parts.contains(&Part::Lints) {
            ensure_rust_components()?;
        }
        if args.only.is_empty() {
            steps.extend(always(selection, &parts));
        } else if parts.iter().any(|part| part.needs_build()) {
            steps.extend(before_parts(selection, &parts));
        }
        steps.extend(parts.iter().flat_map(|part| part.steps()));
    } else {
        steps.extend(prepare(selection, false));
    }
    let others = rights
        .iter()
        .filter(|rights| !is_all || **rights != Rights::Me);
    let subject = if selection.is_everything() {
        subject(&parts)
    } else {
        Subject::All
    };
    steps.extend(
        others
            .flat_map(|rights| programs(selection, *rights, subject))
            .map(Ok),
    );

    let shm_before = shm_names();
    report.run(steps)?;
    let left = left_in_shm(&shm_before);
    report.add(
        "nothing left in /dev/shm",
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("a region was not given back: {}", left.join(", ")))
        },
    );
    if is_all && args.only.is_empty() {
        report.note(left_out(&parts));
    }
    report.finish()
}

/// Prints the time, disk space and downloads that the run needs.
fn announce(parts: &BTreeSet<Part>) -> Result {
    let target = target_dir();
    std::fs::create_dir_all(&target)?;
    let mut df = Command::new("df");
    df.args(["--output=avail", "--block-size=1G"]).arg(&target);
    let free = output(&mut df).unwrap_or_default();
    let (minutes, gigabytes) = if parts.is_empty() { (10, 5) } else { (30, 15) };
    println!(
        "This takes up to {minutes} minutes on two idle processors, and up to {gigabytes} GB in {}. {} GB are free there.",
        target.display(),
        free.lines().last().map_or("?", str::trim)
    );
    Ok(())
}

/// The subject of the tests that each run has.
fn subject(parts: &BTreeSet<Part>) -> Subject {
    match parts.contains(&Part::Cuda) {
        true => Subject::All,
        false => Subject::Host,
    }
}

/// Names what the run left out, with the command that runs it.
fn left_out(parts: &BTreeSet<Part>) -> String {
    let left_out = &Part::all() - parts;
    if left_out.is_empty() {
        return String::new();
    }
    let lines = left_out
        .iter()
        .map(|part| format!("  {:<9}{}", part.name(), part.what()));
    let mut lines: Vec<String> = lines.collect();
    lines.insert(0, "Left out:".to_owned());
    lines.push("`cargo xtask test --only NAME,...` runs these parts, `cargo xtask test --full` everything.".to_owned());
    lines.join("\n")
}

/// The steps that build the test programs' prerequisites.
fn prepare(selection: &Selection, with_torch: bool) -> Vec<Planned> {
    let mut steps = vec![Ok(build().into())];
    if selection.has_python() {
        steps.extend(python::module(with_torch).map(Ok));
    }
    steps
}

/// The steps that run the selected test programs.
fn programs(selection: &Selection, rights: Rights, subject: Subject) -> Vec<Check> {
    let workspace = selection.workspace(rights, subject, false);
    workspace
        .map(|check| check.needing(&[BUILD]))
        .into_iter()
        .chain(selection.python(rights, subject))
        .collect()
}

/// The steps before these parts if nothing else runs, because some need what is built.
fn before_parts(selection: &Selection, parts: &BTreeSet<Part>) -> Vec<Planned> {
    let [has_cuda, has_torch] = [Part::Cuda, Part::Torch].map(|part| parts.contains(&part));
    if !has_cuda && !has_torch {
        return vec![Ok(build().into())];
    }
    let mut steps = prepare(selection, has_torch);
    if has_cuda {
        let workspace = selection.workspace(Rights::Me, Subject::Cuda, false);
        steps.extend(workspace.map(|check| Ok(check.needing(&[BUILD]))));
    }
    // Many files have a test with PyTorch.
    let subject = if has_torch {
        Subject::All
    } else {
        Subject::Cuda
    };
    steps.extend(selection.python(Rights::Me, subject).map(Ok));
    steps
}

/// The steps of each run. They prove the product on this machine.
fn always(selection: &Selection, parts: &BTreeSet<Part>) -> Vec<Planned> {
    let mut steps = prepare(selection, parts.contains(&Part::Torch));
    let runs_again =
        parts.contains(&Part::Debian) && compat::is_needed() && compat::obstacle().is_none();
    steps.extend(samples::missing().map(Ok));
    let subject = subject(parts);
    let workspace = selection.workspace(Rights::Me, subject, runs_again);
    steps.extend(workspace.map(|check| Ok(check.needing(&[BUILD]))));
    let docs = Step {
        name: "tests in the docs",
        command: strict(with(with(cargo(), &["test"]), &SELECTED)),
        advice: "fix the example in the doc comment",
    };
    let docs = Check::of_tests(Harness::Libtest, Rights::Me, docs);
    steps.push(Ok(docs.only(&["--doc".into()])));
    steps.extend(selection.python(Rights::Me, subject).map(Ok));
    steps
}

/// Installs rustfmt and clippy if they are missing. The minimal profile of rustup does not have them.
fn ensure_rust_components() -> Result {
    for (command, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if succeeds(cargo().args([command, "--version"])) {
            continue;
        }
        println!("$ rustup component add {component}");
        let added = Command::new("rustup")
            .args(["component", "add", component])
            .status();
        if !added.is_ok_and(|status| status.success()) {
            return Err(format!(
                "cargo {command} is missing: install {component} for your Rust toolchain"
            )
            .into());
        }
    }
    Ok(())
}

/// New files in /dev/shm that do not disappear within 10 seconds. Tests of other runs on this machine may create files for a short
/// time.
fn left_in_shm(before: &BTreeSet<String>) -> Vec<String> {
    let mut left: BTreeSet<String> = &shm_names() - before;
    for _ in 0..20 {
        if left.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
        left = &left & &shm_names();
    }
    left.into_iter().collect()
}

/// The names of xmem's files in /dev/shm.
fn shm_names() -> BTreeSet<String> {
    let Ok(dir) = std::fs::read_dir("/dev/shm") else {
        return BTreeSet::new();
    };
    dir.flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("xmem"))
        .collect()
}
