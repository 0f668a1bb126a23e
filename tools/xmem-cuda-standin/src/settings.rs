// SPDX-License-Identifier: MPL-2.0

//! The machine's settings, from environment variables. [`crate::Machine`] sets them.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `XMEM_STANDIN_DIR` | folder of the machine; without it cuInit fails | |
//! | `XMEM_STANDIN_DEVICES` | number of devices | 2 |
//! | `XMEM_STANDIN_MEMORY` | memory of each device, in bytes | 1 GiB |
//! | `XMEM_STANDIN_DELAY_US` | delay of each operation on a stream, `min..max` in µs | `50..500` |
//! | `XMEM_STANDIN_SEED` | seed of the random delays | differs by process |
//! | `XMEM_STANDIN_FAIL_KERNEL` | number of the kernel that fails in each process, counted from 1 | none |
//! | `XMEM_STANDIN_QUIRKS` | names separated by commas, below | none |
//! | `CUDA_VISIBLE_DEVICES` | ordinals separated by commas, as for the driver | all |
//!
//! Quirks: `peers` (devices can access each other's memory), `already-mapped` (opening a handle again in the same context is an
//! error, as with older drivers), `no-legacy-ipc`, `no-ipc-events`, `no-vmm`, `no-posix-fd`, `no-vmm-read-only` (cuMemSetAccess
//! fails with PROT_READ), `no-stream-mem-ops`, `no-host-register`, `no-read-only-register`, `out-of-ipc-events` (no more can be
//! created), `no-imported-range` (cuMemGetAddressRange fails for imported memory), `no-pools` (no stream-ordered allocation),
//! `same-host-pointer` (registered memory has the same address on the device), `free-does-not-wait` (cuMemFree frees at once, so
//! work that still uses the memory fails).

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cudarc::driver::sys::CUresult;

use crate::entry::Outcome;
use crate::files::{self, Process};

#[derive(Debug)]
pub(crate) struct Settings {
    /// The machine's folder.
    pub(crate) dir: PathBuf,
    /// The visible devices. The index is the ordinal in this process, the value is the ordinal in the machine.
    pub(crate) devices: Vec<u32>,
    /// The memory of each device in bytes.
    pub(crate) memory: u64,
    /// The minimum and maximum delay of an operation, in µs.
    pub(crate) delay: (u64, u64),
    pub(crate) seed: u64,
    /// The number of the kernel that fails, counted from 1. 0: none.
    pub(crate) fail_kernel: u64,
    quirks: HashSet<String>,
    /// This process.
    pub(crate) process: Process,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();
static ENDED: AtomicBool = AtomicBool::new(false);
static PROCESS_ID: AtomicU32 = AtomicU32::new(0);

/// Whether cuInit has succeeded.
pub(crate) fn initialized() -> bool {
    SETTINGS.get().is_some()
}

/// Whether the process is exiting. Static destructors must not call the driver.
pub(crate) fn ended() -> bool {
    ENDED.load(Ordering::Relaxed)
}

/// Whether this process was forked after cuInit. CUDA cannot be used in it.
pub(crate) fn forked() -> bool {
    let process = PROCESS_ID.load(Ordering::Relaxed);
    process != 0 && process != std::process::id()
}

/// The settings. `entry::call` ensures that [`initialize`] was called.
pub(crate) fn settings() -> &'static Settings {
    SETTINGS
        .get()
        .expect("only functions that demand cuInit come here")
}

/// The machine's folder, also before cuInit.
pub(crate) fn dir() -> Option<PathBuf> {
    std::env::var_os("XMEM_STANDIN_DIR")
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from)
}

impl Settings {
    pub(crate) fn has(&self, quirk: &str) -> bool {
        self.quirks.contains(quirk)
    }

    /// Fails with NOT_SUPPORTED on a machine with this quirk.
    pub(crate) fn unless(&self, quirk: &str) -> Outcome {
        if self.has(quirk) {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        } else {
            Ok(())
        }
    }
}

extern "C" fn at_exit() {
    ENDED.store(true, Ordering::Relaxed);
}

/// Reads the environment once.
pub(crate) fn initialize() -> Outcome {
    if initialized() {
        return Ok(());
    }
    let Some(dir) = dir() else {
        eprintln!("xmem stand-in for CUDA: XMEM_STANDIN_DIR is not set, so there is no machine");
        return Err(CUresult::CUDA_ERROR_SYSTEM_NOT_READY);
    };
    for folder in ["memory", "events", "trace"] {
        std::fs::create_dir_all(dir.join(folder)).map_err(|error| {
            eprintln!(
                "xmem stand-in for CUDA: cannot make {folder} in {}: {error}",
                dir.display()
            );
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY
        })?;
    }
    let count = u32::try_from(number("XMEM_STANDIN_DEVICES", 2)).unwrap_or(u32::MAX);
    let mut devices = (0..count).collect::<Vec<_>>();
    if let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") {
        // As in the driver, an invalid ordinal ends the list.
        devices = visible
            .split(',')
            .map_while(|one| one.trim().parse().ok().filter(|one| *one < count))
            .collect();
    }
    if devices.is_empty() {
        return Err(CUresult::CUDA_ERROR_NO_DEVICE);
    }
    let process = Process::current();
    let settings = Settings {
        dir,
        devices,
        memory: number("XMEM_STANDIN_MEMORY", 1 << 30),
        delay: range("XMEM_STANDIN_DELAY_US", (50, 500)),
        seed: number("XMEM_STANDIN_SEED", files::random()),
        fail_kernel: number("XMEM_STANDIN_FAIL_KERNEL", 0),
        quirks: std::env::var("XMEM_STANDIN_QUIRKS")
            .unwrap_or_default()
            .split(',')
            .filter(|quirk| !quirk.is_empty())
            .map(str::to_owned)
            .collect(),
        process,
    };
    PROCESS_ID.store(std::process::id(), Ordering::Relaxed);
    if SETTINGS.set(settings).is_ok() {
        // SAFETY: a function without arguments that stays loaded, because the driver is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
    Ok(())
}

fn number(name: &str, default: u64) -> u64 {
    let Ok(value) = std::env::var(name) else {
        return default;
    };
    value
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("{name}={value}: not a number"))
}

fn range(name: &str, default: (u64, u64)) -> (u64, u64) {
    let Ok(value) = std::env::var(name) else {
        return default;
    };
    let parse = |text: &str| text.trim().parse::<u64>().ok();
    match value
        .split_once("..")
        .map(|(from, to)| (parse(from), parse(to)))
    {
        Some((Some(from), Some(to))) if from <= to => (from, to),
        _ => panic!("{name}={value}: not min..max"),
    }
}
