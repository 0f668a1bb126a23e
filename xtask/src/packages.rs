// SPDX-License-Identifier: MPL-2.0

//! The system packages that the commands need: found out, and installed where apt-get is.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::apt::AptGet;
use crate::step::run_quietly;
use crate::{Result, target_dir};

/// Something that has to be on this machine.
#[derive(Debug, Clone, Copy)]
enum Need {
    Program(&'static str),
    /// A library of at least this version, as pkg-config knows it.
    Library(&'static str, &'static str),
    /// A GStreamer element.
    Element(&'static str),
    /// A module of the system's Python: what PyPI has may be built otherwise.
    PythonModule(&'static str),
    /// Modules of a Python of at least 3.11.
    Python(&'static str),
}

/// The system's Python, whichever comes first in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// The package of Debian 12/13 and Ubuntu 24.04 that brings it. Programs come first, since finding out
/// about the others takes them.
const NEEDS: Needs = &[
    ("pkg-config", &[Need::Program("pkg-config")]),
    // Tests start processes of other users, and containers.
    (
        "util-linux",
        &[Need::Program("setpriv"), Need::Program("unshare")],
    ),
    ("mount", &[Need::Program("mount")]),
    ("python3-venv", &[Need::Python("venv, ensurepip")]),
    (
        "libgstreamer1.0-dev",
        &[
            Need::Library("gstreamer-1.0", "1.22"),
            Need::Library("glib-2.0", "2.74"),
            Need::Library("gstreamer-check-1.0", "1.22"),
        ],
    ),
    (
        "libgstreamer-plugins-base1.0-dev",
        &[
            Need::Library("gstreamer-audio-1.0", "1.22"),
            Need::Library("gstreamer-video-1.0", "1.22"),
            Need::Library("gstreamer-app-1.0", "1.22"),
        ],
    ),
    (
        "gstreamer1.0-tools",
        &[
            Need::Program("gst-launch-1.0"),
            Need::Program("gst-inspect-1.0"),
        ],
    ),
    (
        "gstreamer1.0-plugins-base",
        &[
            Need::Element("videotestsrc"),
            Need::Element("videoconvert"),
            Need::Element("decodebin"),
        ],
    ),
    (
        "gstreamer1.0-plugins-base-apps",
        &[
            Need::Program("gst-play-1.0"),
            Need::Program("gst-device-monitor-1.0"),
        ],
    ),
    // Here are the overlays that draw text.
    ("gstreamer1.0-x", &[Need::Element("timeoverlay")]),
    (
        "gstreamer1.0-plugins-good",
        &[
            Need::Element("qtdemux"),
            Need::Element("splitmuxsrc"),
            Need::Element("videobalance"),
            Need::Element("pngenc"),
        ],
    ),
    (
        "gstreamer1.0-plugins-bad",
        &[
            Need::Element("h264parse"),
            Need::Element("openh264dec"),
            Need::Element("shmsink"),
        ],
    ),
    ("gstreamer1.0-plugins-ugly", &[Need::Element("x264enc")]),
    ("gstreamer1.0-libav", &[Need::Element("avdec_h264")]),
];

/// Programs that only the tests need on top: they were not written for this, and read frames nevertheless.
const TEST_NEEDS: Needs = &[
    ("ffmpeg", &[Need::Program("ffmpeg")]),
    ("python3-opencv", &[Need::PythonModule("cv2")]),
];

/// Needed by the Python module's tests only: pipelines that gst-launch-1.0 cannot make.
const PYTHON_NEEDS: Needs = &[
    ("python3-gi", &[Need::PythonModule("gi")]),
    (
        "gir1.2-gst-plugins-base-1.0",
        &[Need::PythonModule("gi.repository.GstAllocators")],
    ),
];

/// Needed by the benchmark only.
const BENCH_NEEDS: Needs = &[("strace", &[Need::Program("strace")])];

/// Needed by `cargo xtask test --compat` only.
const COMPAT_NEEDS: Needs = &[
    ("debootstrap", &[Need::Program("debootstrap")]),
    ("util-linux", &[Need::Program("pivot_root")]),
];

/// Needed by `cargo xtask package` only.
const PACKAGE_NEEDS: Needs = &[
    ("meson", &[Need::Program("meson")]),
    ("ninja-build", &[Need::Program("ninja")]),
    ("gcc", &[Need::Program("cc")]),
];

/// Needed by `cargo xtask sanitize` and `cargo xtask count`.
const VALGRIND_NEEDS: Needs = &[("valgrind", &[Need::Program("valgrind")])];

/// Makes sure that what building, testing and showing needs is here.
pub(crate) fn ensure() -> Result {
    ensure_all(&[NEEDS])
}

/// The same, with what the tests need.
pub(crate) fn ensure_for_test() -> Result {
    ensure_all(&[NEEDS, PYTHON_NEEDS, TEST_NEEDS])?;
    fetch_cuda_headers()
}

/// The headers of libgstcuda, which only a test reads. Their package wants all of OpenCV's, so it is not installed.
const CUDA_HEADERS: &str = "libgstreamer-plugins-bad1.0-dev";

/// Where they are, if they were fetched.
pub(crate) fn cuda_headers() -> Option<PathBuf> {
    let dir = target_dir().join("gst-cuda-headers/usr/include/gstreamer-1.0");
    dir.is_dir().then_some(dir)
}

/// Unpacks them, half a megabyte. The test that needs them reports it if this failed.
fn fetch_cuda_headers() -> Result {
    let installed = Need::Library("gstreamer-cuda-1.0", "1.22").is_met();
    if installed || cuda_headers().is_some() || !Need::Program("dpkg-deb").is_met() {
        return Ok(());
    }
    let dir = target_dir().join("gst-cuda-headers");
    std::fs::create_dir_all(&dir)?;
    let script = format!(
        "apt-get -o APT::Sandbox::User=root download {CUDA_HEADERS} && dpkg-deb --extract {CUDA_HEADERS}_*.deb ."
    );
    let mut fetch = Command::new("sh");
    fetch.args(["-c", &script]).current_dir(dir);
    if let Err(error) = run_quietly(&format!("Getting {CUDA_HEADERS}"), fetch) {
        println!("{error}\n{CUDA_HEADERS} could not be had: what it is for is not tested");
    }
    Ok(())
}

/// The same, with what the Python module's tests need.
pub(crate) fn ensure_for_python() -> Result {
    ensure_all(&[NEEDS, PYTHON_NEEDS])
}

/// The same, with what the benchmark needs.
pub(crate) fn ensure_for_bench() -> Result {
    ensure_all(&[NEEDS, BENCH_NEEDS])
}

/// The same, with what counts instructions.
pub(crate) fn ensure_for_count() -> Result {
    ensure_all(&[NEEDS, VALGRIND_NEEDS])
}

/// The same, with what makes and enters another Debian.
pub(crate) fn ensure_for_compat() -> Result {
    ensure_all(&[NEEDS, COMPAT_NEEDS])
}

/// The same, with what installs the plugin.
pub(crate) fn ensure_for_package() -> Result {
    ensure_all(&[NEEDS, PACKAGE_NEEDS])
}

/// The programs that another Debian is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Tests(Tests),
    Bench,
}

/// Which of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tests {
    All,
    /// Those whose subject differs between the versions, which need few of the packages.
    Few,
}

/// The packages with what those tests and the benchmark need, which has one of its own on top.
const FEW_PACKAGES: &[&str] = &[
    "util-linux",
    "gstreamer1.0-tools",
    "gstreamer1.0-plugins-base",
    "gstreamer1.0-plugins-bad",
];

impl Purpose {
    fn needs(self) -> impl Iterator<Item = (&'static str, Vec<&'static Need>)> {
        let (has_all, on_top) = match self {
            Self::Tests(Tests::All) => (true, TEST_NEEDS),
            Self::Tests(Tests::Few) => (false, &[][..]),
            Self::Bench => (false, BENCH_NEEDS),
        };
        let wanted = NEEDS
            .iter()
            .filter(move |(package, _)| has_all || FEW_PACKAGES.contains(package))
            .chain(on_top);
        let at_run_time =
            |needs: &'static [Need]| needs.iter().filter(|need| need.is_at_run_time());
        let needs =
            wanted.map(move |(package, needs)| (*package, at_run_time(needs).collect::<Vec<_>>()));
        needs.filter(|(_, needs)| !needs.is_empty())
    }

    /// The packages that what is built here needs where it only runs, which is a Debian too.
    pub(crate) fn packages(self) -> Vec<&'static str> {
        self.needs().map(|(package, _)| package).collect()
    }

    /// The missing ones of them where `inside` runs programs.
    pub(crate) fn missing(self, inside: impl Fn() -> Command) -> Vec<String> {
        let needs = self.needs().flat_map(|(_, needs)| needs);
        let missing = needs.filter(|need| !need.is_met_inside(inside()));
        missing.map(ToString::to_string).collect()
    }
}

/// Whether this machine's GStreamer is at least that new.
pub(crate) fn has_gstreamer(version: &'static str) -> bool {
    Need::Library("gstreamer-1.0", version).is_met()
}

/// Valgrind alone.
pub(crate) fn ensure_for_valgrind() -> Result {
    ensure_all(&[VALGRIND_NEEDS])
}

/// The content of packages, and their names.
type Needs = &'static [(&'static str, &'static [Need])];

/// All of them at once: a user without the rights to install them has to ask only once.
fn ensure_all(needs: &[Needs]) -> Result {
    // GStreamer may have to look into all its plugins first.
    println!("Looking for the programs and libraries that this needs ...");
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(package, _)| *package).collect();
    if let Err(why) = AptGet::find().and_then(|apt_get| apt_get.install(&packages)) {
        let what = missing
            .iter()
            .map(|(package, needs)| format!("  {} (in Debian's {package})", needs.join(", ")));
        return Err(format!(
            "missing on this machine:\n{}\n\n{why}\n\nHave root install it, then try again; on Debian and Ubuntu with\n\n  \
             apt-get update\n  apt-get {}",
            what.collect::<Vec<_>>().join("\n"),
            AptGet::install_words(&packages).join(" ")
        )
        .into());
    }
    let left = self::missing(needs);
    if !left.is_empty() {
        let left: Vec<String> = left.into_iter().flat_map(|(_, needs)| needs).collect();
        return Err(format!(
            "still missing after the installation: {} (Debian 12 and Ubuntu 24.04 are the oldest that have all)",
            left.join(", ")
        )
        .into());
    }
    Ok(())
}

