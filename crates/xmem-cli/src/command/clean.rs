// SPDX-License-Identifier: MPL-2.0

//! `xmem clean`

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;

use xmem_core::{RemoveError, printable};

use super::name_of;
use crate::Error;
use crate::cli::Format;
use crate::format::{json, to_stderr};

/// `pools`: by name or path. None: all of the runtime directory whose producer is gone, and segments whose producer is.
pub(crate) fn run(pools: &[OsString], format: Format, out: &mut impl Write) -> Result<(), Error> {
    let mut removed = Vec::new();
    let mut errors = Vec::new();
    if pools.is_empty() {
        let mut stale = xmem_core::read_pools()?;
        stale.retain(|pool| !pool.live);
        let sockets = stale.into_iter().map(|pool| pool.path);
        for path in sockets.chain(xmem_core::read_lone_locks()?) {
            if name_of(&path).is_none() {
                continue;
            }
            match remove(path.as_os_str(), &mut removed) {
                // It has a producer again.
                Err(RemoveError::Live { .. }) => {}
                // The user did not name these.
                Err(error @ (RemoveError::Foreign { .. } | RemoveError::NotAPools { .. })) => {
                    to_stderr(error);
                }
                Err(error) => errors.push(error),
                Ok(()) => {}
            }
        }
        // Of pools of which nothing else is left, wherever they were.
        removed.extend(xmem_core::remove_stale_segments());
    } else {
        let results = pools.iter().map(|pool| remove(pool, &mut removed));
        errors.extend(results.filter_map(Result::err));
    }
    match format {
        Format::Json => {
            let paths: Vec<_> = removed.iter().map(|path| path.to_string_lossy()).collect();
            json(out, &paths)?;
        }
        Format::Table if removed.is_empty() && errors.is_empty() => {
            writeln!(out, "nothing to remove")?;
        }
        Format::Table => {
            for path in &removed {
                writeln!(out, "removed {}", printable(&path.to_string_lossy()))?;
            }
        }
    }
    // Each error is printed here; the caller prints the last one.
    let last = errors.pop();
    for error in errors {
        to_stderr(error);
    }
    last.map_or(Ok(()), |error| Err(error.into()))
}

fn remove(pool: &OsStr, removed: &mut Vec<PathBuf>) -> Result<(), RemoveError> {
    removed.extend(xmem_core::remove_stale(pool)?);
    Ok(())
}
