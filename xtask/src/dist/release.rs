// SPDX-License-Identifier: MPL-2.0

//! The version, the time and the folders of a release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::output;
use crate::{Result, root, target_dir};

/// What is packaged.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) version: String,
    /// The time of the commit, in seconds since 1970: the time of all files of the packages.
    pub(super) epoch: String,
    pub(super) with_bridge: bool,
}

impl Release {
    pub(super) fn of_sources(with_bridge: bool) -> Result<Self> {
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch,
            Err(_) => {
                let mut commit = Command::new("git");
                commit.current_dir(root());
                commit.args(["log", "-1", "--format=%ct"]);
                let time = output(&mut commit);
                time.map_err(|error| {
                    format!("without the repository's history, set SOURCE_DATE_EPOCH: {error}")
                })?
            }
        };
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: epoch.trim().to_owned(),
            with_bridge,
        })
    }

    /// A folder for the files of one step, without those of an earlier run.
    pub(super) fn empty(&self, name: &str) -> Result<PathBuf> {
        let dir = target_dir().join("dist").join(name);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// What was built, where Debian has it: the folder that holds `usr`.
    pub(super) fn tree(&self) -> PathBuf {
        target_dir().join("dist/tree")
    }

    /// The folder of what is published.
    pub(super) fn packages(&self) -> PathBuf {
        target_dir().join("dist/packages")
    }

    /// The time of the commit, as `date` formats it.
    pub(super) fn date(&self, format: &str) -> Result<String> {
        let mut date = Command::new("date");
        date.args(["--utc", "--date", &format!("@{}", self.epoch), format]);
        date.env("LC_ALL", "C");
        Ok(output(&mut date)?.trim().to_owned())
    }

    /// The crates of the programs and libraries: the manifest of their workspace, and their name.
    pub(super) fn crates(&self) -> Vec<(&'static str, &'static str)> {
        let mut crates = vec![
            ("Cargo.toml", "gstxmem-cdylib"),
            ("Cargo.toml", "xmem-cli"),
            ("Cargo.toml", "xmem-capi"),
            ("Cargo.toml", "xmem-python"),
        ];
        if self.with_bridge {
            crates.push(("bridge/Cargo.toml", "xmem-bridge"));
        }
        crates
    }

    /// Publishes files that were made twice, if no byte differs.
    pub(super) fn publish(&self, names: &[String], first: &Path, again: &Path) -> Result {
        for name in names {
            if fs::read(first.join(name))? != fs::read(again.join(name))? {
                return Err(format!(
                    "{name} differs when it is made again: compare {} and {}",
                    first.display(),
                    again.display()
                )
                .into());
            }
            install(&first.join(name), &self.packages().join(name))?;
        }
        Ok(())
    }

    pub(super) fn write_sums(&self) -> Result {
        let files = names(&self.packages())?;
        let mut sums = Command::new("sha256sum");
        let files = files.iter().filter(|file| *file != "SHA256SUMS");
        sums.current_dir(self.packages()).arg("--").args(files);
        let sums = output(&mut sums)?;
        fs::write(self.packages().join("SHA256SUMS"), &sums)?;
        Ok(())
    }
}

/// The names of the files in a folder, sorted.
pub(super) fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Copies a file, and makes the folders above it.
pub(super) fn install(from: &Path, to: &Path) -> Result {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    Ok(())
}
