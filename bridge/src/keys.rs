// SPDX-License-Identifier: MPL-2.0

//! The keys of messages. The number in them is that of the wire format.

use crate::Error;
use crate::wire::MAX_NAME;

/// The question for the names of the exported pools.
pub const POOLS: &str = "xmem/1/pools";

/// All that importers send.
pub const ALL_UP: &str = "xmem/1/pool/*/up";

/// To the exporter of a pool.
pub fn up(pool: &str) -> String {
    format!("xmem/1/pool/{pool}/up")
}

/// To one importer, besides the stream.
pub fn down(pool: &str, importer: u64) -> String {
    format!("xmem/1/pool/{pool}/down/{importer:016x}")
}

/// To one importer, the stream.
pub fn data(pool: &str, importer: u64) -> String {
    format!("xmem/1/pool/{pool}/data/{importer:016x}")
}

/// The pool in a key to an exporter.
pub fn pool(up: &str) -> Option<&str> {
    up.strip_prefix("xmem/1/pool/")?.strip_suffix("/up")
}

/// Whether a pool of this name can be carried: it becomes part of a key.
///
/// # Errors
///
/// The reason, if not.
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
    fn the_pool_is_found_in_a_key() {
        assert_eq!(pool(&up("cam0")), Some("cam0"));
        assert_eq!(pool("xmem/1/pool/cam0/down"), None);
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
