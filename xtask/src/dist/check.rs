// SPDX-License-Identifier: MPL-2.0

//! Installs the packages in another Debian, uses them there, removes them, and looks for what they leave behind.

use super::release::Release;
use crate::compat::Debian;
use crate::packages::Purpose;
use crate::step::{Step, run_all};
use crate::{Result, root};

pub(super) fn run(release: &Release, suite: &str) -> Result {
    let packages = release.packages();
    if !packages.join("SHA256SUMS").exists() {
        return Err("there are no packages: run `cargo xtask dist` first".into());
    }
    let debian = Debian::of(suite, Purpose::Packages)?;
    let (script, examples) = (
        root().join("xtask/src/dist/check.sh"),
        root().join("crates/xmem-capi/examples"),
    );
    let paths = [&script, &packages, &examples].map(|path| path.display().to_string());
    let words: Vec<&str> = ["sh"]
        .into_iter()
        .chain(paths.iter().map(String::as_str))
        .collect();
    let here = script.parent().unwrap_or(&script);
    let command = debian.inside_with("fresh", &[here, &packages, &examples], &words);
    run_all(vec![Step {
        name: "install, use and remove",
        command,
        advice: "see the last line of its output",
    }])
}
