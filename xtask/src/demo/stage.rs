// SPDX-License-Identifier: MPL-2.0

//! A temporary directory for the demo, and an environment that restricts its processes to it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{Result, built_dir, temp_dir};

/// The name of the demo's pool.
pub(super) const POOL: &str = "demo";

/// Removes the directory when it is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    /// The path is short, because the path of a socket is limited to 108 bytes.
    dir: PathBuf,
    interrupted: Arc<AtomicBool>,
}

impl Stage {
    pub(crate) fn set_up() -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, interrupted.clone())?;
        }
        let dir = temp_dir().join(format!("xmem-demo-{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let stage = Self { dir, interrupted };

        // GStreamer scans all directories below the plugin path, so the whole build directory would take too long.
        fs::create_dir(stage.path("plugin"))?;
        let library = "libgstxmem.so";
        symlink(Self::built(library), stage.path("plugin").join(library))?;
        let output = stage.command("gst-inspect-1.0").arg("xmemsink").output()?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("GStreamer does not load the plugin: {stderr}").into());
        }
        Ok(stage)
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The path of a program that was built.
    pub(crate) fn built(name: impl AsRef<Path>) -> PathBuf {
        built_dir().join(name)
    }

    /// A command with an environment that finds the plugin, and only the demo's pools.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("XMEM_RUNTIME_DIR", &self.dir)
            // With the suffix, because GStreamer ignores the other variable where a user has set this one.
            .env("GST_PLUGIN_PATH_1_0", self.path("plugin"))
            // The user's plugin registry is not changed.
            .env("GST_REGISTRY_1_0", self.path("registry.bin"));
        command
    }

    pub(super) fn check_interrupt(&self) -> Result {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        Ok(())
    }

    /// Removes the directory. Returns its path if it still exists.
    pub(super) fn take_down(self) -> Option<String> {
        let dir = self.dir.clone();
        drop(self);
        dir.exists().then(|| dir.display().to_string())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // An error cannot be handled here. `take_down` checks whether the directory still exists.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
