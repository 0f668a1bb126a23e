// SPDX-License-Identifier: MPL-2.0

//! Checks of the bridge to other hosts, which is a separate workspace.

use std::process::Command;

use crate::check::{Check, Harness, Rights};
use crate::step::{Step, patient};
use crate::{cargo, root, target_dir};

/// Cargo in the workspace of the bridge. It has a separate target directory, because its lockfile has other versions.
fn in_bridge(args: &[&str]) -> Command {
    let mut command = cargo();
    command.current_dir(root().join("bridge")).args(args);
    command.env("CARGO_TARGET_DIR", target_dir().join("bridge"));
    command
}

/// Clippy instead of the compiler, which builds the programs, too. `cargo clippy` would compile all dependencies a second time.
fn linted(args: &[&str]) -> Command {
    let mut command = in_bridge(args);
    command
        .env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
        // As `cargo clippy -- -D warnings` sets it.
        .env(
            "CLIPPY_ARGS",
            "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
        );
    command
}

pub(super) fn checks() -> [Check; 3] {
    let format = Step::new(
        "format of the bridge",
        in_bridge(&["fmt", "--check"]),
        "run `cargo fmt` in bridge",
    );
    let lints = Step::new(
        "lints of the bridge",
        patient(&linted(&["build", "--all-targets", "--locked"])),
        "fix clippy's warnings; if bridge/Cargo.lock is out of date, run `cargo check` in bridge and commit it",
    );
    let tests = Step::new(
        "bridge",
        linted(&["test", "--locked"]),
        "the lines that begin with xmem-bridge show what each process did",
    );
    [
        // These 400 crates are compiled while the tests wait.
        Check::from(lints).in_background(),
        format.into(),
        Check::of_tests(Harness::Libtest, Rights::Me, tests),
    ]
}
