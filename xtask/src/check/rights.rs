// SPDX-License-Identifier: MPL-2.0

//! The users with whose rights test programs run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, root, temp_dir};

/// The user with whose rights a test program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Rights {
    /// Your rights
    Me,
    /// The rights of an ordinary user with a separate home directory (needs root)
    User,
    /// The rights of root in a container without capabilities, where no namespaces can be created
    Container,
}

impl Rights {
    /// The suffix of a step's name.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Me => "",
            Self::User => ", as a user",
            Self::Container => ", in a container",
        }
    }

    fn before(self) -> Option<[String; 3]> {
        let kind = match self {
            Self::Me => return None,
            Self::User => "user",
            Self::Container => "container",
        };
        // An absolute path, because programs are started from different directories.
        let script = root().join("xtask/src/check/as.sh").display().to_string();
        Some(["sh".into(), script, kind.into()])
    }

    /// Cargo's arguments that run test programs with these rights.
    pub(crate) fn arguments(self) -> Vec<String> {
        let before = self.before();
        let runner = before.map(|before| ["--config".into(), runner(&before)]);
        runner.into_iter().flatten().collect()
    }

    /// A command that runs a program with these rights.
    pub(crate) fn program(self, program: &Path) -> Command {
        match self.before() {
            None => Command::new(program),
            Some([shell, rest @ ..]) => {
                let mut command = Command::new(shell);
                command.args(rest).arg(program);
                command
            }
        }
    }

    /// The reason why a program cannot run with these rights.
    pub(super) fn obstacle(self, program: &Path, home: &Home) -> Option<String> {
        if self == Self::Me {
            return None;
        }
        let run = |test: &[&str]| {
            let mut command = self.program(Path::new(test[0]));
            command.args(&test[1..]).env(Home::VARIABLE, home.of(self));
            let output = command.output();
            output.map_or_else(
                |error| Some(error.to_string()),
                |output| {
                    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    (!output.status.success()).then_some(message)
                },
            )
        };
        if let Some(message) = run(&["true"]) {
            return Some(message.replace('\n', "; "));
        }
        let path = program.display().to_string();
        run(&["test", "-x", &path])
            .map(|_| format!("the user has no access to {path} or to a folder above it"))
    }
}

/// Cargo's setting for the runner of test programs.
pub(crate) fn runner(words: &[String]) -> String {
    // A JSON list of strings is also a TOML list.
    format!("target.'cfg(unix)'.runner={}", serde_json::json!(words))
}

/// The home directories of the other users. They are removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Home(PathBuf);

impl Home {
    /// The variable that gives the home directory to the script.
    pub(super) const VARIABLE: &str = "XMEM_TEST_HOME";

    pub(crate) fn new() -> Result<Self> {
        // The path is short, because the path of a socket is limited to 108 bytes.
        let dir = temp_dir().join(format!("xmem-home-{}", std::process::id()));
        std::fs::create_dir(&dir)
            .map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        Ok(Self(dir))
    }

    pub(super) fn of(&self, rights: Rights) -> PathBuf {
        self.0.join(format!("{rights:?}"))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}
