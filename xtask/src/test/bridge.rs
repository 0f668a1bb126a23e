// SPDX-License-Identifier: MPL-2.0

//! Checks of the bridge to other hosts, which is a separate workspace.

use std::process::Command;

use crate::check::{Check, Harness, Rights};
use crate::step::Step;
use crate::{cargo, root, target_dir};

/// Cargo in the workspace of the bridge. It has a separate target directory, because its lockfile has other versions.
fn in_bridge(args: &[&str]) -> Command {
    let mut command = cargo();
    command.current_dir(root().join("bridge")).args(args);
    command.env("CARGO_TARGET_DIR", target_dir().join("bridge"));
    command
}

pub(super) fn checks() -> [Check; 3] {
    let step = |name, command, advice| Step {
        name,
        command,
        advice,
    };
    let format = step(
        "format of the bridge",
        in_bridge(&["fmt", "--check"]),
        "run `cargo fmt` in bridge",
    );
    let lints = [
        "clippy",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    let lints = step(
        "lints of the bridge",
        in_bridge(&lints),
        "fix clippy's warnings; if bridge/Cargo.lock is out of date, run `cargo check` in bridge and commit it",
    );
    let tests = step(
        "bridge",
        in_bridge(&["test", "--locked"]),
        "the lines that begin with xmem-bridge show what each process did",
    );
    [
        format.into(),
        lints.into(),
        Check::of_tests(Harness::Libtest, Rights::Me, tests),
    ]
}
