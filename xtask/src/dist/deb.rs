// SPDX-License-Identifier: MPL-2.0

//! Packages for Debian, by debhelper with the files of contrib/debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::parts::Part;
use super::release::{Release, names};
use crate::step::{output, run_quietly};
use crate::{Result, root};

/// The packages with code in them, and the crate that they contain.
const PACKAGES: [(&str, &str); 5] = [
    ("gstreamer1.0-xmem", "gstxmem-cdylib"),
    ("xmem", "xmem-cli"),
    ("libxmem0", "xmem-capi"),
    ("libxmem-dev", "xmem-capi"),
    ("xmem-bridge", "xmem-bridge"),
];

/// The build profile in which contrib/debian/control has the bridge.
const WITH_BRIDGE: &str = "--build-profiles=pkg.xmem.bridge";

/// Makes the packages twice, in two folders, and compares them.
pub(super) fn build(release: &Release, tree: &Path, parts: &[Part]) -> Result {
    let first = once(release, tree, parts, "deb")?;
    let second = once(release, tree, parts, "deb-again")?;
    let mut packages = names(&first)?;
    packages.retain(|name| name.ends_with(".deb"));
    release.publish(&packages, &first, &second)?;
    println!(
        "{} packages, made twice from the same build: no byte differs",
        packages.len()
    );
    let mut lintian = Command::new("lintian");
    lintian.current_dir(release.packages());
    lintian
        .args(["--fail-on", "error", "--allow-root"])
        .args(packages);
    run_quietly("Checking the packages with lintian", lintian)
}

/// Returns the folder that has the packages.
fn once(release: &Release, tree: &Path, parts: &[Part], name: &str) -> Result<PathBuf> {
    let folder = release.empty(name)?;
    let sources = folder.join(format!("xmem-{}", release.version));
    let debian = sources.join("debian");
    fs::create_dir(&sources)?;
    copy(&root().join("contrib/debian"), &debian)?;
    copy(tree, &sources.join("built"))?;
    write_changelog(release, &debian)?;
    for (package, name) in PACKAGES {
        write_copyright(&debian, package, name, parts)?;
    }
    let mut build = Command::new("dpkg-buildpackage");
    build.current_dir(&sources);
    build.args(["--build=binary", "--no-sign", "--no-pre-clean"]);
    if release.with_bridge {
        build.arg(WITH_BRIDGE);
    }
    build.env("SOURCE_DATE_EPOCH", &release.epoch);
    build.env("LC_ALL", "C.UTF-8");
    run_quietly("Making packages for Debian", build)?;
    Ok(folder)
}

fn write_changelog(release: &Release, debian: &Path) -> Result {
    let control = fs::read_to_string(debian.join("control"))?;
    let maintainer = control
        .lines()
        .find_map(|line| line.strip_prefix("Maintainer: "))
        .ok_or("contrib/debian/control names no maintainer")?;
    let text = format!(
        "xmem ({}) unstable; urgency=medium\n\n  * CHANGELOG.md of the sources lists the changes.\n\n -- {maintainer}  {}\n",
        release.version,
        release.date("+%a, %d %b %Y %H:%M:%S +0000")?
    );
    fs::write(debian.join("changelog"), text)?;
    Ok(())
}

/// The licence of the package, and those of the crates in it.
fn write_copyright(debian: &Path, package: &str, name: &str, parts: &[Part]) -> Result {
    let parts = parts.iter().filter(|part| part.is_in(name));
    let parts: Vec<&Part> = parts.collect();
    let mut text = fs::read_to_string(debian.join("copyright"))?;
    for part in &parts {
        text += &format!("  {}\n", part.line());
    }
    fs::write(debian.join(format!("{package}.copyright")), text)?;
    let texts = debian.join(format!("texts/{package}/third-party-licences.txt"));
    fs::create_dir_all(texts.parent().unwrap_or(debian))?;
    fs::write(&texts, super::parts::texts(&parts)?)?;
    let docs = format!("debian/texts/{package}/third-party-licences.txt\n");
    fs::write(debian.join(format!("{package}.docs")), docs)?;
    Ok(())
}

/// Copies a folder with its links.
fn copy(from: &Path, to: &Path) -> Result {
    output(Command::new("cp").arg("-a").arg(from).arg(to))?;
    Ok(())
}
