// SPDX-License-Identifier: MPL-2.0

//! The pools that frames were forwarded from.

use std::collections::VecDeque;

/// The maximum number of pools of origin that are announced to consumers.
const MAX_ORIGINS: usize = 8;

/// Pools of origin, each with its number and the path of its socket.
#[derive(Debug, Default)]
pub(in crate::producer) struct Origins(VecDeque<(u64, String)>);

impl Origins {
    /// Adds a pool of origin. Replaces an earlier one with the same socket. `false`: it is already known.
    pub(in crate::producer) fn add(&mut self, pool_id: u64, path: &str) -> bool {
        if self.path_of(pool_id).is_some() {
            return false;
        }
        // Of several pools that used a socket one after another, only the last exists.
        self.0.retain(|(_, known)| known != path);
        if self.0.len() == MAX_ORIGINS {
            self.0.pop_front();
        }
        self.0.push_back((pool_id, path.to_owned()));
        true
    }

    pub(in crate::producer) fn path_of(&self, pool_id: u64) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| *known == pool_id);
        found.map(|(_, path)| path.as_str())
    }

    /// All of them, the newest last.
    pub(in crate::producer) fn all(&self) -> Vec<(u64, String)> {
        self.0.iter().cloned().collect()
    }
}
