// SPDX-License-Identifier: MPL-2.0

//! Installs packages with apt-get. The output of apt-get is shown only if it fails.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::Result;
use crate::step::run_quietly;

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// apt-get, run as root.
#[derive(Debug)]
pub(crate) struct AptGet {
    sudo: bool,
}

impl AptGet {
    /// `Err` gives the reason why apt-get cannot be used.
    pub(crate) fn find() -> Result<Self> {
        let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
        if !is_there("apt-get") {
            return Err("There is no apt-get on this machine.".into());
        }
        let sudo = !is_root();
        if sudo && !is_there("sudo") {
            return Err("You are not root, and there is no sudo.".into());
        }
        Ok(Self { sudo })
    }

    /// The arguments of apt-get that install these packages.
    pub(crate) fn install_words<'a>(packages: &[&'a str]) -> Vec<&'a str> {
        [&["install", "--yes", "--no-install-recommends"], packages].concat()
    }

    /// Prints the size of these packages and installs them.
    pub(crate) fn install(&self, packages: &[&str]) -> Result {
        if self.sudo {
            // Run sudo first, so that it can ask for a password. `run_quietly` hides the prompt.
            println!("Some packages are missing. They are installed with sudo.");
            Command::new("sudo").arg("true").status()?;
        }
        // The package lists of a new machine may be missing or out of date. A failed source is not an error.
        let update = self.command(&["update"]);
        if let Err(error) = run_quietly("Getting the lists of packages", update) {
            println!("{error}");
        }
        let install = Self::install_words(packages);
        let size = size(&install).unwrap_or_else(|| packages.join(" "));
        run_quietly(&format!("Installing {size}"), self.command(&install))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(if self.sudo { "sudo" } else { "env" });
        if self.sudo {
            // sudo clears the environment, so `env` sets the variable.
            command.arg("env");
        }
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        command.args(args);
        command
    }
}

/// The number and the size of the packages that these arguments would install, as apt-get prints them.
fn size(install: &[&str]) -> Option<String> {
    let mut command = Command::new("apt-get");
    command.env("LC_ALL", "C").args(install).arg("--print-uris");
    let text = String::from_utf8(command.output().ok()?.stdout).ok()?;
    let line = |words: &str| text.lines().find(|line| line.contains(words));
    let new = line(" newly installed")?.split_once(" upgraded, ")?.1;
    let new = new.split(' ').next()?;
    let get = line("Need to get ")?.strip_prefix("Need to get ")?;
    let get = get.split_once(" of archives")?.0;
    let disk = line("After this operation, ")?.strip_prefix("After this operation, ")?;
    let disk = disk.split_once(" of additional")?.0;
    Some(format!("{new} packages: {get} to get, {disk} on disk"))
}

/// The Debian mirror that apt uses on this machine.
pub(crate) fn mirror() -> Result<String> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(LABEL) $(REPO_URI)"]);
    let text = command.output().map(|output| output.stdout);
    let text = String::from_utf8(text.unwrap_or_default())?;
    let mut mirrors = text.lines().filter_map(|line| line.strip_prefix("Debian "));
    let mirror = mirrors.next().ok_or(
        "apt uses no Debian mirror on this machine (`apt-get indextargets` lists none). A mirror is needed to install another \
         Debian release",
    )?;
    Ok(mirror.to_owned())
}
