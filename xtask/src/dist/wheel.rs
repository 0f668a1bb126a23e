// SPDX-License-Identifier: MPL-2.0

//! The wheel of the Python module, with the plugin and the command in it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::release::{Release, install, names};
use super::{build, parts};
use crate::step::run_quietly;
use crate::{Result, root, target_dir};

/// Makes the wheel twice from the same build, and compares both.
pub(super) fn build(release: &Release) -> Result {
    let first = once(release, "wheel")?;
    let second = once(release, "wheel-again")?;
    let name = first.file_name().ok_or("a wheel without a name")?;
    if fs::read(&first)? != fs::read(&second)? {
        let (first, second) = (first.display(), second.display());
        return Err(format!(
            "the wheel differs when it is made again: compare {first} and {second}"
        )
        .into());
    }
    install(&first, &release.packages().join(name))?;
    println!("The wheel, made twice from the same build: no byte differs");
    Ok(())
}

fn once(release: &Release, name: &str) -> Result<PathBuf> {
    let work = release.empty(name)?;
    let plugin = build::plugin(&release.tree())?;
    let out = work.join("out");
    let mut script = build::reproducible(Command::new("sh"))?;
    script
        .current_dir(root())
        .arg("xtask/src/dist/wheel.sh")
        .arg(target_dir().join("dist/venv"))
        .args([plugin, release.tree().join("usr/bin/xmem")])
        .arg(parts::licences(release))
        .args([&work, &out])
        .env("SOURCE_DATE_EPOCH", &release.epoch);
    run_quietly("Making the wheel", script)?;
    let wheel = names(&out)?.pop().ok_or("auditwheel made no wheel")?;
    Ok(out.join(wheel))
}
