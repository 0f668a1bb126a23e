// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask package`: install the plugin with cargo-c and with Meson, as packagers do, and test both installations.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{self, SEE_ABOVE, Step, output, succeeds};
use crate::{Result, cargo, packages, root, target_dir};

const LINKED: &str = "xtask/src/package/linked.c";

pub(crate) fn run() -> Result {
    packages::ensure(&[packages::PACKAGE_NEEDS])?;
    if !succeeds(cargo().args(["cbuild", "--version"])) {
        return Err(
            "cargo-c is not installed: run `cargo install cargo-c --version 0.10.21 --locked` (on Debian \
             it needs libssl-dev)"
                .into(),
        );
    }
    let dir = target_dir().join("package");
    // Files of an earlier run would hide files that this run does not install.
    for name in ["cargo-c", "meson"] {
        match std::fs::remove_dir_all(dir.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    std::fs::create_dir_all(&dir)?;

    let cargo_c = Prefix(dir.join("cargo-c"));
    let meson = Prefix(dir.join("meson"));
    let build = dir.join("meson-build");
    let mut install = Command::new("ninja");
    install.arg("-C").arg(&build).arg("install");
    let see_cargo = "see cargo's error message above";
    step::run_all(vec![
        Step::new("cargo cbuild", cargo_c.cargo("cbuild", &dir), see_cargo),
        Step::new("cargo cinstall", cargo_c.cargo("cinstall", &dir), see_cargo),
        Step::new(
            "meson setup",
            meson.setup(&build),
            "see Meson's error message above",
        ),
        Step::new("ninja install", install, SEE_ABOVE),
    ])?;
    meson.check_command()?;
    for prefix in [cargo_c, meson] {
        prefix.check(&dir)?;
        println!(
            "{}: gst-inspect-1.0, pkg-config and the linker find it",
            prefix.0.display()
        );
    }
    println!("\nxtask package: both installations work");
    Ok(())
}

/// The prefix of an installation.
#[derive(Debug)]
struct Prefix(PathBuf);

impl Prefix {
    fn library_dir(&self) -> PathBuf {
        self.0.join("lib")
    }

    fn plugin_dir(&self) -> PathBuf {
        self.library_dir().join("gstreamer-1.0")
    }

    fn cargo(&self, verb: &str, dir: &Path) -> Command {
        let mut command = cargo();
        command.args([verb, "--package", "gst-plugin-xmem"]);
        command.args(["--locked", "--release"]);
        command.arg("--target-dir").arg(dir.join("build"));
        command.arg("--prefix").arg(&self.0);
        command.arg("--libdir").arg(self.library_dir());
        command
    }

    fn setup(&self, build: &Path) -> Command {
        let mut command = Command::new("meson");
        command.current_dir(root()).arg("setup");
        if build.join("build.ninja").exists() {
            command.arg("--reconfigure");
        }
        command.arg(build).arg("--prefix").arg(&self.0);
        command.args(["--libdir", "lib", "--default-library", "both"]);
        command
    }

    /// Checks that gst-inspect-1.0 finds and describes the plugin, and that a program can link it.
    fn check(&self, dir: &Path) -> Result {
        let plugin = self.plugin_dir().join("libgstxmem.so");
        let registry = self.0.join("registry.bin");
        for element in ["xmemsink", "xmemsrc"] {
            let mut inspect = Command::new("gst-inspect-1.0");
            inspect
                .arg(element)
                .env("GST_PLUGIN_PATH_1_0", self.plugin_dir())
                .env("GST_REGISTRY_1_0", &registry);
            let shown = output(&mut inspect)?;
            let path = plugin.display().to_string();
            if !shown.contains(&path) {
                return Err(format!("{element} does not come from {path}: {shown}").into());
            }
        }

        let symbols = output(Command::new("nm").arg(self.plugin_dir().join("libgstxmem.a")))?;
        if symbols.contains("5fault5armed") {
            return Err("the library that is shipped has fault points".into());
        }

        let dirs = output(&mut self.pkg_config(&["--variable=libdir", "gstxmem"]))?;
        if Path::new(dirs.trim()) != self.library_dir() {
            return Err(format!(
                "gstxmem.pc names {dirs} instead of {:?}",
                self.library_dir()
            )
            .into());
        }
        let flags = output(&mut self.pkg_config(&["--cflags", "--libs", "gstreamer-1.0"]))?;
        let libraries = output(&mut self.pkg_config(&["--libs", "--static", "gstxmem"]))?;
        // The folder has the shared and the static library. The test needs the static one.
        let archive = "-l:libgstxmem.a";
        let libraries = libraries.split_whitespace().map(|word| match word {
            "-lgstxmem" => archive,
            word => word,
        });
        let program = dir.join("linked");
        let mut compile = Command::new("cc");
        compile.arg(root().join(LINKED)).arg("-o").arg(&program);
        compile.args(libraries).args(flags.split_whitespace());
        output(&mut compile)?;
        let mut linked = Command::new(program);
        // Without GST_PLUGIN_PATH the program has only the linked plugin.
        linked
            .env("GST_REGISTRY_1_0", &registry)
            .env("GST_PLUGIN_PATH_1_0", "");
        output(&mut linked)?;
        Ok(())
    }

    /// Checks that the command `xmem` runs and that its files are installed.
    fn check_command(&self) -> Result {
        output(Command::new(self.0.join("bin/xmem")).arg("--version"))?;
        for file in [
            "share/bash-completion/completions/xmem.bash",
            "share/zsh/site-functions/_xmem",
            "share/fish/vendor_completions.d/xmem.fish",
            "share/man/man1/xmem.1",
            "share/man/man1/xmem-share.1",
            "lib/systemd/system/xmem-share@.service",
            "lib/systemd/user/xmem-camera@.service",
        ] {
            if !self.0.join(file).exists() {
                return Err(format!("{}: {file} is not installed", self.0.display()).into());
            }
        }
        Ok(())
    }

    fn pkg_config(&self, args: &[&str]) -> Command {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.library_dir().join("pkgconfig"));
        command.args(args);
        command
    }
}
