// SPDX-License-Identifier: MPL-2.0

//! Runs programs that were built with this machine's GStreamer with the GStreamer of Debian 13:
//! - `cargo xtask test --compat` runs all tests of the plugin,
//! - `cargo xtask test --full` runs the tests whose subject differs between the versions,
//! - `cargo xtask bench --compat` runs the benchmark.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt;
use crate::check::cargo::{
    BUILD, HEADERS, SELECTED, build, has_nextest, of_rust, strict, test, with,
};
use crate::check::{Check, Report, Rights, runner};
use crate::packages::{self, Purpose, Tests};
use crate::step::{self, Step, succeeds};
use crate::{Result, cargo, root, target_dir};

/// Debian 13, with GStreamer 1.26.
pub(crate) const SUITE: &str = "trixie";

/// The first version with support for CUDA memory in GStreamer.
const WITH_CUDA: &str = "1.24";

/// The folder of other Debians in the target folder.
const CACHE: &str = "compat";

const INSTALL: &str = "another Debian";
const ADVICE: &str = "this needs a Debian mirror and 2 GB; to start again, remove the folder `compat` in cargo's target folder";

pub(crate) fn run(suite: &str) -> Result {
    let debian = Debian::of(suite, Purpose::Tests(Tests::All))?;
    debian.unpack_cuda_headers()?;
    let here = gstreamer(Command::new("gst-launch-1.0"))?;
    let there = gstreamer(debian.inside("ro", &["gst-launch-1.0"]))?;
    if here == there {
        return Err(format!("this machine also has {here}: run `cargo xtask test` instead").into());
    }
    println!(
        "\nBuilt with {here}, run with {there} in {}",
        debian.0.display()
    );

    let mut report = Report::default();
    report.run(vec![
        Ok(build().into()),
        Ok(debian.tests(Tests::All)),
        Ok(both_at_once(&debian)),
    ])?;
    report.finish()
}

/// Whether this machine's GStreamer is too old for some tests of `cargo xtask test --full`.
pub(crate) fn is_needed() -> bool {
    !packages::has_gstreamer(WITH_CUDA)
}

/// The steps of these tests. The first one has begun. `Err` gives the reason why they cannot run.
pub(crate) fn few() -> Result<[Check; 2]> {
    if let Some(why) = obstacle() {
        return Err(why.into());
    }
    // Here, because other steps of the plan may install packages of this machine, too.
    packages::ensure(&[packages::COMPAT_NEEDS])?;
    let install = Step {
        name: INSTALL,
        command: with(Command::new(std::env::current_exe()?), &["debian"]),
        advice: ADVICE,
    };
    let tests = Debian::in_cache(SUITE).tests(Tests::Few);
    Ok([
        Check::from(install).in_background(),
        tests.needing(&[INSTALL, BUILD]),
    ])
}

/// Installs what the tests of [`few`] need.
pub(crate) fn install() -> Result {
    Debian::ensure(Purpose::Tests(Tests::Few)).map(drop)
}

/// Why this user cannot make and enter another Debian here.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !apt::is_root() {
        return Some("only root can make and enter another Debian");
    }
    let can_mount = succeeds(Command::new("unshare").args(["--mount", "true"]));
    (!can_mount)
        .then_some("cannot create a mount namespace, which is needed to enter another Debian")
}

/// The root directory of an installed Debian release. It is kept for later runs.
#[derive(Debug)]
pub(crate) struct Debian(PathBuf);

impl Debian {
    fn in_cache(suite: &str) -> Self {
        Self(target_dir().join(CACHE).join(suite))
    }

    /// Installs Debian 13 if needed, and the missing packages in it.
    pub(crate) fn ensure(purpose: Purpose) -> Result<Self> {
        Self::of(SUITE, purpose)
    }

    /// As `ensure`, for any release of Debian.
    pub(crate) fn of(suite: &str, purpose: Purpose) -> Result<Self> {
        if let Some(why) = obstacle() {
            return Err(why.into());
        }
        packages::ensure(&[packages::COMPAT_NEEDS])?;
        let debian = Self::in_cache(suite);
        if !debian.0.exists() {
            // The folder of an unfinished installation.
            let new = debian.0.with_extension("new");
            std::fs::create_dir_all(target_dir().join(CACHE))?;
            if new.exists() {
                std::fs::remove_dir_all(&new)?;
            }
            let mut debootstrap = Command::new("unshare");
            debootstrap
                .args(["--mount", "--propagation", "private", "--", "debootstrap"])
                .args(["--variant=minbase", suite])
                .arg(&new)
                .arg(apt::mirror()?);
            make(debootstrap)?;
            std::fs::rename(&new, &debian.0)?;
        }
        if !debian.missing(purpose).is_empty() {
            let apt_get = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
            make(debian.inside("rw", &[&apt_get[..], &["update"]].concat()))?;
            let install = ["install", "--yes", "--no-install-recommends"];
            let words = [&apt_get[..], &install, &purpose.packages()].concat();
            make(debian.inside("rw", &words))?;
            let missing = debian.missing(purpose);
            if !missing.is_empty() {
                let missing = missing.join(", ");
                return Err(format!("still missing there: {missing}").into());
            }
        }
        Ok(debian)
    }

