// SPDX-License-Identifier: MPL-2.0

//! Compilers, and the programs that they make.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

pub(crate) const HERE: &str = env!("CARGO_MANIFEST_DIR");
pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// Where cargo put the library.
pub(crate) fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.ancestors().nth(2).unwrap();
    assert!(
        folder.join("libxmem.so").exists(),
        "there is no libxmem.so in {}: run `cargo build -p xmem-capi`",
        folder.display()
    );
    folder.to_owned()
}

/// Notes that this test cannot run here.
pub(crate) fn not_run(why: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {why}", thread.name().unwrap_or("a test"));
    eprintln!("NOT RUN: {line}");
    if let Some(file) = std::env::var_os("XMEM_NOT_RUN") {
        let mut file = fs::OpenOptions::new().append(true).open(file).unwrap();
        // One write, because tests run in parallel.
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    found.is_ok_and(|output| output.status.success())
}

/// The compilers of this machine for a source.
pub(crate) fn compilers(source: &str) -> Vec<&'static str> {
    let all = if source.ends_with(".cpp") {
        ["g++", "clang++"]
    } else {
        ["gcc", "clang"]
    };
    all.into_iter().filter(|compiler| has(compiler)).collect()
}

/// A folder for the programs and the sockets of a test.
#[derive(Debug)]
pub(crate) struct Lab(TempDir);

impl Lab {
    pub(crate) fn new() -> Self {
        // Producers accept it as their runtime directory, with any umask.
        let mode = fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(mode).tempdir();
        let lab = Self(dir.unwrap());
        // The name by which programs look for the library.
        symlink(libraries().join("libxmem.so"), lab.file("libxmem.so.0")).unwrap();
        lab
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn pool(&self) -> PathBuf {
        self.file("pool.sock")
    }

    /// The flags for sanitizers, as far as the compiler has their libraries.
    pub(crate) fn sanitizers(&self, compiler: &str) -> &'static [&'static str] {
        const FLAGS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let source = self.file("empty.c");
        fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let mut command = Command::new(compiler);
        command
            .args(FLAGS)
            .args(["-x", "c"])
            .arg(&source)
            .arg("-o")
            .arg(self.file("empty"));
        if command.output().unwrap().status.success() {
            return FLAGS;
        }
        not_run(&format!(
            "{compiler} has no sanitizers, so its program ran without"
        ));
        &[]
    }

    /// Compiles a source without a warning.
    pub(crate) fn compile(&self, compiler: &str, source: &str, extra: &[&str]) -> PathBuf {
        let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
        let program = self.file(&format!("{name}-{compiler}"));
        let standard = if source.ends_with(".cpp") {
            "-std=c++17"
        } else {
            "-std=c11"
        };
        let output = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"])
            .args(extra)
            .arg("-I")
            .arg(Path::new(HERE).join("include"))
            .arg(Path::new(HERE).join(source))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(libraries())
            .args(["-lxmem", "-lpthread"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {source}:\n{text}");
        program
    }

    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.0.path())
            .env("XMEM_RUNTIME_DIR", self.0.path())
            // The library is not built with the sanitizer. What it keeps until the process ends is not lost.
            .env("ASAN_OPTIONS", "detect_leaks=0");
        command
    }
}

/// A program that runs until the test has seen enough.
#[derive(Debug)]
pub(crate) struct Running(Child, BufReader<ChildStdout>);

impl Running {
    pub(crate) fn new(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output)
    }

    /// The next line. `None`: the program has ended.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.1.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
    }

    /// Tells the program to go on.
    pub(crate) fn go_on(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Its remaining lines, and whether it succeeded.
    pub(crate) fn end(mut self) -> (Vec<String>, bool) {
        // Programs that wait for that go on.
        drop(self.0.stdin.take());
        let lines = std::iter::from_fn(|| self.line()).collect();
        (lines, self.0.wait().unwrap().success())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If a test fails. It has ended otherwise.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
