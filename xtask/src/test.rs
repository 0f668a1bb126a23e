// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask test`: what has to pass before a change lands.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::step::{self, Step};
use crate::{Result, cargo, packages, target_dir};

pub(crate) fn run() -> Result {
    let start = Instant::now();
    packages::ensure()?;
    ensure_rust_components()?;
    let shm_before = shm_names();

    let steps = steps();
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
    println!(
        "\nxtask test: all {count} steps passed and /dev/shm is clean, in {:.0} s",
        start.elapsed().as_secs_f32()
    );
    Ok(())
}

fn steps() -> Vec<Step> {
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
        // The tests start gst-launch-1.0, which loads the plugin's library from the target directory.
        Step {
            name: "build",
            command: with(
                cargo(),
                &["build", "--workspace", "--all-targets", "--locked"],
            ),
            advice: "the compiler's message says what is wrong",
        },
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
    steps.push(Step {
        name: "loom",
        // Its own target directory: other RUSTFLAGS would throw away everything in the common one.
        command: {
            let mut command = with(
                cargo(),
                &[
                    "test",
                    "--package",
                    "xmem-core",
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
            command
        },
        advice: "loom printed the interleaving that breaks the slot protocol",
    });
    steps.push(Step {
        name: "docs",
        command: {
            let mut command = with(cargo(), &["doc", "--workspace", "--no-deps", "--locked"]);
            command.env("RUSTDOCFLAGS", "-D warnings");
            command
        },
        advice: "do what rustdoc says",
    });
    steps
}

fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

/// Any critical message of GLib ends the test that caused it.
fn strict(mut command: Command) -> Command {
    command
        .env("G_DEBUG", "fatal_warnings")
        .env("RUST_BACKTRACE", "1");
    command
}

fn has_nextest() -> bool {
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
