// SPDX-License-Identifier: MPL-2.0

//! Commands of cargo that several checks use.

use std::process::Command;

use super::{Check, Harness, Rights};
use crate::step::{Step, succeeds};
use crate::{cargo, packages, temp_dir};

pub(crate) const BUILD: &str = "build";

/// Names the folder of libgstcuda's headers where these are not installed.
pub(crate) const HEADERS: &str = "XMEM_GST_CUDA_HEADERS";

/// Selects the product, its tests and these commands. Each command that builds for the tests has these arguments: cargo builds a crate
/// with the features that the selected packages want, so another selection would build many crates again.
pub(crate) const SELECTED: [&str; 10] = [
    "--workspace",
    "--exclude",
    "xmem-bench",
    "--exclude",
    "xmem-count",
    "--exclude",
    "xmem-gpu",
    "--exclude",
    "xmem-gpu-gst",
    "--locked",
];

/// The step that builds all that the tests start: gst-launch-1.0, for one, loads the plugin from the target directory.
pub(crate) fn build() -> Step {
    Step {
        name: BUILD,
        // Not --all-targets: it would also build the Python module as a program of benchmarks.
        command: with(
            with(
                cargo(),
                &["build", "--lib", "--bins", "--examples", "--tests"],
            ),
            &SELECTED,
        ),
        advice: "see the compiler's error message above",
    }
}

/// A step that runs Rust test programs.
pub(crate) fn of_rust(rights: Rights, step: Step) -> Check {
    let harness = if has_nextest() {
        Harness::Nextest
    } else {
        Harness::Libtest
    };
    Check::of_tests(harness, rights, step)
}

/// Makes warnings and critical messages of GLib fatal, so that the test fails.
pub(crate) fn strict(mut command: Command) -> Command {
    command
        .env("G_DEBUG", "fatal_warnings")
        .env("RUST_BACKTRACE", "1")
        // Packages for another Python, such as those of ROS.
        .env_remove("PYTHONHOME")
        .env_remove("PYTHONPATH");
    let temp_dir = temp_dir();
    if temp_dir != std::env::temp_dir() {
        command.env("TMPDIR", temp_dir);
    }
    if let Some(headers) = packages::cuda_headers() {
        command.env(HEADERS, headers);
    }
    command
}

/// `cargo nextest run`, or `cargo test` where nextest is not installed.
pub(crate) fn test() -> Command {
    if has_nextest() {
        return with(cargo(), &["nextest", "run"]);
    }
    let mut command = with(cargo(), &["test"]);
    // As in .config/nextest.toml.
    command.env("RUST_TEST_THREADS", "6");
    command
}

pub(crate) fn has_nextest() -> bool {
    succeeds(cargo().args(["nextest", "--version"]))
}

pub(crate) fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}
