// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask test`: what has to pass before a change lands.

mod bridge;
mod check;
mod harness;
mod report;
mod rights;
mod stress;
mod suites;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::step::Step;
use crate::{Result, apt, arm, cargo, compat, packages, python, sanitize, target_dir};

pub(crate) use self::check::Check;
pub(crate) use self::harness::Harness;
pub(crate) use self::report::{Failed, Planned, Report};
pub(crate) use self::rights::{Rights, runner};
pub(crate) use self::suites::of_rust;

use self::suites::{FAULTS, Selection};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Run test programs with these rights; everything else is done only with `me` [default: me, with --stress as root
    /// me,user]
    #[arg(long = "as", value_name = "USER", value_enum, value_delimiter = ',')]
    rights: Vec<Rights>,
    /// Run all test programs so often, or those that are named, beside four busy loops
    #[arg(long, value_name = "TIMES", num_args = 0..=1, default_missing_value = "30")]
    stress: Option<u32>,
    /// Run what was built here with the newer GStreamer of Debian 13 instead, or of another release of Debian, by its name
    /// (needs root; takes 2 GB)
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

/// Prints the time, space and downloads that the run needs, before it starts.
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
        "This takes 25 minutes on two processors, and up to 15 GB in {}, where {} GB are free.",
        target.display(),
        free.as_deref().unwrap_or("?")
    );
    let gets = [
        (
            python::is_wanted(),
            "PyTorch and other Python packages for the Python module's tests (4.7 GB)",
        ),
        (
            compat::is_wanted(),
            "a small Debian 13 with a newer GStreamer for some of the tests (1.2 GB)",
        ),
    ];
    for (_, what) in gets.iter().filter(|(is_wanted, _)| *is_wanted) {
        println!("It installs there {what}.");
    }
    Ok(())
}

/// Test programs whose names begin with this run once more, and only then report what they cannot run.
const RUN_AGAIN: &str = "XMEM_RUN_AGAIN";

/// The needs of test programs.
fn prepare(selection: &Selection) -> Vec<Planned> {
    let mut steps = vec![Ok(build().into())];
    if selection.has_python() {
        steps.extend(python::module().map(Ok));
    }
    steps
}

/// The test programs.
fn programs(selection: &Selection, rights: Rights) -> Vec<Check> {
    let workspace = selection.workspace(rights, false);
    let rust = workspace.into_iter().chain(selection.faults(rights));
    rust.map(|check| check.needing(&[BUILD]))
        .chain(selection.python(rights))
        .collect()
}

/// All that has to pass.
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
            "do what clippy says; if Cargo.lock is at fault, run `cargo check` and commit it",
        ),
        // The crates that others depend on: the rest of the workspace always has CUDA.
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
            "do what clippy says: something is there only with the feature `cuda`",
        ),
    ];
    steps.extend(prepare(selection));
    let workspace = selection.workspace(Rights::Me, runs_again);
    steps.extend(workspace.map(|check| Ok(check.needing(&[BUILD]))));
    let docs = Step {
        name: "tests in the docs",
        command: strict(with(cargo(), &["test", "--workspace", "--locked"])),
        advice: "an example in a doc comment does not do what it says",
    };
    let docs = Check::of_tests(Harness::Libtest, Rights::Me, docs);
    steps.push(Ok(docs.only(&["--doc".into()])));
    steps.extend(selection.python(Rights::Me).map(Ok));
    steps.push(plain(
        "lints with fault points",
        clippy(&FAULTS),
        "do what clippy says",
    ));
    steps.extend(selection.faults(Rights::Me).map(Ok));
    steps.push(Ok(loom()));
    steps.push(sanitize::core().map(|step| Check::of_tests(Harness::Libtest, Rights::Me, step)));
    steps.push(arm::check().map(Check::from));
    steps.extend(bridge::checks().map(Ok));
    steps.push(plain(
        "docs",
        {
            let mut command = with(cargo(), &["doc", "--workspace", "--no-deps", "--locked"]);
            command.env("RUSTDOCFLAGS", "-D warnings");
            command
        },
        "do what rustdoc says",
    ));
    match newer {
        Ok(check) => steps.extend(check.map(Ok)),
        Err(why) => steps.push(Err(("tests with a newer GStreamer", why.to_string()))),
    }
    steps
}

fn clippy(args: &[&str]) -> Command {
    let command = with(with(cargo(), &["clippy", "--all-targets"]), args);
    with(command, &["--", "-D", "warnings"])
}

pub(crate) const BUILD: &str = "build";

/// The tests start gst-launch-1.0, which loads the plugin's library from the target directory.
pub(crate) fn build() -> Step {
    Step {
        name: BUILD,
        command: with(
            cargo(),
            &["build", "--workspace", "--all-targets", "--locked"],
        ),
        advice: "the compiler's message says what is wrong",
    }
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
    // Its own target directory: other RUSTFLAGS would throw away everything in the common one.
    command.arg("--target-dir").arg(target_dir().join("loom"));
    command.env("RUSTFLAGS", "--cfg xmem_loom");
    // Optimising across crates takes longer than the models run.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let step = Step {
        name: "loom",
        command,
        advice: "loom printed the interleaving that breaks the slot protocol",
    };
    Check::of_tests(Harness::Libtest, Rights::Me, step)
}

fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

/// Any critical message of GLib ends the test that caused it.
pub(crate) fn strict(mut command: Command) -> Command {
    command
        .env("G_DEBUG", "fatal_warnings")
        .env("RUST_BACKTRACE", "1");
    if let Some(headers) = packages::cuda_headers() {
        command.env("XMEM_GST_CUDA_HEADERS", headers);
    }
    command
}

pub(crate) fn has_nextest() -> bool {
    quietly(cargo().args(["nextest", "--version"]))
}

/// rustup's minimal profile comes without them.
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
                "cargo {command} is missing: install the {component} of your Rust"
            )
            .into());
        }
    }
    Ok(())
}

fn quietly(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Makes a file that is empty, and that a test program of any user may write to.
fn empty_for_all(file: &Path) -> Result {
    std::fs::create_dir_all(file.parent().unwrap_or(file))?;
    std::fs::write(file, "")?;
    std::fs::set_permissions(file, Permissions::from_mode(0o666))?;
    Ok(())
}

/// New files in /dev/shm that stay: other tests on this machine may be at work.
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

/// Names in /dev/shm that are ours.
fn shm_names() -> BTreeSet<String> {
    let Ok(dir) = std::fs::read_dir("/dev/shm") else {
        return BTreeSet::new();
    };
    dir.flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("xmem"))
        .collect()
}
