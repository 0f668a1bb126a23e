// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask test`: the checks that a change must pass.

mod bridge;
mod stress;
mod suites;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use crate::check::cargo::{BUILD, build, quietly, strict, with};
use crate::check::{Check, Harness, Planned, Report, Rights};
use crate::step::Step;
use crate::{
    Result, apt, arm, cargo, compat, packages, python, root, samples, sanitize, target_dir,
};

use self::suites::{FAULTS, Selection};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Run test programs with the rights of these users; all other checks run only with `me` [default: me; with --stress as root:
    /// me,user]
    #[arg(long = "as", value_name = "USER", value_enum, value_delimiter = ',')]
    rights: Vec<Rights>,
    /// Also run what takes half an hour more: cameras in a virtual machine, and the tests for a GPU on the stand-in driver
    #[arg(long, conflicts_with_all = ["stress", "compat", "programs", "arguments"])]
    full: bool,
    /// Run the test programs repeatedly, beside four busy loops
    #[arg(long, value_name = "TIMES", num_args = 0..=1, default_missing_value = "30")]
    stress: Option<u32>,
    /// Run the plugin's tests with the newer GStreamer of Debian 13, or of another Debian release (needs root and 2 GB)
    #[arg(long, value_name = "RELEASE", num_args = 0..=1, default_missing_value = compat::SUITE)]
    #[arg(conflicts_with_all = ["stress", "rights", "programs", "arguments"])]
    compat: Option<String>,
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
    let is_all = selection.is_everything() && rights.contains(&Rights::Me) && args.stress.is_none();
    if is_all {
        announce()?;
    }
    packages::ensure_for_test()?;
    let mut report = Report::default();
    if let Some(rounds) = args.stress {
        report.run(prepare(selection))?;
        if !report.has_passed() {
            return report.finish();
        }
        let checks = rights
            .iter()
            .flat_map(|rights| programs(selection, *rights));
        return stress::run(rounds, checks.collect());
    }
    let mut steps = if is_all {
        ensure_rust_components()?;
        everything(selection)
    } else {
        prepare(selection)
    };
    let others = rights
        .iter()
        .filter(|rights| !is_all || **rights != Rights::Me);
    steps.extend(
        others
            .flat_map(|rights| programs(selection, *rights))
            .map(Ok),
    );

    if args.full {
        steps.extend(long().map(|step| Ok(Check::from(step))));
    }

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
    report.finish()
}

/// Prints the time, disk space and downloads that the run needs.
fn announce() -> Result {
    let target = target_dir();
    std::fs::create_dir_all(&target)?;
    let mut df = Command::new("df");
    df.args(["--output=avail", "--block-size=1G"]).arg(&target);
    let free = df.output().ok().and_then(|output| {
        let text = String::from_utf8(output.stdout).ok()?;
        Some(text.lines().last()?.trim().to_owned())
    });
    println!(
        "This takes about 30 minutes on two processors, and up to 15 GB in {}. {} GB are free there.",
        target.display(),
        free.as_deref().unwrap_or("?")
    );
    let gets = [
        (
            python::is_wanted(),
            "PyTorch and other Python packages for the Python module's tests (5.5 GB)",
        ),
        (
            compat::is_wanted(),
            "a small Debian 13 with a newer GStreamer for some of the tests (1.2 GB)",
        ),
    ];
    for (_, what) in gets.iter().filter(|(is_wanted, _)| *is_wanted) {
        println!("It installs {what} there.");
    }
    Ok(())
}

/// The steps that build the test programs' prerequisites.
fn prepare(selection: &Selection) -> Vec<Planned> {
    let mut steps = vec![Ok(build().into())];
    if selection.has_python() {
        steps.extend(python::module().map(Ok));
    }
    steps
}

/// The steps that run the selected test programs.
fn programs(selection: &Selection, rights: Rights) -> Vec<Check> {
    let workspace = selection.workspace(rights, false);
    let rust = workspace.into_iter().chain(selection.faults(rights));
    rust.map(|check| check.needing(&[BUILD]))
        .chain(selection.python(rights))
        .collect()
}

