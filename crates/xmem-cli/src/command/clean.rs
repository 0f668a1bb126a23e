// SPDX-License-Identifier: MPL-2.0

//! `xmem clean`

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;

use xmem_core::RemoveError;
use xmem_core::discovery::printable;

use crate::Error;
use crate::cli::Format;
use crate::format::{json, to_stderr};

/// `pools` are names or paths. Empty: all pools of the runtime directory without a producer, and all segments without one.
pub(crate) fn run(pools: &[OsString], format: Format, out: &mut impl Write) -> Result<(), Error> {
    let mut removed = Vec::new();
    let mut errors = Vec::new();
    if pools.is_empty() {
        let mut stale = xmem_core::discovery::read_pools()?;
        stale.retain(|pool| !pool.live);
        let sockets = stale.into_iter().map(|pool| pool.path);
        for path in sockets.chain(xmem_core::discovery::read_locks()?) {
            if xmem_core::discovery::socket_path(&path).is_err() {
                continue;
            }
            match remove(path.as_os_str(), &mut removed) {
                // A new producer was started meanwhile.
                Err(RemoveError::Live { .. }) => {}
                // Not an error, because the user did not name the pool.
                Err(error @ (RemoveError::Foreign { .. } | RemoveError::NotAPools { .. })) => {
                    to_stderr(error);
                }
                Err(error) => errors.push(error),
                Ok(()) => {}
            }
        }
        // Segments of pools whose other files are already removed. Their runtime directory is not known.
        removed.extend(xmem_core::discovery::remove_stale_segments());
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
    // Prints all errors except for the last one, which the caller prints.
    let last = errors.pop();
    for error in errors {
        to_stderr(error);
    }
    last.map_or(Ok(()), |error| Err(error.into()))
}

fn remove(pool: &OsStr, removed: &mut Vec<PathBuf>) -> Result<(), RemoveError> {
    removed.extend(xmem_core::discovery::remove_stale(pool)?);
    Ok(())
}
