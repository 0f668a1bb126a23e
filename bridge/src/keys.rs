// SPDX-License-Identifier: MPL-2.0

//! The Zenoh keys of messages. The number in a key is the version of the wire format.

use crate::Error;
use crate::wire::MAX_NAME;

/// The key of the query for the names of the exported pools.
pub const POOLS: &str = "xmem/2/pools";

/// A key expression that matches all messages of importers.
pub const ALL_UP: &str = "xmem/2/pool/*/up";

/// The beginning of the keys of a pool.
const POOL: &str = "xmem/2/pool/";

/// The key of messages to the exporter of a pool.
pub fn up(pool: &str) -> String {
    format!("{POOL}{pool}/up")
}

/// The key of messages to one importer that are not part of the stream.
pub fn down(pool: &str, importer: u64) -> String {
    format!("{POOL}{pool}/down/{importer:016x}")
}

/// The key of the stream to one importer.
pub fn data(pool: &str, importer: u64) -> String {
    format!("{POOL}{pool}/data/{importer:016x}")
}

/// The name of the pool in a key that [`up`] returned. `None` for other keys.
pub fn pool(up: &str) -> Option<&str> {
    up.strip_prefix(POOL)?.strip_suffix("/up")
}

/// Checks that a pool's name can be part of a key.
///
/// # Errors
///
/// If the name is empty, is too long, or contains another character than letters, digits, `-`, `_` and `.`.
pub fn check_name(pool: &str) -> Result<(), Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if pool.is_empty() || pool.len() > MAX_NAME || !pool.chars().all(is_plain) {
        let text =
            "has to be 1 to 64 letters, digits, '-', '_' and '.' to be carried to another host";
        return Err(format!("the pool name {pool:?} {text}").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_contain_the_version_of_the_wire_format() {
        let version = format!("xmem/{}/", crate::wire::VERSION);
        for key in [POOLS, ALL_UP, POOL] {
            assert!(key.starts_with(&version), "{key}");
        }
    }

    #[test]
    fn the_pool_is_found_in_a_key() {
        assert_eq!(pool(&up("cam0")), Some("cam0"));
        assert_eq!(pool("xmem/2/pool/cam0/down"), None);
    }

    #[test]
    fn names_that_would_be_other_keys_are_refused() {
        assert!(check_name("cam-0_a.b").is_ok());
        for name in [
            "",
            "*",
            "a/b",
            "a$*",
            "a?b",
            "a#",
            "\u{fc}",
            &"a".repeat(65),
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
