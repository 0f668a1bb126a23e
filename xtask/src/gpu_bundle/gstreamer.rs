// SPDX-License-Identifier: MPL-2.0

//! Packs a self-contained GStreamer with its libraries and its dynamic loader. The machine with the GPU may have none, or an older
//! one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::compat::Debian;

#[cfg(target_arch = "x86_64")]
const FILES: &str = "/usr/lib/x86_64-linux-gnu";
#[cfg(target_arch = "x86_64")]
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const FILES: &str = "/usr/lib/aarch64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "/lib/ld-linux-aarch64.so.1";
const PROGRAMS: [&str; 2] = ["gst-launch-1.0", "gst-inspect-1.0"];
const PLUGINS: [&str; 6] = [
    "coreelements",
    "nvcodec",
    "unixfd",
    "videoconvertscale",
    "videoparsersbad",
    "videotestsrc",
];
/// A film for the decoder, with B frames, which this machine's GStreamer encodes.
const FILM: &str = "videotestsrc num-buffers=120 ! video/x-raw,width=1280,height=720,framerate=30/1 ! timeoverlay \
     ! x264enc bframes=2 key-int-max=30 ! video/x-h264,profile=high,stream-format=byte-stream ! filesink location=";
/// Libraries that the driver links. The machine's own versions belong to another C library.
const FOR_DRIVERS: [&str; 3] = ["libdl.so.2", "libpthread.so.0", "librt.so.1"];

/// Packs GStreamer, the plugin and a program into the subfolders `bin`, `plugins` and `lib` of a folder.
pub(super) fn pack(debian: &Debian, folder: &Path, plugin: &Path, program: &Path) -> Result {
    for part in ["bin", "plugins", "lib"] {
        std::fs::create_dir_all(folder.join(part))?;
    }
    let programs = PROGRAMS.map(|name| PathBuf::from("/usr/bin").join(name));
    let plugins = PLUGINS.map(|name| {
        let name = format!("libgst{name}.so");
        Path::new(FILES).join("gstreamer-1.0").join(name)
    });
    for (files, part) in [(&programs[..], "bin"), (&plugins[..], "plugins")] {
        for file in files {
            copy(&debian.path(file), &folder.join(part))?;
        }
    }
    copy(program, &folder.join("bin"))?;
    copy(plugin, &folder.join("plugins"))?;
    let ours = [plugin.to_owned(), program.to_owned()];
    let mut libraries: BTreeSet<PathBuf> =
        FOR_DRIVERS.map(|name| Path::new(FILES).join(name)).into();
    libraries.insert(LOADER.into());
    for file in programs.iter().chain(&plugins).chain(&ours) {
        libraries.extend(needed(debian, file)?);
    }
    for library in libraries {
        copy(&debian.path(&library), &folder.join("lib"))?;
    }
    film(&folder.join("film.h264"))
}

fn film(file: &Path) -> Result {
    let pipeline = format!("{FILM}{}", file.display());
    let mut command = Command::new("gst-launch-1.0");
    command.arg("--quiet").args(pipeline.split_whitespace());
    if !command.status()?.success() {
        return Err(
            format!("gst-launch-1.0 {pipeline} failed: see its error message above").into(),
        );
    }
    Ok(())
}

/// The libraries of a program or plugin, as the loader of that Debian finds them.
fn needed(debian: &Debian, file: &Path) -> Result<Vec<PathBuf>> {
    let dir = file.parent().ok_or("a file in no folder")?;
    // The plugin was built on this machine, so its folder is mounted there.
    let with = if dir.starts_with("/usr") {
        vec![]
    } else {
        vec![dir]
    };
    let list = [LOADER, "--list", &file.display().to_string()];
    let output = debian.inside_with("ro", &with, &list).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || text.contains("not found") {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} lacks a library there: {text}{error}", file.display()).into());
    }
    let paths = text
        .lines()
        .filter_map(|line| line.split_once(" => ")?.1.split_whitespace().next());
    Ok(paths.map(PathBuf::from).collect())
}

fn copy(file: &Path, to: &Path) -> Result {
    let name = file.file_name().ok_or("a file without a name")?;
    std::fs::copy(file, to.join(name)).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(())
}
