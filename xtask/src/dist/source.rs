// SPDX-License-Identifier: MPL-2.0

//! The sources with those of all crates that they need, so that they build without a network.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::release::{Release, names};
use crate::step::{output, run_quietly};
use crate::{Result, cargo, root, target_dir};

/// The systems that the sources support. For others, crates such as `windows` have sources of hundreds of megabytes.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

pub(super) fn build(release: &Release) -> Result {
    let dir = release.empty("source")?;
    let name = name(release);
    let folder = dir.join(&name);
    let own = dir.join("own.tar");
    let mut archive = Command::new("git");
    archive.current_dir(root()).arg("archive");
    archive.arg(format!("--prefix={name}/"));
    output(archive.arg("--output").arg(&own).arg("HEAD"))?;
    let mut unpack = Command::new("tar");
    output(unpack.arg("-C").arg(&dir).arg("-xf").arg(&own))?;

    let mut vendor = cargo();
    vendor.current_dir(&folder);
    vendor.args(["vendor", "--locked", "--versioned-dirs"]);
    vendor.args(["--sync", "bridge/Cargo.toml", "vendor"]);
    let settings = output(&mut vendor)?;
    let file = folder.join(".cargo/config.toml");
    let before = fs::read_to_string(&file)?;
    fs::write(file, format!("{before}\n{settings}"))?;
    empty_unused(&folder)?;

    let mut pack = Command::new("tar");
    pack.current_dir(&dir)
        .args(["--create", "--sort=name", "--format=gnu", "--owner=0"])
        .args(["--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"])
        .arg(format!("--mtime=@{}", release.epoch))
        // The number of threads changes the file.
        .args(["--use-compress-program", "xz -4 -T2", "--file"])
        .arg(release.packages().join(format!("{name}.tar.xz")))
        .arg(&name);
    run_quietly("Packing the sources", pack)
}

fn name(release: &Release) -> String {
    format!("xmem-{}", release.version)
}

/// Removes the sources of crates that are only used on other systems. Cargo still wants the crates to be there.
fn empty_unused(folder: &Path) -> Result {
    let mut used = BTreeSet::new();
    for manifest in ["Cargo.toml", "bridge/Cargo.toml"] {
        let mut tree = cargo();
        tree.current_dir(folder);
        tree.args(["tree", "--offline", "--locked", "--workspace"]);
        tree.args(["--all-features", "--prefix", "none", "-f", "{p}"]);
        tree.args(["--manifest-path", manifest]);
        tree.args(TARGETS.iter().flat_map(|target| ["--target", target]));
        for line in output(&mut tree)?.lines() {
            let mut words = line.split(' ');
            let (Some(name), Some(version)) = (words.next(), words.next()) else {
                continue;
            };
            used.insert(format!("{name}-{}", version.trim_start_matches('v')));
        }
    }
    let vendor = folder.join("vendor");
    for unused in names(&vendor)?.iter().filter(|it| !used.contains(*it)) {
        let dir = vendor.join(unused);
        let sums = fs::read_to_string(dir.join(".cargo-checksum.json"))?;
        let sums: Value = serde_json::from_str(&sums)?;
        let manifest = fs::read(dir.join("Cargo.toml"))?;
        fs::remove_dir_all(&dir)?;
        fs::create_dir_all(dir.join("src"))?;
        fs::write(dir.join("Cargo.toml"), manifest)?;
        fs::write(dir.join("src/lib.rs"), "")?;
        let sums = json!({"files": {}, "package": sums["package"]});
        fs::write(dir.join(".cargo-checksum.json"), sums.to_string())?;
    }
    Ok(())
}

/// Unpacks the sources and compiles the command from them, without a network and without the crates of this machine.
pub(super) fn check(release: &Release) -> Result {
    let dir = release.empty("offline")?;
    let name = name(release);
    let mut unpack = Command::new("tar");
    unpack.arg("-C").arg(&dir).arg("-xf");
    output(unpack.arg(release.packages().join(format!("{name}.tar.xz"))))?;
    let mut check = Command::new("unshare");
    check
        .args(["--net", "--map-root-user", "--"])
        .arg(cargo().get_program())
        .args(["check", "--locked", "-p", "xmem-cli"])
        .current_dir(dir.join(name))
        .env("CARGO_HOME", dir.join("home"))
        .env("CARGO_TARGET_DIR", target_dir().join("dist/offline-target"));
    run_quietly("Compiling the packed sources without a network", check)
}