fn missing(needs: &[Needs]) -> Vec<(&'static str, Vec<String>)> {
    needs
        .iter()
        .copied()
        .flatten()
        .map(|(package, needs)| {
            let missing = needs.iter().filter(|need| !need.is_met());
            (
                *package,
                missing.map(ToString::to_string).collect::<Vec<_>>(),
            )
        })
        .filter(|(_, needs)| !needs.is_empty())
        .collect()
}

impl Need {
    /// Programs that are built link libraries, but do not need what links them.
    fn is_at_run_time(&self) -> bool {
        !matches!(
            self,
            Self::Library(..) | Self::Program("pkg-config") | Self::Python(_)
        )
    }

    /// `inside` is what comes before a program to run it there.
    fn is_met_inside(&self, mut inside: Command) -> bool {
        succeeds(match self {
            Self::Program(name) => inside.args(["which", name]),
            Self::Library(name, version) => {
                inside.args(["pkg-config", &format!("--atleast-version={version}"), name])
            }
            Self::Element(name) => inside.args(["gst-inspect-1.0", "--exists", name]),
            Self::PythonModule(name) => inside.args([PYTHON, "-c", &format!("import {name}")]),
            Self::Python(modules) => inside.args(["python3", "-c", &python_with(modules)]),
        })
    }

    fn is_met(&self) -> bool {
        match self {
            Self::Program(name) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
            }
            Self::Library(name, version) => succeeds(
                Command::new("pkg-config")
                    .arg(format!("--atleast-version={version}"))
                    .arg(name),
            ),
            Self::Element(name) => {
                succeeds(Command::new("gst-inspect-1.0").args(["--exists", name]))
            }
            Self::PythonModule(name) => {
                succeeds(Command::new(PYTHON).args(["-c", &format!("import {name}")]))
            }
            Self::Python(modules) => {
                succeeds(Command::new("python3").args(["-c", &python_with(modules)]))
            }
        }
    }
}

fn python_with(modules: &str) -> String {
    format!("import sys, {modules}; sys.exit(sys.version_info < (3, 11))")
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) => write!(f, "the program {name}"),
            Self::Library(name, version) => write!(f, "the library {name} >= {version}"),
            Self::Element(name) => write!(f, "the element {name}"),
            Self::PythonModule(name) => write!(f, "the module {name} for {PYTHON}"),
            Self::Python(modules) => write!(f, "Python 3.11 or newer with {modules}"),
        }
    }
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
