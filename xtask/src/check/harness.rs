// SPDX-License-Identifier: MPL-2.0

//! Test harnesses: parses their results, and composes the command that repeats a test.

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{cannot_start, quoted};
use crate::{Result, target_dir};

/// The Python interpreter of the environment for the tests.
pub(crate) fn python() -> PathBuf {
    target_dir().join("python/venv/bin/python")
}

/// Creates an empty file that test programs of all users can write to.
pub(crate) fn empty_for_all(file: &Path) -> Result {
    std::fs::create_dir_all(file.parent().unwrap_or(file))?;
    std::fs::write(file, "")?;
    std::fs::set_permissions(file, Permissions::from_mode(0o666))?;
    Ok(())
}

/// A test harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harness {
    /// `cargo nextest run`
    Nextest,
    /// `cargo test`
    Libtest,
    /// pytest
    Pytest,
}

/// The results of one test program.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) passed: usize,
    pub(crate) failed: Vec<Failure>,
    /// The tests that did not run, each with the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

/// A test that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) test: String,
    /// The arguments that select the test.
    pub(crate) only: String,
}

impl Failure {
    /// `target` are cargo's arguments that select the test program.
    fn in_target(test: &str, target: &str) -> Self {
        Self {
            test: test.to_owned(),
            only: format!("{target} -- --exact {}", quoted(test)),
        }
    }
}

impl Harness {
    /// Arguments that make the harness write its results. They are not needed to repeat a test.
    pub(crate) fn arguments(self) -> Vec<String> {
        match self {
            Self::Nextest => vec![],
            Self::Libtest => vec!["--no-fail-fast".into()],
            Self::Pytest => vec![
                "--override-ini=junit_family=xunit1".into(),
                format!("--junit-xml={}", self.junit().display()),
            ],
        }
    }

    fn junit(self) -> PathBuf {
        target_dir().join(match self {
            Self::Nextest => "nextest/default/junit.xml",
            _ => "pytest.xml",
        })
    }

    /// Runs the tests. Returns whether the command succeeded, and the results of each program that reported any.
    pub(crate) fn run(self, command: &mut Command) -> Result<(bool, Vec<Program>)> {
        if self == Self::Libtest {
            return run_libtest(command);
        }
        let junit = self.junit();
        empty_for_all(&junit)?;
        let status = command
            .status()
            .map_err(|error| cannot_start(command, error))?;
        Ok((status.success(), self.read(&junit)?))
    }

    fn read(self, junit: &Path) -> Result<Vec<Program>> {
        let text = std::fs::read_to_string(junit)?;
        // The file stays empty if the build fails.
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let document = roxmltree::Document::parse(&text)
            .map_err(|error| format!("{}: {error}", junit.display()))?;
        let suites = document.descendants();
        let suites = suites.filter(|node| node.has_tag_name("testsuite"));
        let programs = suites.map(|suite| {
            let mut program = Program {
                name: suite.attribute("name").unwrap_or_default().to_owned(),
                ..Program::default()
            };
            let cases = suite.children();
            for case in cases.filter(|node| node.has_tag_name("testcase")) {
                let child = |name| case.children().find(|node| node.has_tag_name(name));
                let test = case.attribute("name").unwrap_or_default();
                if let Some(skipped) = child("skipped") {
                    program.skipped.push((test.to_owned(), reason(skipped)));
                } else if child("failure").or_else(|| child("error")).is_none() {
                    program.passed += 1;
                } else if self != Self::Nextest {
                    let file = case.attribute("file").unwrap_or_default();
                    let test = format!("{file}::{test}");
                    let only = quoted(&test);
                    program.failed.push(Failure { test, only });
                } else {
                    let target = target(&program.name);
                    program.failed.push(Failure::in_target(test, &target));
                }
            }
            program
        });
        Ok(programs.collect())
    }
}

/// The reason why pytest skipped a test. For a skipped module, the reason follows the location in the text.
fn reason(skipped: roxmltree::Node<'_, '_>) -> String {
    let text = skipped.text().unwrap_or_default();
    match text.split_once("'Skipped: ") {
        Some((_, reason)) => reason.trim_end_matches("')").to_owned(),
        None => skipped.attribute("message").unwrap_or(text).to_owned(),
    }
}

/// Cargo's arguments that select a test program, from nextest's name of it: `PACKAGE::NAME`, `PACKAGE::KIND/NAME` or, for the unit
/// tests of a library, `PACKAGE`.
fn target(binary_id: &str) -> String {
    let Some((_, name)) = binary_id.split_once("::") else {
        return "--lib".into();
    };
    match name.split_once('/') {
        Some((kind, name)) => format!("--{kind} {name}"),
        None => format!("--test {name}"),
    }
}

