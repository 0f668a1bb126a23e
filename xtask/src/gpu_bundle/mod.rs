// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask gpu-bundle`: pack the programs that `gpu/run` needs on a machine with a GPU, without Rust and without a network.

mod gstreamer;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::compat::Debian;
use crate::packages::{self, Purpose, Tests};
use crate::step::output;
use crate::{Result, cargo, root, target_dir};

/// The largest bundle that can be transferred.
const MOST_BYTES: u64 = 64 << 20;

/// Test programs: package, name, features.
const TESTS: [(&str, &str, &str); 4] = [
    ("xmem-core", "conformance", "cuda"),
    ("xmem-core", "cuda", "cuda,fault-points"),
    ("xmem-core", "processes", "cuda"),
    ("xmem-cuda-standin", "behaviour", ""),
];

const SCRIPTS: [&str; 8] = [
    "run",
    "driver.py",
    "record.py",
    "results.py",
    "elements.py",
    "module.py",
    "torch_reads.py",
    "torch_queue.py",
];

pub(crate) fn run() -> Result {
    packages::ensure(&[])?;
    let bundle = target_dir().join("gpu-bundle");
    if bundle.exists() {
        std::fs::remove_dir_all(&bundle)?;
    }
    std::fs::create_dir_all(bundle.join("tests"))?;
    std::fs::create_dir_all(bundle.join("bin"))?;
    for (package, name, features) in TESTS {
        let built = build(&format!(
            "test --no-run --package {package} --test {name} --features {features}"
        ))?;
        let program = built
            .iter()
            .find(|path| is_program(path, name))
            .ok_or_else(|| format!("cargo built no {name}"))?;
        std::fs::copy(
            program,
            bundle.join("tests").join(format!("{package}-{name}")),
        )?;
    }
    let built = build(
        "build --package xmem-gpu --package xmem-cuda-standin --package xmem-gpu-gst --package gstxmem-cdylib",
    )?;
    let find = |name: &str| {
        let own = |path: &&PathBuf| path.file_name().is_some_and(|own| own == name);
        let file = built.iter().find(own);
        file.ok_or_else(|| format!("cargo built no {name}"))
    };
    for name in ["xmem-gpu", "libxmem_gpu.so", "libxmem_cuda_standin.so"] {
        std::fs::copy(find(name)?, bundle.join("bin").join(name))?;
    }
    for wheel in crate::python::wheels()? {
        let name = wheel.file_name().ok_or("a wheel without a name")?;
        std::fs::copy(&wheel, bundle.join("bin").join(name))?;
    }
    match Debian::ensure(Purpose::Tests(Tests::Few)) {
        Ok(debian) => gstreamer::pack(
            &debian,
            &bundle.join("gst"),
            find("libgstxmem.so")?,
            find("xmem-gpu-gst")?,
        )?,
        Err(why) => {
            println!("GStreamer is not in the bundle, so the elements are not tested: {why}")
        }
    }
    for script in SCRIPTS {
        std::fs::copy(root().join("gpu").join(script), bundle.join(script))?;
    }
    std::fs::write(bundle.join("commit"), commit())?;
    let size = size(&bundle)?;
    println!(
        "\nxtask gpu-bundle: {} has {:.1} MiB",
        bundle.display(),
        size as f64 / (1 << 20) as f64
    );
    if size > MOST_BYTES {
        return Err(format!(
            "the bundle is larger than {} MiB: remove a test program",
            MOST_BYTES >> 20
        )
        .into());
    }
    Ok(())
}

/// Builds with optimisation and without debug information. Returns the files that cargo built.
fn build(args: &str) -> Result<Vec<PathBuf>> {
    let mut command = cargo();
    command.args(args.split(' ')).args([
        "--release",
        "--locked",
        "--message-format=json-render-diagnostics",
    ]);
    // A separate target directory: other settings would invalidate everything in the common one.
    command.arg("--target-dir").arg(target_dir().join("gpu"));
    command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    command.env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    println!("$ cargo {args}");
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        let status = output.status;
        return Err(format!("cargo {args} failed ({status}): see its error message above").into());
    }
    let mut built = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let files = message["filenames"]
            .as_array()
            .into_iter()
            .flatten()
            .chain([&message["executable"]]);
        built.extend(files.filter_map(|file| file.as_str()).map(PathBuf::from));
    }
    Ok(built)
}

/// Whether the path is the test program with this name. Cargo adds a hash to the name.
fn is_program(path: &Path, name: &str) -> bool {
    let stem = path
        .file_name()
        .and_then(|file| file.to_str())
        .and_then(|file| file.rsplit_once('-'));
    stem.is_some_and(|(own, _)| own == name) && path.extension().is_none()
}

/// The commit of the bundle, followed by `+` if there are uncommitted changes.
fn commit() -> String {
    let git = |args: &[&str]| {
        let text = output(Command::new("git").args(args).current_dir(root()));
        text.map(|text| text.trim().to_owned())
    };
    let clean = git(&["status", "--porcelain"]).is_ok_and(|changes| changes.is_empty());
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|_| "unknown".into());
    format!("{commit}{}\n", if clean { "" } else { "+" })
}

fn size(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type()))?;
        sum += if kind?.is_dir() {
            size(&path)?
        } else {
            path.metadata()?.len()
        };
    }
    Ok(sum)
}