/// The steps of a complete run.
fn everything(selection: &Selection) -> Vec<Planned> {
    let plain = |name, command, advice| {
        Ok(Check::from(Step {
            name,
            command,
            advice,
        }))
    };
    let newer = compat::few();
    let runs_again = matches!(newer, Ok(Some(_)));
    let mut steps: Vec<Planned> = vec![
        plain(
            "format",
            with(cargo(), &["fmt", "--all", "--check"]),
            "run `cargo fmt --all`",
        ),
        plain(
            "lints",
            clippy(&["--workspace", "--locked"]),
            "fix clippy's warnings; if Cargo.lock is out of date, run `cargo check` and commit it",
        ),
        // Only the crates that others depend on. The rest of the workspace always has the feature `cuda`.
        plain(
            "lints without CUDA",
            clippy(&[
                "--package",
                "gst-plugin-xmem",
                "--package",
                "gstxmem-cdylib",
                "--package",
                "xmem-core",
                "--package",
                "xmem-cli",
                "--no-default-features",
                "--features",
                "cpu",
                "--locked",
            ]),
            "fix clippy's warnings: some code is compiled only with the feature `cuda`",
        ),
        // Users build the crates and the Python module with these names.
        plain(
            "lints with --features cpu,cuda",
            clippy(&["--workspace", "--features", "cpu,cuda", "--locked"]),
            "fix clippy's warnings; the manifests must accept the names `cpu` and `cuda`",
        ),
    ];
    steps.extend(prepare(selection));
    let workspace = selection.workspace(Rights::Me, runs_again);
    steps.extend(workspace.map(|check| Ok(check.needing(&[BUILD]))));
    steps.push(samples::check());
    let docs = Step {
        name: "tests in the docs",
        command: strict(with(cargo(), &["test", "--workspace", "--locked"])),
        advice: "fix the example in the doc comment",
    };
    let docs = Check::of_tests(Harness::Libtest, Rights::Me, docs);
    steps.push(Ok(docs.only(&["--doc".into()])));
    steps.extend(selection.python(Rights::Me).map(Ok));
    steps.push(plain(
        "lints with fault points",
        clippy(&FAULTS),
        "fix clippy's warnings",
    ));
    steps.extend(selection.faults(Rights::Me).map(Ok));
    steps.push(Ok(loom()));
    let sanitizers = sanitize::checks().into_iter();
    steps.extend(
        sanitizers.map(|step| step.map(|step| Check::of_tests(Harness::Libtest, Rights::Me, step))),
    );
    steps.push(arm::check().map(Check::from));
    steps.extend(bridge::checks().map(Ok));
    steps.push(plain(
        "docs",
        {
            let mut command = with(cargo(), &["doc", "--workspace", "--no-deps", "--locked"]);
            command.env("RUSTDOCFLAGS", "-D warnings");
            command
        },
        "fix rustdoc's warnings",
    ));
    match newer {
        Ok(check) => steps.extend(check.map(Ok)),
        Err(why) => steps.push(Err(("tests with a newer GStreamer", why.to_string()))),
    }
    steps
}

/// The steps that are not part of a complete run, because they take long.
fn long() -> [Step; 2] {
    let mut rehearsal = Command::new("sh");
    rehearsal
        .args(["-c", "\"$0\" xtask gpu-bundle && gpu/run --stand-in"])
        .arg(cargo().get_program())
        .current_dir(root());
    [
        Step {
            name: "cameras",
            command: with(cargo(), &["xtask", "camera"]),
            advice: "run `cargo xtask camera`",
        },
        Step {
            name: "the tests for a GPU, on the stand-in driver",
            command: rehearsal,
            advice: "run `gpu/run --stand-in`; `--stage` and `--only` select tests",
        },
    ]
}

fn clippy(args: &[&str]) -> Command {
    let command = with(with(cargo(), &["clippy", "--all-targets"]), args);
    with(command, &["--", "-D", "warnings"])
}

fn loom() -> Check {
    let mut command = with(
        cargo(),
        &[
            "test",
            "--package",
            "xmem-shm",
            "--test",
            "loom",
            "--release",
            "--locked",
        ],
    );
    // A separate target directory: other RUSTFLAGS would invalidate everything in the common one.
    command.arg("--target-dir").arg(target_dir().join("loom"));
    command.env("RUSTFLAGS", "--cfg xmem_loom");
    // Link-time optimisation would take longer than the models run.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let step = Step {
        name: "loom",
        command,
        advice: "see above for the interleaving that violates the slot protocol",
    };
    Check::of_tests(Harness::Libtest, Rights::Me, step)
}

/// Installs rustfmt and clippy if they are missing. The minimal profile of rustup does not have them.
fn ensure_rust_components() -> Result {
    for (command, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if quietly(cargo().args([command, "--version"])) {
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