/// Runs `cargo test`, prints its output and parses it.
fn run_libtest(command: &mut Command) -> Result<(bool, Vec<Program>)> {
    // One pipe for both streams, to keep the order: cargo prints the names of the programs to stderr, and the programs print their
    // results to stdout.
    let (output, end) = io::pipe()?;
    command.env("CARGO_TERM_COLOR", "never");
    command.stdout(end.try_clone()?).stderr(end);
    let child = command.spawn();
    // Close the copies of the pipe's end that `command` holds. Otherwise reading would never end.
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut child = child.map_err(|error| cannot_start(command, error))?;
    let mut reader = Libtest::default();
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        reader.line(text.trim_end());
        line.clear();
    }
    Ok((child.wait()?.success(), reader.programs))
}

/// Parses the output of `cargo test`.
#[derive(Debug, Default)]
struct Libtest {
    programs: Vec<Program>,
    /// The names below the last line `failures:`.
    failures: Vec<String>,
    in_failures: bool,
}

impl Libtest {
    fn line(&mut self, line: &str) {
        if let Some(name) = started(line) {
            self.failures.clear();
            self.programs.push(Program {
                name,
                ..Program::default()
            });
        } else if line == "failures:" {
            self.failures.clear();
            self.in_failures = true;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.in_failures = false;
            let passed = result.split_once(" passed").and_then(|(before, _)| {
                let number = before.rsplit(' ').next();
                number?.parse().ok()
            });
            if let Some(program) = self.programs.last_mut() {
                program.passed = passed.unwrap_or_default();
            }
        } else if let Some(target) = failed(line) {
            if let Some(program) = self.programs.last_mut() {
                let failures = self.failures.drain(..);
                program
                    .failed
                    .extend(failures.map(|test| Failure::in_target(&test, target)));
                if program.failed.is_empty() {
                    // The program ended before it printed the name of the test.
                    program.failed.push(Failure {
                        test: "the whole program".into(),
                        only: target.to_owned(),
                    });
                }
            }
        } else if self.in_failures
            && let Some(test) = line.strip_prefix("    ")
        {
            self.failures.push(test.to_owned());
        }
    }
}

/// The test program that cargo starts in this line. `None` for other lines.
fn started(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{package}, docs"));
    }
    let (_, path) = line.strip_prefix("Running ")?.split_once(" (")?;
    let stem = Path::new(path.strip_suffix(')')?).file_name()?.to_str()?;
    Some(
        stem.rsplit_once('-')
            .map_or(stem, |(name, _)| name)
            .to_owned(),
    )
}

/// Cargo's arguments that select the program which cargo reports as failed in this line.
fn failed(line: &str) -> Option<&str> {
    let (_, arguments) = line.split_once("test failed, to rerun pass `")?;
    let arguments = arguments.strip_suffix('`')?;
    // Remove the package: the command that repeats the step already selects the packages.
    Some(match arguments.strip_prefix("-p ") {
        Some(rest) => rest.split_once(' ').map_or("", |(_, target)| target),
        None => arguments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of cargo 1.95, shortened.
    const OUTPUT: &str = "\
   Compiling a v0.1.0 (/a)
     Running unittests src/lib.rs (target/debug/deps/a_b-0123456789abcdef)

running 2 tests
test fine ... ok
test ignored ... ignored

test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/two.rs (target/debug/deps/two-0123456789abcdef)

running 3 tests
test m::one ... FAILED
test m::two ... FAILED
test three ... ok

failures:

---- m::one stdout ----
    indented, and no name

failures:
    m::one
    m::two

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

error: test failed, to rerun pass `-p a-b --test two`
     Running tests/dies.rs (target/debug/deps/dies-0123456789abcdef)

running 1 test
error: test failed, to rerun pass `-p a-b --test dies`

Caused by:
  process didn't exit successfully: `/a/dies` (signal: 6, SIGABRT: process abort signal)
   Doc-tests a_b

running 1 test
test src/lib.rs - f (line 3) ... FAILED

failures:

failures:
    src/lib.rs - f (line 3)

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s

error: doctest failed, to rerun pass `-p a-b --doc`
error: 3 targets failed:
    `-p a-b --test two`
";

    #[test]
    fn results_are_read_from_cargo_tests_output() {
        let mut reader = Libtest::default();
        OUTPUT.lines().for_each(|line| reader.line(line));
        let programs = reader.programs.iter().map(|program| {
            let failed = program.failed.iter().map(|failure| failure.only.as_str());
            (
                program.name.as_str(),
                program.passed,
                failed.collect::<Vec<_>>(),
            )
        });
        let expected = [
            ("a_b", 1, vec![]),
            (
                "two",
                1,
                vec![
                    "--test two -- --exact m::one",
                    "--test two -- --exact m::two",
                ],
            ),
            ("dies", 0, vec!["--test dies"]),
            (
                "a_b, docs",
                0,
                vec!["--doc -- --exact 'src/lib.rs - f (line 3)'"],
            ),
        ];
        assert_eq!(programs.collect::<Vec<_>>(), expected);
    }
}