    /// Unpacks the headers of libgstcuda, where pkg-config finds them.
    fn unpack_cuda_headers(&self) -> Result {
        let unpack = packages::unpack_cuda_headers("/");
        let script =
            format!("pkg-config --exists gstreamer-cuda-1.0 || {{ cd /var/tmp && {unpack}; }}");
        self.make(&["sh", "-c", &script])
    }

    /// Runs a command that changes that Debian.
    pub(crate) fn make(&self, program: &[&str]) -> Result {
        make(self.inside("rw", program))
    }

    /// Uses a writable mount, so that GStreamer can store its plugin registry there.
    fn missing(&self, purpose: Purpose) -> Vec<String> {
        purpose.missing(|| self.inside("rw", &[]))
    }

    /// The path on this machine of a file in that Debian.
    pub(crate) fn path(&self, file: &Path) -> PathBuf {
        self.0.join(file.strip_prefix("/").unwrap_or(file))
    }

    /// The command prefix that runs a program in that Debian. Cargo uses it as the runner of test programs.
    fn enter(&self, mode: &str, with: &[&Path]) -> Vec<String> {
        let script = root().join("xtask/src/compat/enter.sh");
        let words = ["sh".into(), script.display().to_string(), mode.to_owned()];
        let dirs = [&[&*self.0], with].concat();
        let dirs = dirs.into_iter().map(|dir| dir.display().to_string());
        let end = ["--".to_owned()];
        words.into_iter().chain(dirs).chain(end).collect()
    }

    fn inside(&self, mode: &str, program: &[&str]) -> Command {
        self.inside_with(mode, &[], program)
    }

    /// Also mounts these folders of this machine.
    pub(crate) fn inside_with(&self, mode: &str, dirs: &[&Path], program: &[&str]) -> Command {
        let words = self.enter(mode, dirs);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(program);
        command
    }

    /// Tests of the plugin, each with its own /tmp and /dev/shm.
    fn tests(&self, which: Tests) -> Check {
        // Test programs contain absolute paths, so the folders are mounted at the same paths.
        let runner = runner(&self.enter("ro", &[&root(), &target_dir()]));
        let mut command = with(test(), &SELECTED);
        if has_nextest() {
            command.arg("--filterset").arg(match which {
                Tests::All => "package(gst-plugin-xmem)",
                Tests::Few => "package(gst-plugin-xmem) & binary(/^(cuda|pauses$|states$)/)",
            });
        } else {
            // Also selects the tests of the core.
            let tests: &[&str] = match which {
                Tests::All => &["--tests"],
                Tests::Few => &["--test", "cuda*", "--test", "pauses", "--test", "states"],
            };
            command.args(tests);
        }
        let mut command = strict(with(command, &["--config", &runner]));
        // Those of this machine's GStreamer.
        command.env_remove(HEADERS);
        let step = Step {
            name: match which {
                Tests::All => "tests with the newer GStreamer",
                Tests::Few => "CUDA, pauses and states with a newer GStreamer",
            },
            command,
            advice: "if the test passes with this machine's GStreamer, the failure depends on GStreamer's version",
        };
        of_rust(Rights::Me, step).needing(&[BUILD])
    }
}

/// Runs one pool between a process with this machine's GStreamer and a process with the newer one.
fn both_at_once(debian: &Debian) -> Check {
    let mut command = with(with(cargo(), &["test"]), &SELECTED);
    command.args(["--test", "two_gstreamers", "--", "--ignored"]);
    command.env("XMEM_COMPAT_ROOT", &debian.0);
    let step = Step {
        name: "one pool with both versions",
        command: strict(command),
        advice: "each version must be able to read what the other version writes",
    };
    Check::from(step).needing(&[BUILD])
}

/// Runs an installation command, which can take minutes.
fn make(command: Command) -> Result {
    step::run_all(vec![Step::new(INSTALL, command, ADVICE)])
}

/// The version line that GStreamer prints.
fn gstreamer(mut program: Command) -> Result<String> {
    let output = program.arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("GStreamer"));
    Ok(line.ok_or("gst-launch-1.0 prints no version")?.to_owned())
}
