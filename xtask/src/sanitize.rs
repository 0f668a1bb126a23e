// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask sanitize`: tests once more, under tools that watch each access to memory.

use std::process::Command;

use crate::step::{self, Step};
use crate::{Result, cargo, packages, target_dir, toolchain};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this one
    #[arg(value_enum)]
    tool: Option<Tool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Tool {
    /// AddressSanitizer and LeakSanitizer over the core's tests, with all the processes that they start
    Core,
    /// AddressSanitizer over tests of the plugin, which run GStreamer in their own process
    Plugin,
    /// Valgrind's memcheck over the core's tests of one process; it checks what system calls read and write, too
    Valgrind,
}

/// Tests of the core that map, unmap, fork, kill and lie.
const CORE_TESTS: &[&str] = &[
    "processes",
    "hostile",
    "conformance",
    "buffer_pool",
    "late_region",
    "attachments",
    "parts",
    "forward",
];
/// Tests of the plugin that take memory through its whole life.
const PLUGIN_TESTS: &[&str] = &["zero_copy", "pool", "errors", "received_buffers"];
/// Valgrind runs one thread at a time, and slowly.
const VALGRIND_TESTS: &[&str] = &["buffer_pool", "late_region"];

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure()?;
    let tools = match args.tool {
        Some(tool) => vec![tool],
        None => vec![Tool::Core, Tool::Plugin, Tool::Valgrind],
    };
    if tools.contains(&Tool::Valgrind) {
        packages::ensure_for_valgrind()?;
    }
    let needs_library = tools.iter().any(|tool| *tool != Tool::Valgrind);
    if needs_library && !is_available() {
        return Err(format!(
            "this Rust comes without AddressSanitizer for {}: use the toolchain that rustup installs on Linux, or run \
             only `cargo xtask sanitize valgrind`",
            target()
        )
        .into());
    }
    step::run_all(tools.into_iter().map(Tool::step).collect())
}

/// The part that `cargo xtask test` runs, where the compiler can.
pub(crate) fn core() -> std::result::Result<Step, (&'static str, String)> {
    let step = Tool::Core.step();
    if is_available() {
        Ok(step)
    } else {
        Err((step.name, "this Rust comes without it".into()))
    }
}

impl Tool {
    fn step(self) -> Step {
        match self {
            Self::Core => Step {
                name: "AddressSanitizer, core",
                command: with_tests(instrumented(), "xmem-core", CORE_TESTS),
                advice: "the report above says which memory was used wrongly, or never given back",
            },
            Self::Plugin => {
                let mut command = with_tests(instrumented(), "gst-plugin-xmem", PLUGIN_TESTS);
                // GLib and GStreamer keep types, caps and caches for ever.
                command.env("ASAN_OPTIONS", "detect_leaks=0");
                Step {
                    name: "AddressSanitizer, plugin",
                    command,
                    advice: "the report above says which memory was used wrongly",
                }
            }
            Self::Valgrind => {
                let mut command = cargo();
                command.args(["test", "--locked"]);
                let mut command = with_tests(command, "xmem-core", VALGRIND_TESTS);
                let runner = target().to_uppercase().replace('-', "_");
                command.env(
                    format!("CARGO_TARGET_{runner}_RUNNER"),
                    "valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
                     --errors-for-leak-kinds=definite",
                );
                Step {
                    name: "Valgrind",
                    command,
                    advice: "the report above says which memory was used wrongly, or never given back",
                }
            }
        }
    }
}

fn with_tests(mut command: Command, package: &str, tests: &[&str]) -> Command {
    command.args(["--package", package]);
    command.args(tests.iter().flat_map(|test| ["--test", test]));
    command
}

/// A test run with AddressSanitizer compiled in. Programs that it starts from itself have it too.
fn instrumented() -> Command {
    let mut command = cargo();
    // Naming the target keeps the sanitizer out of build scripts.
    command.args(["test", "--locked", "--target", &target()]);
    // Its own target directory: other RUSTFLAGS would throw away everything in the common one.
    command
        .arg("--target-dir")
        .arg(target_dir().join("sanitize"));
    command
        .env("RUSTFLAGS", "-Zsanitizer=address")
        // An unstable option; the libraries come with every toolchain of rustup's.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("XMEM_INSTRUMENTED", "1");
    command
}

fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Whether the compiler has the sanitizer's library.
fn is_available() -> bool {
    toolchain::has_library(&target(), |name| name.ends_with("_rt.asan.a"))
}
