// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask sanitize`: run tests under tools that check each memory access.

use std::process::Command;

use crate::check::cargo::{SELECTED, with};
use crate::check::{Check, Harness, Planned, Rights};
use crate::step::{self, Step, patient};
use crate::{Result, cargo, packages, target_dir, toolchain};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only this tool
    #[arg(value_enum)]
    tool: Option<Tool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Tool {
    /// AddressSanitizer and LeakSanitizer for tests of the core, including the processes that they start
    Core,
    /// AddressSanitizer for tests of the plugin that run GStreamer in their own process
    Plugin,
    /// Valgrind's memcheck for single-process tests of the core; it also checks the memory that system calls read and write
    Valgrind,
}

const NAME: &str = "AddressSanitizer, build";
/// Test programs of the core with memory mappings, forks, killed processes and hostile peers.
const CORE_TESTS: &[&str] = &[
    "processes",
    "hostile",
    "conformance",
    "pools",
    "parts",
    "forward",
];
/// The test program of the plugin.
const PLUGIN: &str = "elements";
/// Tests of the plugin that allocate, use and free shared memory: modules of `elements`.
const PLUGIN_TESTS: &[&str] = &[
    "zero_copy::",
    "pool::",
    "errors::",
    "pool_buffers::",
    "received_buffers::",
];
/// Valgrind is slow and runs one thread at a time, so few tests are selected: modules of `pools`.
const VALGRIND_TESTS: &[&str] = &["buffer_pool::", "late_region::"];
/// It has 300 threads. Under Valgrind they need more than the time limit for an answer if other programs use the processors.
const NOT_FOR_VALGRIND: &str = "readers_that_come_at_once_all_get_a_buffer";

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure(&[])?;
    let tools = match args.tool {
        Some(tool) => vec![tool],
        None => vec![Tool::Core, Tool::Plugin, Tool::Valgrind],
    };
    if tools.contains(&Tool::Valgrind) {
        packages::ensure_all(&[packages::VALGRIND_NEEDS])?;
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
    let step = |tool: Tool| {
        let mut step = tool.step();
        step.command.args(tool.filter());
        step
    };
    step::run_all(tools.into_iter().map(step).collect())
}

/// The checks that `cargo xtask test --full` runs if the compiler has AddressSanitizer.
pub(crate) fn checks() -> Vec<Planned> {
    if !is_available() {
        return vec![Err((NAME, "this Rust has no AddressSanitizer".into()))];
    }
    let mut build = instrumented();
    build.args(CORE_TESTS.iter().flat_map(|test| ["--test", test]));
    build.args(["--test", PLUGIN, "--no-run"]);
    // Compiled while other tests wait.
    let build = Check::from(Step {
        name: NAME,
        command: patient(&build),
        advice: "see the compiler's error message above",
    });
    let tests = [Tool::Core, Tool::Plugin].map(|tool| {
        let check = Check::of_tests(Harness::Libtest, Rights::Me, tool.step());
        let filter: Vec<String> = tool.filter().map(str::to_owned).collect();
        check.only(&filter)
    });
    let build = [build.in_background()];
    build.into_iter().chain(tests).map(Ok).collect()
}

impl Tool {
    /// The arguments that select tests of its programs.
    fn filter(self) -> impl Iterator<Item = &'static str> {
        let words: &[&[&str]] = match self {
            Self::Core => &[],
            Self::Plugin => &[&["--"], PLUGIN_TESTS],
            Self::Valgrind => &[&["--"], VALGRIND_TESTS, &["--skip", NOT_FOR_VALGRIND]],
        };
        words.iter().copied().flatten().copied()
    }

    fn step(self) -> Step {
        match self {
            Self::Core => Step {
                name: "AddressSanitizer, core",
                command: {
                    let mut command = instrumented();
                    command.args(CORE_TESTS.iter().flat_map(|test| ["--test", test]));
                    command
                },
                advice: "see the report above for the invalid access or the leak",
            },
            Self::Plugin => {
                let mut command = with(instrumented(), &["--test", PLUGIN]);
                // LeakSanitizer is off: GLib and GStreamer never free types, caps and caches.
                command.env("ASAN_OPTIONS", "detect_leaks=0");
                Step {
                    name: "AddressSanitizer, plugin",
                    command,
                    advice: "see the report above for the invalid access",
                }
            }
            Self::Valgrind => {
                let command = with(with(cargo(), &["test"]), &SELECTED);
                let mut command = with(command, &["--test", "pools"]);
                command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
                let runner = target().to_uppercase().replace('-', "_");
                command.env(
                    format!("CARGO_TARGET_{runner}_RUNNER"),
                    "valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
                     --errors-for-leak-kinds=definite",
                );
                Step {
                    name: "Valgrind",
                    command,
                    advice: "see the report above for the invalid access or the leak",
                }
            }
        }
    }
}

/// `cargo test` with AddressSanitizer. Test programs that start themselves again are instrumented, too.
fn instrumented() -> Command {
    let mut command = cargo();
    // An explicit target keeps the sanitizer out of build scripts.
    command.args(["test", "--locked", "--target", &target()]);
    // Both packages for both steps: cargo would build a core with other features for one of them.
    command.args(["--package", "xmem-core", "--package", "gst-plugin-xmem"]);
    // A separate target directory: other RUSTFLAGS would invalidate everything in the common one.
    command
        .arg("--target-dir")
        .arg(target_dir().join("sanitize"));
    command
        .env("RUSTFLAGS", "-Zsanitizer=address")
        // The option is unstable. Each toolchain of rustup has the libraries.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("XMEM_INSTRUMENTED", "1")
        // Reports name the lines.
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        // The tests wait more than they compute.
        .env("RUST_TEST_THREADS", "6");
    command
}

fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Whether the compiler has the library of AddressSanitizer.
fn is_available() -> bool {
    toolchain::has_library(&target(), |name| name.ends_with("_rt.asan.a"))
}
