// SPDX-License-Identifier: MPL-2.0

//! Finds missing system packages, and installs them if the machine has apt-get.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::AptGet;
use crate::step::{run_quietly, succeeds};
use crate::{Result, target_dir};

/// A dependency of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need {
    Program(&'static str),
    /// A library of at least this version, found by pkg-config.
    Library(&'static str, &'static str),
    File(&'static str),
    /// A GStreamer element.
    Element(&'static str),
    /// A module of the system's Python. A build of the same module from PyPI may have other options.
    PythonModule(&'static str),
    /// Python 3.11 or newer with these modules.
    Python(&'static str),
}

use Need::{Element, File, Library, Program, Python, PythonModule};

/// Options of gst-inspect-1.0. Elements of other projects have versions of their own.
const EXISTS: [&str; 2] = ["--exists", "--atleast-version=0.0"];

/// The system's Python, even if PATH has another one first.
const PYTHON: &str = "/usr/bin/python3";

/// Rows of a package and what it provides.
macro_rules! needs {
    ($($package:literal, $($need:expr),+;)*) => { &[$(($package, &[$($need),+])),*] };
}

/// The packages of Debian 12, Debian 13 and Ubuntu 24.04 that provide each dependency. Programs come first, because the checks of
/// the others run them.
const NEEDS: Needs = needs! {
    "pkg-config", Program("pkg-config");
    // Tests start processes of other users, and containers.
    "util-linux", Program("setpriv"), Program("unshare");
    "mount", Program("mount");
    "python3-venv", Python("venv, ensurepip");
    "libgstreamer1.0-dev", Library("gstreamer-1.0", "1.22"), Library("glib-2.0", "2.74");
    "libgstreamer-plugins-base1.0-dev", Library("gstreamer-audio-1.0", "1.22"), Library("gstreamer-video-1.0", "1.22"), Library("gstreamer-app-1.0", "1.22");
    "gstreamer1.0-tools", Program("gst-launch-1.0"), Program("gst-inspect-1.0");
    "gstreamer1.0-plugins-base", Element("videotestsrc"), Element("videoconvert"), Element("decodebin");
    "gstreamer1.0-plugins-base-apps", Program("gst-play-1.0"), Program("gst-device-monitor-1.0");
    // This package has the elements that draw text.
    "gstreamer1.0-x", Element("timeoverlay");
    "gstreamer1.0-plugins-good", Element("qtdemux"), Element("splitmuxsrc"), Element("videobalance"), Element("pngenc");
    "gstreamer1.0-plugins-bad", Element("h264parse"), Element("openh264dec"), Element("shmsink");
    "gstreamer1.0-plugins-ugly", Element("x264enc");
    "gstreamer1.0-libav", Element("avdec_h264");
};

/// Additional dependencies of the tests: programs that read frames of a pool and do not know xmem.
const TEST_NEEDS: Needs = needs! {
    "ffmpeg", Program("ffmpeg");
    "python3-opencv", PythonModule("cv2");
    // Programs in C and C++ that use the pools by libxmem.
    "g++", Program("g++");
    // Other build systems that find libxmem, and the comparison of its binary interface.
    "meson", Program("meson");
    "ninja-build", Program("ninja");
    "cmake", Program("cmake");
    "abigail-tools", Program("abidiff");
    "libopencv-imgproc-dev", File("/usr/include/opencv4/opencv2/imgproc.hpp");
    "libavformat-dev", Library("libavformat", "59");
    "python3-gi", PythonModule("gi");
    "gir1.2-gst-rtsp-server-1.0", PythonModule("gi.repository.GstRtspServer");
    // Programs that show a pool as a camera.
    "dbus-daemon", Program("dbus-daemon");
    "pipewire-bin", Program("pipewire"), Program("pw-dump");
    "wireplumber", Program("wireplumber");
    "gstreamer1.0-pipewire", Element("pipewiresink");
};

/// Additional dependencies of the Python module's tests, for pipelines that gst-launch-1.0 cannot create.
pub(crate) const PYTHON_NEEDS: Needs = needs! {
    "python3-gi", PythonModule("gi");
    "gir1.2-gst-plugins-base-1.0", PythonModule("gi.repository.GstAllocators");
};

/// Additional dependencies of the benchmark.
pub(crate) const BENCH_NEEDS: Needs = needs! {
    "strace", Program("strace");
    "gstreamer1.0-plugins-ugly", Element("x264enc");
    "gstreamer1.0-libav", Element("avdec_h264");
};

/// Additional dependencies of `cargo xtask test --compat`.
pub(crate) const COMPAT_NEEDS: Needs = needs! {
    "debootstrap", Program("debootstrap");
    "util-linux", Program("pivot_root");
};

/// Additional dependencies of `cargo xtask camera`.
pub(crate) const CAMERA_NEEDS: Needs = needs! {
    "qemu-system-x86", Program("qemu-system-x86_64");
};

/// What `cargo xtask camera` needs inside of the virtual machine.
const GUEST_NEEDS: Needs = needs! {
    "kmod", Program("modprobe");
    "python3", Program("python3");
    "gstreamer1.0-plugins-good", Element("v4l2src"), Element("jpegdec");
    // A program that maps DMA buffers by itself.
    "python3-gi", PythonModule("gi");
    "gir1.2-gst-plugins-base-1.0", PythonModule("gi.repository.GstAllocators");
    // The picture that `xmem camera` shows without a producer.
    "gstreamer1.0-x", Element("textoverlay");
    // Programs that read cameras.
    "ffmpeg", Program("ffmpeg");
    "v4l-utils", Program("v4l2-ctl");
    // The module for cameras that a program feeds, which is built for the kernel of these headers.
    "linux-headers-amd64", File("/usr/share/doc/linux-headers-amd64");
    "v4l2loopback-dkms", Program("dkms");
};

/// Additional dependencies of `cargo xtask package`.
pub(crate) const PACKAGE_NEEDS: Needs = needs! {
    "meson", Program("meson");
    "ninja-build", Program("ninja");
    "gcc", Program("cc");
};

/// Additional dependencies of `cargo xtask dist`.
pub(crate) const DIST_NEEDS: Needs = needs! {
    "debhelper", Program("dh");
    "dpkg-dev", Program("dpkg-buildpackage");
    "lintian", Program("lintian");
};

/// What `cargo xtask dist --check` needs inside of another Debian to use the packages.
const USER_NEEDS: Needs = needs! {
    "gstreamer1.0-tools", Program("gst-launch-1.0");
    "gstreamer1.0-plugins-base", Element("videotestsrc"), Element("videoconvert");
    "gstreamer1.0-plugins-good", Element("pngenc");
    "gcc", Program("cc");
    "libc6-dev", File("/usr/include/stdio.h");
    "pkgconf", File("/usr/bin/pkg-config");
    "python3-venv", PythonModule("ensurepip");
    "python3-numpy", PythonModule("numpy");
    "gir1.2-gstreamer-1.0", PythonModule("gi.repository.Gst");
    "python3-gi", PythonModule("gi");
};

/// Additional dependencies of `cargo xtask sanitize` and `cargo xtask count`.
pub(crate) const VALGRIND_NEEDS: Needs = needs! {
    "valgrind", Program("valgrind");
};

/// Installs the missing dependencies of building, testing and the demo, and `more`.
pub(crate) fn ensure(more: &[Needs]) -> Result {
    ensure_all(&[&[NEEDS][..], more].concat())
}

/// Also installs the dependencies of the tests.
pub(crate) fn ensure_for_test() -> Result {
    ensure(&[PYTHON_NEEDS, TEST_NEEDS])?;
    fetch_cuda_headers()
}

/// The package with the headers of libgstcuda, which one test needs. It depends on all of OpenCV, so it is unpacked and not
/// installed.
const CUDA_HEADERS: &str = "libgstreamer-plugins-bad1.0-dev";

/// The folder with these headers, if they were unpacked.
pub(crate) fn cuda_headers() -> Option<PathBuf> {
    let dir = target_dir().join("gst-cuda-headers/usr/include/gstreamer-1.0");
    dir.is_dir().then_some(dir)
}

/// The shell command that downloads these headers (0.5 MB) into the present folder and unpacks them into another.
pub(crate) fn unpack_cuda_headers(into: &str) -> String {
    format!(
        "apt-get -o APT::Sandbox::User=root download {CUDA_HEADERS} && dpkg-deb --extract {CUDA_HEADERS}_*.deb {into}"
    )
}

/// Gets the headers. If this fails, the test that needs them reports that it cannot run.
fn fetch_cuda_headers() -> Result {
    let installed = Library("gstreamer-cuda-1.0", "1.22").is_met();
    if installed || cuda_headers().is_some() || !Program("dpkg-deb").is_met() {
        return Ok(());
    }
    let dir = target_dir().join("gst-cuda-headers");
    std::fs::create_dir_all(&dir)?;
    let mut fetch = Command::new("sh");
    fetch
        .args(["-c", &unpack_cuda_headers(".")])
        .current_dir(dir);
    if let Err(error) = run_quietly(&format!("Getting {CUDA_HEADERS}"), fetch) {
        println!("{error}\n{CUDA_HEADERS} cannot be downloaded: the test that needs it is skipped");
    }
    Ok(())
}

/// The programs that run in another Debian release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Tests(Tests),
    Bench,
    Camera,
    Packages,
}

/// A selection of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tests {
    All,
    /// The tests whose subject differs between versions of GStreamer. They need few packages.
    Few,
}

/// The packages that `Tests::Few` and the benchmark need at run time. The benchmark also needs `BENCH_NEEDS`.
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
            Self::Camera => (false, GUEST_NEEDS),
            Self::Packages => (false, USER_NEEDS),
        };
        // A user of the packages has no more than what these need.
        let few: &[&str] = match self {
            Self::Packages => &[],
            _ => FEW_PACKAGES,
        };
        let wanted = NEEDS
            .iter()
            .filter(move |(package, _)| has_all || few.contains(package))
            .chain(on_top);
        // Some tests compile programs.
        let is_needed = move |need: &&Need| has_all || need.is_at_run_time();
        let needs = wanted.map(move |(package, needs)| {
            (*package, needs.iter().filter(is_needed).collect::<Vec<_>>())
        });
        needs.filter(|(_, needs)| !needs.is_empty())
    }

    /// The packages that programs which were built on this machine need in the other Debian release.
    pub(crate) fn packages(self) -> Vec<&'static str> {
        self.needs().map(|(package, _)| package).collect()
    }

    /// The missing dependencies in the system where `inside` runs programs.
    pub(crate) fn missing(self, inside: impl Fn() -> Command) -> Vec<String> {
        let needs = self.needs().flat_map(|(_, needs)| needs);
        let missing = needs.filter(|need| !need.is_met_inside(inside()));
        missing.map(ToString::to_string).collect()
    }
}

