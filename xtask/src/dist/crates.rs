// SPDX-License-Identifier: MPL-2.0

//! The crates that are published: their packages, which cargo builds as a user's cargo would, and their pages.

use super::release::{Release, install, names};
use crate::step::run_quietly;
use crate::{Result, cargo};

/// In order of dependence.
const CRATES: [&str; 5] = [
    "xmem-shm",
    "xmem-cuda",
    "xmem-core",
    "gst-plugin-xmem",
    "xmem-cli",
];

pub(super) fn build(release: &Release) -> Result {
    let dir = release.empty("crates")?;
    let selected = CRATES.iter().flat_map(|name| ["-p", name]);
    let mut package = cargo();
    package.args(["package", "--locked", "--allow-dirty"]);
    package.args(selected.clone());
    package.arg("--target-dir").arg(&dir);
    run_quietly("Packing and building the crates", package)?;
    let made = dir.join("package");
    let files = names(&made)?;
    for file in files.iter().filter(|name| name.ends_with(".crate")) {
        install(&made.join(file), &release.packages().join(file))?;
    }
    let mut pages = cargo();
    pages.args(["doc", "--locked", "--no-deps"]).args(selected);
    pages.arg("--target-dir").arg(&dir);
    pages.env("RUSTDOCFLAGS", "-D warnings");
    run_quietly("Making the pages of the crates", pages)
}
