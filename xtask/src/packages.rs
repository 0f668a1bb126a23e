// SPDX-License-Identifier: MPL-2.0

//! The system packages that the commands need: found out, and installed where apt-get is.

use std::fmt;
use std::process::{Command, Stdio};

use crate::Result;

/// Something that has to be on this machine.
#[derive(Debug, Clone, Copy)]
enum Need {
    Program(&'static str),
    /// A library of at least this version, as pkg-config knows it.
    Library(&'static str, &'static str),
    /// A GStreamer element.
    Element(&'static str),
}

/// What Debian 12/13 and Ubuntu 24.04 call the package that brings it. Programs come first, since finding out
/// about the others takes them.
const NEEDS: &[(&str, &[Need])] = &[
    ("pkg-config", &[Need::Program("pkg-config")]),
    (
        "libgstreamer1.0-dev",
        &[
            Need::Library("gstreamer-1.0", "1.22"),
            Need::Library("gstreamer-check-1.0", "1.22"),
        ],
    ),
    (
        "libgstreamer-plugins-base1.0-dev",
        &[
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

/// What only the benchmark needs on top.
const BENCH_NEEDS: &[(&str, &[Need])] = &[("strace", &[Need::Program("strace")])];

/// Makes sure that what building, testing and showing needs is here.
pub(crate) fn ensure() -> Result {
    ensure_all(NEEDS)
}

/// The same, with what the benchmark needs.
pub(crate) fn ensure_for_bench() -> Result {
    ensure_all(NEEDS)?;
    ensure_all(BENCH_NEEDS)
}

fn ensure_all(needs: &[(&'static str, &[Need])]) -> Result {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(package, _)| *package).collect();
    let what: Vec<String> = missing
        .iter()
        .map(|(package, needs)| format!("  {} (in Debian's {package})", needs.join(", ")))
        .collect();
    println!("Missing on this machine:\n{}", what.join("\n"));
    let by_hand = || {
        format!(
            "install what is missing, then try again; on Debian or Ubuntu: apt-get install {}",
            packages.join(" ")
        )
    };
    let Some(apt_get) = AptGet::find() else {
        return Err(by_hand().into());
    };
    // A fresh machine may have no package lists, or old ones. One source that fails need not matter.
    apt_get.run(&["update"])?;
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(&packages);
    if !apt_get.run(&install)? {
        return Err(by_hand().into());
    }
    let left = self::missing(needs);
    if !left.is_empty() {
        let left: Vec<String> = left.into_iter().flat_map(|(_, needs)| needs).collect();
        return Err(format!(
            "still missing after the installation: {} (GStreamer 1.22 or newer is needed)",
            left.join(", ")
        )
        .into());
    }
    Ok(())
}

/// apt-get, as root.
#[derive(Debug)]
struct AptGet {
    /// What stands before it, to become root and to keep packages from asking questions.
    before: &'static [&'static str],
}

impl AptGet {
    /// `None` when there is none, or no way to become root.
    fn find() -> Option<Self> {
        let is_there = |program| succeeds(Command::new(program).arg("--version"));
        let is_root = || {
            let id = Command::new("id").arg("-u").output();
            id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
        };
        if !is_there("apt-get") {
            None
        } else if is_root() {
            let before = &["env", "DEBIAN_FRONTEND=noninteractive"];
            Some(Self { before })
        } else if is_there("sudo") {
            // sudo drops the environment that it is called with.
            let before = &["sudo", "env", "DEBIAN_FRONTEND=noninteractive"];
            Some(Self { before })
        } else {
            None
        }
    }

    /// Says whether it succeeded.
    fn run(&self, args: &[&str]) -> Result<bool> {
        let words = [self.before, &["apt-get"], args].concat();
        println!("$ {}", words.join(" "));
        Ok(Command::new(words[0]).args(&words[1..]).status()?.success())
    }
}

fn missing(needs: &[(&'static str, &[Need])]) -> Vec<(&'static str, Vec<String>)> {
    needs
        .iter()
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
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) => write!(f, "the program {name}"),
            Self::Library(name, version) => write!(f, "the library {name} >= {version}"),
            Self::Element(name) => write!(f, "the element {name}"),
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
