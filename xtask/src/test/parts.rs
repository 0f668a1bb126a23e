// SPDX-License-Identifier: MPL-2.0

//! The parts of `cargo xtask test --full` that a short run leaves out.

use std::collections::BTreeSet;
use std::process::Command;

use clap::ValueEnum;

use super::bridge;
use super::suites::MODEL;
use crate::check::cargo::{BUILD, SELECTED, has_nextest, of_rust, strict, test, with};
use crate::check::{Check, Harness, Planned, Rights};
use crate::step::Step;
use crate::{api, arm, cargo, compat, root, sanitize, target_dir};

/// A part of a full run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Part {
    /// Format, lints, the docs of the crates, and whether all compiles for 64-bit ARM
    Lints,
    /// The public names of xmem-core
    Api,
    /// Tests of the comparison and of the counter
    Tools,
    /// The slot protocol in every order of its steps: its model, and its code under loom
    Protocol,
    /// Tests under AddressSanitizer
    Asan,
    /// The bridge to other hosts, with its 400 dependencies
    Bridge,
    /// The Python tests that need PyTorch (4.5 GB)
    Torch,
    /// Frames in the memory of CUDA devices, on a stand-in driver
    Cuda,
    /// Tests with the newer GStreamer of Debian 13 (1.2 GB)
    Debian,
    /// Cameras in a virtual machine
    Cameras,
    /// The rehearsal of the tests for a GPU, on the stand-in driver
    Gpu,
}

impl Part {
    pub(super) fn all() -> BTreeSet<Self> {
        Self::value_variants().iter().copied().collect()
    }

    /// The name on the command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The first line of its help.
    pub(super) fn what(self) -> String {
        let value = self.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help());
        help.map(ToString::to_string).unwrap_or_default()
    }

    /// Whether its steps need what the step `build` makes.
    pub(super) fn needs_build(self) -> bool {
        matches!(
            self,
            Self::Protocol | Self::Torch | Self::Cuda | Self::Debian
        )
    }

    /// The steps that only this part has. Those of `Cuda` and `Torch` are among the tests of each run.
    pub(super) fn steps(self) -> Vec<Planned> {
        match self {
            Self::Lints => lints(),
            Self::Api => vec![Ok(api::step().into())],
            Self::Tools => {
                // Nearly all packages, so that little is built again.
                let packages = "--workspace --exclude xmem-gpu --exclude xmem-gpu-gst";
                let mut command = strict(test());
                command
                    .args(packages.split(' '))
                    .args(["--locked", "--bins"]);
                if has_nextest() {
                    command.args(["--filterset", "package(xmem-bench) | package(xmem-count)"]);
                }
                let step = Step::new("tests of the tools", command, "");
                vec![Ok(of_rust(Rights::Me, step))]
            }
            Self::Protocol => vec![Ok(model()), Ok(loom())],
            Self::Asan => sanitize::checks(),
            Self::Bridge => bridge::checks().map(Ok).into(),
            Self::Cuda | Self::Torch => vec![],
            Self::Debian if !compat::is_needed() => vec![],
            Self::Debian => match compat::few() {
                Ok(checks) => checks.map(Ok).into(),
                Err(why) => vec![Err(("tests with a newer GStreamer", why.to_string()))],
            },
            Self::Cameras => vec![plain(
                "cameras",
                with(cargo(), &["xtask", "camera"]),
                "run `cargo xtask camera`",
            )],
            Self::Gpu => {
                let mut rehearsal = Command::new("sh");
                rehearsal
                    .args(["-c", "\"$0\" xtask gpu-bundle && gpu/run --stand-in"])
                    .arg(cargo().get_program())
                    .current_dir(root());
                vec![plain(
                    "the tests for a GPU, on the stand-in driver",
                    rehearsal,
                    "run `gpu/run --stand-in`; `--stage` and `--only` select tests",
                )]
            }
        }
    }
}

/// A step that passes or fails as a whole.
fn plain(name: &'static str, command: Command, advice: &'static str) -> Planned {
    Ok(Step::new(name, command, advice).into())
}

/// The steps that only check code. All have the same target, so that what they need is compiled once.
fn lints() -> Vec<Planned> {
    let is_for_arm = arm::is_available();
    let check = |args: &[&str]| {
        let mut command = with(with(cargo(), args), &["--locked"]);
        if is_for_arm {
            arm::select(&mut command);
        }
        command
    };
    let clippy = |args: &[&str]| {
        let command = with(check(&["clippy", "--all-targets"]), args);
        with(command, &["--", "-D", "warnings"])
    };
    // Only the crates that others depend on. The rest of the workspace always has the feature `cuda`.
    let packages = ["gst-plugin-xmem", "gstxmem-cdylib", "xmem-core", "xmem-cli"];
    let packages = packages.map(|package| ["--package", package]).concat();
    let mut docs = check(&["doc", "--workspace", "--no-deps"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    let mut steps = vec![
        plain(
            "format",
            with(cargo(), &["fmt", "--all", "--check"]),
            "run `cargo fmt --all`",
        ),
        // Users build the crates and the Python module with these names. They are also the defaults.
        plain(
            "lints",
            clippy(&["--workspace", "--features", "cpu,cuda"]),
            "fix clippy's warnings; if Cargo.lock is out of date, run `cargo check` and commit it",
        ),
        plain(
            "lints without CUDA",
            clippy(
                &[
                    &packages[..],
                    &["--no-default-features", "--features", "cpu"],
                ]
                .concat(),
            ),
            "fix clippy's warnings: some code is compiled only with the feature `cuda`",
        ),
        plain("docs", docs, "fix rustdoc's warnings"),
    ];
    if !is_for_arm {
        let why = "this Rust has no standard library for it, and rustup cannot install it";
        steps.push(Err(("64-bit ARM", why.into())));
    }
    steps
}

/// What it finds does not depend on the machine or the user, so it is no part of a short run.
fn model() -> Check {
    let mut command = with(strict(test()), &SELECTED);
    command.args(["--test", MODEL]);
    let step = Step {
        name: "model",
        command,
        advice: "see above for the order of steps that violates the slot protocol",
    };
    of_rust(Rights::Me, step).needing(&[BUILD])
}

fn loom() -> Check {
    let mut command = cargo();
    command.args("test --package xmem-shm --test loom --release --locked".split(' '));
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
