// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask test`: what has to pass before a change lands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::step::{self, Step};
use crate::{Result, arm, cargo, compat, packages, python, sanitize, target_dir};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run what was built here with the newer GStreamer of Debian 13 instead, or of another release of Debian, by its name
    /// (needs root; takes 2 GB)
    #[arg(long, value_name = "RELEASE", num_args = 0..=1, default_missing_value = compat::SUITE)]
    compat: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    if let Some(suite) = &args.compat {
        return compat::run(suite);
    }
    let start = Instant::now();
    packages::ensure_for_test()?;
    ensure_rust_components()?;
    let shm_before = shm_names();
    let not_run = not_run_file()?;
    let newer = compat::cuda(&not_run);
    if let Err(why) = &newer {
        let line = format!("CUDA in the elements, which needs GStreamer 1.24 or newer: {why}\n");
        std::fs::write(&not_run, line)?;
    }

    let steps = steps(&not_run, newer.unwrap_or_default());
    let count = steps.len();
    step::run_all(steps)?;

    let left: Vec<String> = shm_names().difference(&shm_before).cloned().collect();
    if !left.is_empty() {
        return Err(format!(
            "the tests left {} in /dev/shm: a region was not given back",
            left.join(", ")
        )
        .into());
    }
    say_not_run(&std::fs::read_to_string(&not_run)?);
    println!(
        "\nxtask test: all {count} steps passed and /dev/shm is clean, in {:.0} s",
        start.elapsed().as_secs_f32()
    );
    Ok(())
}

/// An empty file for the tests that cannot run.
pub(crate) fn not_run_file() -> Result<PathBuf> {
    let file = target_dir().join("tests-not-run");
    std::fs::create_dir_all(target_dir())?;
    std::fs::write(&file, "")?;
    Ok(file)
}

/// Test programs whose names begin with this run once more, and say only then what they cannot run.
const RUN_AGAIN: &str = "XMEM_RUN_AGAIN";

/// Says which tests could not run on this machine, so that nobody believes they did.
pub(crate) fn say_not_run(lines: &str) {
    let tests: BTreeSet<&str> = lines.lines().collect();
    if !tests.is_empty() {
        println!("\nxtask test: {} tests DID NOT RUN here:", tests.len());
        tests.iter().for_each(|test| println!("  {test}"));
    }
}

/// `newer`: some of the tests once more, with a newer GStreamer than this machine's.
fn steps(not_run: &Path, newer: Option<Step>) -> Vec<Step> {
    let strict = |command| {
        let mut command = strict(command, not_run);
        if newer.is_some() {
            command.env(RUN_AGAIN, "cuda");
        }
        command
    };
    let mut steps = vec![
        Step {
            name: "format",
            command: with(cargo(), &["fmt", "--all", "--check"]),
            advice: "run `cargo fmt --all`",
        },
        Step {
            name: "lints",
            command: with(
                cargo(),
                &[
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--locked",
                    "--",
                    "-D",
                    "warnings",
                ],
            ),
            advice: "do what clippy says; if Cargo.lock is at fault, run `cargo check` and commit it",
        },
        build(),
    ];
    if has_nextest() {
        steps.push(Step {
            name: "tests",
            command: strict(with(
                cargo(),
                &["nextest", "run", "--workspace", "--locked"],
            )),
            advice: "run the one that failed alone with `cargo nextest run NAME`",
        });
        steps.push(Step {
            name: "tests in the docs",
            command: strict(with(cargo(), &["test", "--workspace", "--doc", "--locked"])),
            advice: "an example in a doc comment does not do what it says",
        });
    } else {
        steps.push(Step {
            name: "tests",
            command: strict(with(cargo(), &["test", "--workspace", "--locked"])),
            advice: "run the one that failed alone with `cargo test NAME`",
        });
    }
    steps.extend(python::steps(not_run));
    steps.extend(fault_points(not_run));
    steps.push(Step {
        name: "loom",
        // Its own target directory: other RUSTFLAGS would throw away everything in the common one.
        command: {
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
            command.arg("--target-dir").arg(target_dir().join("loom"));
            command.env("RUSTFLAGS", "--cfg xmem_loom");
            // Optimising across crates takes longer than the models run.
            command.env("CARGO_PROFILE_RELEASE_LTO", "off");
            command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
            command
        },
        advice: "loom printed the interleaving that breaks the slot protocol",
    });
    match sanitize::core() {
        Some(step) => steps.push(step),
        None => println!("AddressSanitizer is left out: this Rust comes without it"),
    }
    match arm::check() {
        Some(step) => steps.push(step),
        None => println!("Compiling for 64-bit ARM is left out: this Rust comes without it"),
    }
    steps.push(Step {
        name: "docs",
        command: {
            let mut command = with(cargo(), &["doc", "--workspace", "--no-deps", "--locked"]);
            command.env("RUSTDOCFLAGS", "-D warnings");
            command
        },
        advice: "do what rustdoc says",
    });
    steps.extend(newer);
    steps
}

/// The tests start gst-launch-1.0, which loads the plugin's library from the target directory.
pub(crate) fn build() -> Step {
    Step {
        name: "build",
        command: with(
            cargo(),
            &["build", "--workspace", "--all-targets", "--locked"],
        ),
        advice: "the compiler's message says what is wrong",
    }
}

/// What needs a core with points at which it can be killed. Packages are named, so that nothing else is built on it.
fn fault_points(not_run: &Path) -> [Step; 2] {
    let packages = [
        "--package",
        "xmem-core",
        "--package",
        "xmem-faults",
        "--features",
        "fault-points,xmem-core/cuda",
        "--locked",
    ];
    let tests = [
        "--bins",
        "--test",
        "fault_points",
        "--test",
        "fault_chains",
        "--test",
        "cuda",
        "--test",
        "short",
        "--test",
        "soak",
    ];
    let run: &[&str] = if has_nextest() {
        &["nextest", "run"]
    } else {
        &["test"]
    };
    [
        Step {
            name: "lints with fault points",
            command: with(
                with(with(cargo(), &["clippy", "--all-targets"]), &packages),
                &["--", "-D", "warnings"],
            ),
            advice: "do what clippy says",
        },
        Step {
            name: "faults",
            command: strict(with(with(with(cargo(), run), &packages), &tests), not_run),
            advice: "what was killed, where, is the last line that the test printed",
        },
    ]
}

fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

/// Any critical message of GLib ends the test that caused it. What a machine has not got to run a test, the test writes
/// into the file.
pub(crate) fn strict(mut command: Command, not_run: &Path) -> Command {
    command
        .env("XMEM_NOT_RUN", not_run)
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
