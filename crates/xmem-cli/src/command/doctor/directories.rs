// SPDX-License-Identifier: MPL-2.0

//! Checks the runtime directory, its pools, and pools in other directories.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Access, access};
use xmem_core::ConnectError;
use xmem_core::discovery::{
    PoolEntry, check_runtime_dir, other_runtime_dirs, query_all, read_pools, runtime_dir,
    socket_path,
};

use super::finding::Finding;
use crate::pools::State;

const DIRECTORY: &str = "runtime directory";
const POOLS: &str = "pools";
/// A pool's name of usual length.
const EXAMPLE: &str = "camera0";

pub(super) fn check() -> Vec<Finding> {
    let mut findings = match read_pools() {
        Ok(pools) => vec![directory(&runtime_dir()), pools_here(&pools)],
        Err(error) => vec![Finding::problem(
            DIRECTORY,
            error.to_string(),
            "Set XMEM_RUNTIME_DIR in all processes to a directory that only you can write to",
        )],
    };
    findings.extend(pools_elsewhere());
    findings
}

fn directory(dir: &Path) -> Finding {
    let source = ["XMEM_RUNTIME_DIR", "XDG_RUNTIME_DIR"]
        .into_iter()
        .find(|name| {
            std::env::var_os(name).is_some_and(|value| !value.is_empty() && dir.starts_with(value))
        });
    let source = source.map_or_else(String::new, |name| format!(", from {name}"));
    let what = match fs::metadata(dir) {
        Ok(meta) => format!(
            "{}{source}: owner {}, mode {:o}",
            dir.display(),
            meta.uid(),
            meta.permissions().mode() & 0o7777
        ),
        Err(_) => format!(
            "{}{source}: does not exist; the first producer creates it",
            dir.display()
        ),
    };
    // A path has a maximum length.
    let fits = check_runtime_dir().and_then(|_| socket_path(EXAMPLE));
    let why_not = match fits {
        Err(error) => error.to_string(),
        Ok(_) if !is_writable(dir) => {
            "You may not write to it: set XMEM_RUNTIME_DIR to a directory that belongs to you"
                .to_owned()
        }
        Ok(_) => return Finding::ok(DIRECTORY, what),
    };
    let what = format!("{what}. You can read pools here, but not create any");
    Finding::warning(DIRECTORY, what, why_not)
}

/// Whether this user may create files in a directory, or create the directory.
fn is_writable(dir: &Path) -> bool {
    let existing = dir.ancestors().find(|it| it.exists());
    let existing = existing.unwrap_or(Path::new("."));
    access(existing, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

fn pools_here(pools: &[PoolEntry]) -> Finding {
    let (live, stale): (Vec<_>, Vec<_>) = pools.iter().partition(|pool| pool.live);
    let names: Vec<_> = live.iter().map(|pool| &pool.name).collect();
    let answers = query_all(&names);
    let silent = names.iter().zip(&answers);
    let silent: Vec<&str> = silent
        .filter(|(_, answer)| State::of(answer) == State::Silent)
        .map(|(name, _)| name.as_str())
        .collect();
    if !silent.is_empty() {
        let what = format!("no answer from the producer of {}", silent.join(", "));
        return Finding::warning(
            POOLS,
            what,
            "The process is stopped or hangs: continue or end it",
        );
    }
    let other: Vec<String> = answers
        .iter()
        .filter_map(|answer| match answer {
            Err(error @ ConnectError::OtherVersion { .. }) => Some(error.to_string()),
            _ => None,
        })
        .collect();
    if !other.is_empty() {
        let advice = "Until then, programs of this version can't read such a pool";
        return Finding::warning(POOLS, other.join("; "), advice);
    }
    let what = format!("{} with a producer", live.len());
    if stale.is_empty() {
        return Finding::ok(POOLS, what);
    }
    let what = format!("{what}, {} of killed producers", stale.len());
    Finding::ok(POOLS, what + "; `xmem clean` removes their files")
}

/// Looks for other runtime directories: a pool in another directory is not found by its name.
fn pools_elsewhere() -> Option<Finding> {
    let has_sockets = |dir: &Path| {
        let files = fs::read_dir(dir).into_iter().flatten().flatten();
        files.into_iter().any(|file| {
            let path = file.path();
            path.extension()
                .is_some_and(|extension| extension == "sock")
        })
    };
    let mut dirs = other_runtime_dirs();
    dirs.retain(|dir| has_sockets(dir));
    let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    (!dirs.is_empty()).then(|| {
        Finding::warning(
            POOLS,
            format!("there are also pools in {}", dirs.join(", ")),
            "To use them by name, set XMEM_RUNTIME_DIR to that directory",
        )
    })
}
