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
    let with_crates = |verb: &str, option: &str| {
        let mut command = cargo();
        command.args([verb, option, "--locked", "--allow-dirty"]);
        command.args(selected.clone());
        command.arg("--target-dir").arg(&dir);
        command
    };
    // Uploads nothing, and leaves no packages.
    let publish = with_crates("publish", "--dry-run");
    run_quietly("Packing and building the crates", publish)?;
    run_quietly("Packing the crates", with_crates("package", "--no-verify"))?;
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
