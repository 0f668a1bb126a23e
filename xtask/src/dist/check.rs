// SPDX-License-Identifier: MPL-2.0

//! Installs the packages in another Debian, uses them there, removes them, and looks for what they leave behind.

use std::path::Path;

use super::release::Release;
use crate::compat::Debian;
use crate::packages::Purpose;
use crate::step::{Step, run_all};
use crate::{Result, root};

/// `old`: packages of an earlier release, which are upgraded.
pub(super) fn run(release: &Release, suite: &str, old: Option<&Path>) -> Result {
    let packages = release.packages();
    if !packages.join("SHA256SUMS").exists() {
        return Err("there are no packages: run `cargo xtask dist` first".into());
    }
    let debian = Debian::of(suite, Purpose::Packages)?;
    let (script, examples) = (
        root().join("xtask/src/dist/check.sh"),
        root().join("crates/xmem-capi/examples"),
    );
    let old = old.map(Path::canonicalize).transpose()?;
    let paths = [&script, &packages, &examples];
    let paths = paths.into_iter().chain(&old);
    let paths: Vec<_> = paths.map(|path| path.display().to_string()).collect();
    let words = [vec!["sh"], paths.iter().map(String::as_str).collect()].concat();
    let here = script.parent().unwrap_or(&script);
    let dirs: Vec<&Path> = [here, &packages, &examples]
        .into_iter()
        .chain(old.as_deref())
        .collect();
    let command = debian.inside_with("fresh", &dirs, &words);
    run_all(vec![Step {
        name: "install, upgrade, use and remove",
        command,
        advice: "see the last line of its output",
    }])
}
