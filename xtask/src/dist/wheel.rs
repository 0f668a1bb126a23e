// SPDX-License-Identifier: MPL-2.0

//! The wheel of the Python module, with the plugin and the command in it, and the module's sources for pip.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::release::{Release, names};
use super::{build, parts};
use crate::step::run_quietly;
use crate::{Result, root, target_dir};

/// Makes both twice from the same build, and compares them.
pub(super) fn build(release: &Release) -> Result {
    let first = once(release, "wheel")?;
    let second = once(release, "wheel-again")?;
    let made = names(&first)?;
    release.publish(&made, &first, &second)?;
    println!("{}, made twice: no byte differs", made.join(", "));
    Ok(())
}

/// Returns the folder that has them.
fn once(release: &Release, name: &str) -> Result<PathBuf> {
    let work = release.empty(name)?;
    let plugin = build::plugin(&release.tree())?;
    let out = work.join("out");
    let mut script = build::reproducible(Command::new("sh"))?;
    script
        .current_dir(root())
        .arg("xtask/src/dist/wheel.sh")
        .arg(environment())
        .args([plugin, release.tree().join("usr/bin/xmem")])
        .arg(parts::licences(release))
        .args([&work, &out])
        .env("SOURCE_DATE_EPOCH", &release.epoch);
    run_quietly("Making the wheel", script)?;
    Ok(out)
}

/// The environment with the programs that make the wheel.
fn environment() -> PathBuf {
    target_dir().join("dist/venv")
}

/// Builds and installs the module from its sources, as pip does where no wheel fits, and imports it.
pub(super) fn check(release: &Release) -> Result {
    let made = names(&release.packages())?;
    let sources = made.iter().find(|name| is_sources(name));
    let sources = sources.ok_or("there are no sources for pip: run `cargo xtask dist` first")?;
    let venv = release.empty("sdist")?;
    let run = |what, program: &Path, args: &[&str]| -> Result {
        // With the settings of the wheel, so that the crates of others are not built again.
        let mut command = build::reproducible(Command::new(program))?;
        command.args(args).current_dir(&venv);
        run_quietly(what, command)
    };
    let path = |file: &Path| file.display().to_string();
    let (folder, sources) = (path(&venv), path(&release.packages().join(sources)));
    let python = venv.join("bin/python");
    let make = ["-m", "venv", &folder];
    run("Making an environment for pip", Path::new("python3"), &make)?;
    let install = ["-m", "pip", "install", "--no-deps", &sources];
    run("Building the sources with pip", &python, &install)?;
    let import = ["-c", "import xmem; xmem.Consumer"];
    run("Importing what pip built", &python, &import)
}

fn is_sources(name: &str) -> bool {
    name.starts_with("gst_xmem-") && name.ends_with(".tar.gz")
}
