// SPDX-License-Identifier: MPL-2.0

//! `xmem plugin`, with the command and the plugin in folders as pip installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::{stderr, stdout};

const FILE: &str = "libgstxmem.so";

struct Environment(TempDir);

impl Environment {
    fn new() -> Self {
        let environment = Self(TempDir::new().unwrap());
        let program = environment.path("bin/xmem");
        fs::create_dir(program.parent().unwrap()).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_xmem"), program).unwrap();
        environment
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// A program that has only this user's plugins and those of the system.
    fn run(&self, program: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(args).env("XDG_DATA_HOME", self.path("data"));
        command.env("GST_REGISTRY_1_0", self.path("registry"));
        command
            .env_remove("GST_PLUGIN_PATH")
            .env_remove("GST_PLUGIN_PATH_1_0");
        command.output().unwrap()
    }

    fn xmem(&self, args: &[&str]) -> Output {
        self.run(&self.path("bin/xmem"), args)
    }

    /// The file of the plugin that GStreamer finds.
    fn found(&self) -> Option<String> {
        let inspected = self.run(Path::new("gst-inspect-1.0"), &["xmem"]);
        let text = String::from_utf8(inspected.stdout).unwrap();
        let file = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Filename"))?;
        Some(file.trim().to_owned())
    }
}

#[test]
fn gstreamer_finds_the_plugin_between_install_and_remove() {
    let environment = Environment::new();
    let own = environment.path("lib/gstreamer-1.0");
    let without = environment.xmem(&["plugin", "install"]);
    assert!(
        stderr(&without).contains("was installed without a plugin"),
        "{without:?}"
    );

    let program = std::env::current_exe().unwrap();
    let built = program.ancestors().nth(2).unwrap().join(FILE);
    assert!(
        built.exists(),
        "no {}: run `cargo build -p gstxmem-cdylib`",
        built.display()
    );
    fs::create_dir_all(&own).unwrap();
    fs::copy(built, own.join(FILE)).unwrap();
    let path = environment.xmem(&["plugin", "path"]);
    assert_eq!(Path::new(stdout(&path).trim_end()), own);

    let link = environment.path("data/gstreamer-1.0/plugins").join(FILE);
    // The second time, the link is there.
    for _ in 0..2 {
        let installed = environment.xmem(&["plugin", "install"]);
        assert!(stdout(&installed).starts_with(link.to_str().unwrap()));
    }
    assert_eq!(environment.found().as_deref(), link.to_str());
    // The command's own plugin goes first. It needs no link.
    assert!(stdout(&environment.xmem(&["plugin", "remove"])).starts_with("removed"));
    assert_ne!(environment.found().as_deref(), link.to_str());
    let doctor = environment.xmem(&["doctor"]);
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains(own.to_str().unwrap()), "{doctor}");
    assert!(stdout(&environment.xmem(&["plugin", "remove"])).starts_with("there is no"));

    fs::write(&link, "of the user").unwrap();
    for action in ["install", "remove"] {
        let refused = environment.xmem(&["plugin", action]);
        assert!(
            stderr(&refused).contains("was not created by"),
            "{refused:?}"
        );
    }
    assert_eq!(fs::read_to_string(link).unwrap(), "of the user");
}