/// Whether the GStreamer of this machine has at least this version.
pub(crate) fn has_gstreamer(version: &'static str) -> bool {
    Library("gstreamer-1.0", version).is_met()
}

/// Package names, each with the dependencies that the package provides.
pub(crate) type Needs = &'static [(&'static str, &'static [Need])];

/// Checks all dependencies before it installs any, so that a user without root gets one complete list.
pub(crate) fn ensure_all(needs: &[Needs]) -> Result {
    // The first check can take long: GStreamer may have to scan all its plugins.
    println!("Looking for the required programs and libraries ...");
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
            "still missing after the installation: {} (Debian 12 and Ubuntu 24.04 are the oldest releases with all of them)",
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
    /// Whether the dependency is needed to run programs that are already built. Only a build needs pkg-config and development
    /// files.
    fn is_at_run_time(&self) -> bool {
        !matches!(
            self,
            Self::Library(..) | Self::Program("pkg-config") | Self::Python(_)
        )
    }

    /// `inside` is the command prefix that runs a program in the other system.
    fn is_met_inside(&self, mut inside: Command) -> bool {
        succeeds(match self {
            Self::Program(name) => inside.args(["which", name]),
            Self::Library(name, version) => {
                inside.args(["pkg-config", &format!("--atleast-version={version}"), name])
            }
            Self::File(path) => inside.args(["test", "-e", path]),
            Self::Element(name) => inside.arg("gst-inspect-1.0").args(EXISTS).arg(name),
            Self::PythonModule(name) => {
                inside.args([PYTHON, "-E", "-c", &format!("import {name}")])
            }
            Self::Python(modules) => {
                let script = format!("import sys, {modules}; sys.exit(sys.version_info < (3, 11))");
                inside.args(["python3", "-E", "-c", &script])
            }
        })
    }

    fn is_met(&self) -> bool {
        match self {
            Self::Program(name) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
            }
            Self::File(path) => Path::new(path).exists(),
            // `env` runs a program of this machine.
            _ => self.is_met_inside(Command::new("env")),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) => write!(f, "the program {name}"),
            Self::Library(name, version) => write!(f, "the library {name} >= {version}"),
            Self::File(path) => write!(f, "the file {path}"),
            Self::Element(name) => write!(f, "the element {name}"),
            Self::PythonModule(name) => write!(f, "the module {name} for {PYTHON}"),
            Self::Python(modules) => write!(f, "Python 3.11 or newer with {modules}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Modules of the kernel are for the virtual machine.
    #[test]
    fn the_kernel_of_this_machine_stays_as_it_is() {
        let of_kernel =
            |package: &&str| package.starts_with("linux-") || package.ends_with("-dkms");
        let lists = [
            NEEDS,
            TEST_NEEDS,
            PYTHON_NEEDS,
            BENCH_NEEDS,
            COMPAT_NEEDS,
            CAMERA_NEEDS,
            PACKAGE_NEEDS,
            DIST_NEEDS,
            VALGRIND_NEEDS,
        ];
        let packages = lists.into_iter().flatten().map(|(package, _)| *package);
        assert_eq!(packages.filter(of_kernel).collect::<Vec<_>>(), [""; 0]);
        assert!(Purpose::Camera.packages().iter().any(of_kernel));
    }
}
