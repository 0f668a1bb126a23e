// SPDX-License-Identifier: MPL-2.0

//! For tests: a machine with stand-in devices, and commands that use them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::trace;

const FILE: &str = "libxmem_cuda_standin.so";

/// With the variable XMEM_CUDA_REAL, tests use the installed driver and devices. A test that needs the stand-in then fails with a
/// message that begins with this text.
const ONLY_HERE: &str = "ONLY ON THE STAND-IN";

/// A folder with a driver and the state of its devices. The folder is in a temporary folder of the test, which removes it.
#[derive(Debug, Clone)]
pub struct Machine {
    dir: PathBuf,
    variables: BTreeMap<String, String>,
}

impl Machine {
    /// Creates a machine in a new folder `dir`.
    ///
    /// # Panics
    ///
    /// If the library was not built, or the folder cannot be created.
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
                // Processes of other users can use the devices, as with real ones.
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

    /// Ends a test if the devices are real ones.
    ///
    /// # Panics
    ///
    /// If the devices are real ones. `gpu/run` counts the test as not applicable.
    #[track_caller]
    pub fn only_here(&self, why: &str) {
        assert!(!Self::is_real(), "{ONLY_HERE}: {why}");
    }

    /// Sets a variable from the documentation of `settings.rs`, without the prefix `XMEM_STANDIN_`: `machine.with("DEVICES", 1)`.
    /// It applies to commands that are prepared afterwards.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.only_here("settings of the devices");
        self.variables
            .insert(format!("XMEM_STANDIN_{name}"), value.to_string());
        self
    }

    /// Simulates an older driver without these functions. They are renamed in a copy of the library.
    ///
    /// # Panics
    ///
    /// If the library has no such function, or the copy cannot be written.
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

    /// The machine's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Prepares a command to use this machine's devices.
    pub fn prepare(&self, command: &mut Command) {
        command.envs(self.environment());
    }

    /// The variables that [`Machine::prepare`] sets.
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

    /// The number of calls of each function by a process, by name. The process may have ended.
    pub fn calls(&self, process: u32) -> BTreeMap<String, u64> {
        self.only_here("counts of calls");
        trace::read(&self.dir, process)
    }

    /// Forbidden calls, one per line: calls of the driver in a host function.
    pub fn violations(&self) -> Vec<String> {
        self.log("violations")
    }

    /// Operations that put a context in error, one per line.
    pub fn errors(&self) -> Vec<String> {
        self.only_here("operations that failed");
        self.log("errors")
    }

    fn log(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Stops all streams of all processes, or of one process, before their next operation, until the guard is dropped. Work that
    /// the program does not wait for is then certainly late, without timing. Streams of real devices stop where the program checks
    /// [`is_held`].
    ///
    /// # Panics
    ///
    /// If the machine's folder does not exist.
    pub fn hold(&self, process: Option<u32>) -> Hold {
        let name = process.map_or("hold".to_owned(), |process| format!("hold-{process}"));
        let path = self.dir.join(name);
        std::fs::write(&path, "").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Hold { path }
    }

    /// The number of bytes of device memory in use by all processes. `device` is the machine's ordinal.
    pub fn used_memory(&self, device: u32) -> u64 {
        self.only_here("memory of all processes");
        crate::files::used_memory(&self.dir, device)
    }
}

/// Whether streams of this process are stopped.
pub(crate) fn is_held_in(dir: &Path) -> bool {
    dir.join("hold").exists() || dir.join(format!("hold-{}", std::process::id())).exists()
}

/// Whether a test has stopped the streams of this process ([`Machine::hold`]). For real devices, the caller must then wait.
pub fn is_held() -> bool {
    crate::settings::dir().is_some_and(|dir| is_held_in(&dir))
}

/// Streams are stopped while this value exists.
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

/// The path of the library: next to the test program, or `XMEM_STANDIN_LIBRARY`.
fn library() -> PathBuf {
    let named = std::env::var_os("XMEM_STANDIN_LIBRARY").map(PathBuf::from);
    let program = std::env::current_exe().unwrap_or_default();
    // Test programs are in `deps`. Other programs are in its parent folder, where the library may be an older copy.
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
