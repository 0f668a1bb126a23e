// SPDX-License-Identifier: MPL-2.0

//! Who may join a pool. The kernel says who asks; it is decided before anything is shared.

use std::fs;
use std::os::fd::AsFd;

use crate::error::CreateError;
use crate::os::cred::{self, Peer, own_uid};

#[derive(Debug, Clone)]
pub(super) struct Access {
    /// Permissions of the socket.
    pub(super) mode: u32,
    pub(super) group: Option<String>,
    pub(super) allow_uids: Vec<u32>,
    /// `group` as a number.
    gid: Option<u32>,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            mode: 0o600,
            group: None,
            allow_uids: Vec::new(),
            gid: None,
        }
    }
}

impl Access {
    /// Whether users other than this one and root may join.
    pub(super) fn admits_others(&self) -> bool {
        self.mode & 0o022 != 0 || !self.allow_uids.is_empty()
    }

    /// Finds the group's number.
    pub(super) fn resolve_group(&mut self) -> Result<(), CreateError> {
        let Some(group) = &self.group else {
            return Ok(());
        };
        let by_name = || {
            let file = fs::read_to_string("/etc/group").ok()?;
            file.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
            })
        };
        self.gid = group.parse().ok().or_else(by_name);
        if self.gid.is_none() {
            return Err(CreateError::Settings(format!(
                "there is no group {group:?}: give a group's name from /etc/group, or its number"
            )));
        }
        Ok(())
    }

    /// The group that the socket is to have, if one was asked for.
    pub(super) fn gid(&self) -> Option<u32> {
        self.gid
    }

    /// Whether this peer may join. `Err`: why not.
    pub(super) fn check(&self, socket: impl AsFd, peer: Peer) -> Result<(), String> {
        let uid = peer.uid;
        if uid == own_uid() || uid == 0 || self.allow_uids.contains(&uid) || self.mode & 0o002 != 0
        {
            return Ok(());
        }
        if self.mode & 0o020 != 0 {
            let gid = self
                .gid
                .unwrap_or_else(|| rustix::process::getegid().as_raw());
            // The kernel tells the main group only; the others have to be asked for.
            if peer.gid == gid || cred::peer_groups(&socket).contains(&gid) {
                return Ok(());
            }
        }
        Err(format!(
            "user {uid} may not join this pool: its producer decides who may (socket-mode)"
        ))
    }
}
