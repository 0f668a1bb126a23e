// SPDX-License-Identifier: MPL-2.0

//! For tests: a machine with stand-in devices, and commands that see them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::trace;

const FILE: &str = "libxmem_cuda_standin.so";

/// Set to any value, tests use the driver and the device that are there. Tests that need what only a stand-in can do fail
/// then, with this at the beginning of the message.
const ONLY_HERE: &str = "ONLY ON THE STAND-IN";

/// A folder that holds a driver and all state of its devices. It belongs to a temporary folder of the test, which removes
/// it; the machine itself removes nothing.
#[derive(Debug, Clone)]
pub struct Machine {
    dir: PathBuf,
    variables: BTreeMap<String, String>,
}

impl Machine {
    /// Make a machine in a new folder `dir`.
    ///
    /// # Panics
    ///
    /// When the library was not built, or the folder cannot be made: a test without its driver proves nothing.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        if Self::is_real() {
            std::fs::create_dir_all(&dir)
                .unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
            return Self {
                dir,
                variables: BTreeMap::new(),
            };
        }
        let library = library();
        let lib = dir.join("lib");
        let make = || -> io::Result<()> {
            for folder in [
                &dir,
                &lib,
                &dir.join("memory"),
                &dir.join("events"),
                &dir.join("trace"),
            ] {
                std::fs::create_dir_all(folder)?;
                // Consumers of other users see the devices too, as with real ones.
                std::fs::set_permissions(folder, Permissions::from_mode(0o777))?;
            }
            symlink(&library, lib.join("libcuda.so.1"))?;
            symlink("libcuda.so.1", lib.join("libcuda.so"))?;
            symlink("libcuda.so.1", lib.join("libnvcuvid.so.1"))
        };
        make().unwrap_or_else(|error| {
            panic!(
                "cannot make a stand-in machine in {}: {error}",
                dir.display()
            )
        });
        Self {
            dir,
            variables: BTreeMap::new(),
        }
    }

    /// Whether the devices are real ones: `XMEM_CUDA_REAL` is set.
    pub fn is_real() -> bool {
        std::env::var_os("XMEM_CUDA_REAL").is_some()
    }

    /// End a test here when the devices are real ones.
    ///
    /// # Panics
    ///
    /// Then; `gpu/run` counts the test as one that does not apply.
    #[track_caller]
    pub fn only_here(&self, why: &str) {
        assert!(!Self::is_real(), "{ONLY_HERE}: {why}");
    }

    /// Set one of the variables that the documentation of `settings.rs` lists, without its prefix `XMEM_STANDIN_`:
    /// `machine.with("DEVICES", 1)`. It holds for the commands that are prepared from now on.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.only_here("settings of the devices");
        self.variables
            .insert(format!("XMEM_STANDIN_{name}"), value.to_string());
        self
    }

    /// Make the driver older: these functions are not in it. They are renamed in a copy of the library.
    ///
    /// # Panics
    ///
    /// When a function is not there to begin with, or the copy cannot be written.
    #[must_use]
    pub fn without_symbols(self, names: &[&str]) -> Self {
        self.only_here("an older driver");
        let path = self.dir.join("lib/libcuda.so.1");
        let mut bytes =
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for name in names {
            let entry = [b"\0", name.as_bytes(), b"\0"].concat();
            let places = bytes
                .windows(entry.len())
                .enumerate()
                .filter(|(_, window)| *window == entry);
            let places = places.map(|(place, _)| place).collect::<Vec<_>>();
            assert!(!places.is_empty(), "the stand-in has no symbol {name}");
            for place in places {
                bytes[place + 1] = b'-';
            }
        }
        let replace = || -> io::Result<()> {
            std::fs::remove_file(&path)?;
            std::fs::write(&path, &bytes)
        };
        replace().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self
    }

    /// Where the machine is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Prepare a command to see this machine's devices.
    pub fn prepare(&self, command: &mut Command) {
        command.envs(self.environment());
    }

    /// The settings of [`Machine::prepare`].
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        if Self::is_real() {
            return vec![("XMEM_STANDIN_DIR".into(), self.dir.clone().into_os_string())];
        }
        let mut paths = self.dir.join("lib").into_os_string();
        if let Some(others) =
            std::env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty())
        {
            paths.push(":");
            paths.push(others);
        }
        let variables = self
            .variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        let own = [
            ("LD_LIBRARY_PATH".into(), paths),
            ("XMEM_STANDIN_DIR".into(), self.dir.clone().into_os_string()),
        ];
        own.into_iter().chain(variables).collect()
    }

    /// How often a process called each function so far, by name; it may be dead.
    pub fn calls(&self, process: u32) -> BTreeMap<String, u64> {
        self.only_here("counts of calls");
        trace::read(&self.dir, process)
    }

    /// Calls that no program may make, a line each: calls of the driver in a host function.
    pub fn violations(&self) -> Vec<String> {
        self.log("violations")
    }

    /// Operations that left a context in error, a line each.
    pub fn errors(&self) -> Vec<String> {
        self.only_here("operations that failed");
        self.log("errors")
    }

    fn log(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Stop all streams of all processes, or of one, before their next operation, until the guard is dropped. What was not
    /// waited for is then late for certain, without any clock. Streams of real devices stop where
    /// the program looks at [`is_held`].
    ///
    /// # Panics
    ///
    /// When the machine's folder is gone.
    pub fn hold(&self, process: Option<u32>) -> Hold {
        let name = process.map_or("hold".to_owned(), |process| format!("hold-{process}"));
        let path = self.dir.join(name);
        std::fs::write(&path, "").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Hold { path }
    }

    /// Bytes of device memory in use, by whichever process; `device` is the machine's ordinal.
    pub fn used_memory(&self, device: u32) -> u64 {
        self.only_here("memory of all processes");
        crate::files::used_memory(&self.dir, device)
    }
}

/// Whether streams of this process are blocked.
pub(crate) fn is_held_in(dir: &Path) -> bool {
    dir.join("hold").exists() || dir.join(format!("hold-{}", std::process::id())).exists()
}

/// Whether a test holds the streams of this process ([`Machine::hold`]); for those of real devices, which the caller has wait.
pub fn is_held() -> bool {
    crate::settings::dir().is_some_and(|dir| is_held_in(&dir))
}

/// Streams are blocked while it lives.
#[derive(Debug)]
#[must_use]
pub struct Hold {
    path: PathBuf,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The library, next to the test program that cargo built, or at `XMEM_STANDIN_LIBRARY`.
fn library() -> PathBuf {
    let named = std::env::var_os("XMEM_STANDIN_LIBRARY").map(PathBuf::from);
    let program = std::env::current_exe().unwrap_or_default();
    // Test programs are in `deps`, others one above, where an older copy may be.
    let near = program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|dir| [dir.join("deps").join(FILE), dir.join(FILE)]);
    let found = named.into_iter().chain(near).find(|path| path.is_file());
    let found = found.unwrap_or_else(|| {
        panic!(
            "{FILE} is not near {}: `cargo build -p xmem-cuda-standin` builds it, as do tests that depend on it",
            program.parent().unwrap_or(Path::new("")).display()
        )
    });
    found.canonicalize().unwrap_or(found)
}
