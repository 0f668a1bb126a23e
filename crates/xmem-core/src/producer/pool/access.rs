// SPDX-License-Identifier: MPL-2.0

//! Access rules of a pool. They are checked by the kernel's credentials of the connecting process, before anything is shared.

use std::fs;
use std::os::fd::AsFd;

use xmem_shm::os::cred::{self, NOBODY, Peer, own_uid};

use crate::error::CreateError;

#[derive(Debug, Clone)]
pub(in crate::producer) struct Access {
    /// Permissions of the socket: the users that may join, besides this user and root.
    pub(in crate::producer) mode: u32,
    pub(in crate::producer) group: Option<String>,
    pub(in crate::producer) allow_uids: Vec<u32>,
    /// The number of `group`.
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
    pub(in crate::producer) fn admits_others(&self) -> bool {
        self.mode & 0o022 != 0 || !self.allow_uids.is_empty()
    }

    /// Resolves the group's number. Refuses settings that would admit more users than intended.
    pub(in crate::producer) fn resolve(&mut self) -> Result<(), CreateError> {
        if self.allow_uids.contains(&NOBODY) {
            return Err(CreateError::Settings(format!(
                "allow-uids contains {NOBODY}, which is not a user: write numbers of users, for example 1000"
            )));
        }
        if self.mode & 0o002 != 0 && !self.allow_uids.is_empty() {
            return Err(CreateError::Settings(format!(
                "socket-mode {:04o} admits every user, so allow-uids would have no effect: \
                 set socket-mode to 0600 or 0660, or leave allow-uids empty",
                self.mode
            )));
        }
        if !self.allow_uids.is_empty() && !cred::identifies_peers().unwrap_or(true) {
            return Err(CreateError::Settings(
                "allow-uids: this system does not report the user of a connection (old versions of gVisor), so every user \
                 would be admitted: use socket-mode and socket-group"
                    .into(),
            ));
        }
        let mut users = self.allow_uids.iter().copied().chain([own_uid()]);
        let ambiguous = users.find(|uid| cred::is_ambiguous_user(*uid));
        if let (Some(uid), false) = (ambiguous, self.allow_uids.is_empty()) {
            return Err(CreateError::Settings(format!(
                "allow-uids: in this user namespace {uid} is the number of every user that the namespace does not map, so all of \
                 them would be admitted: run this process as another user, and list other users"
            )));
        }
        let Some(group) = &self.group else {
            return Ok(());
        };
        self.gid = group_number(group).filter(|gid| *gid != NOBODY);
        if self.gid.is_none() {
            return Err(CreateError::Settings(format!(
                "socket-group: there is no group {group:?}: give a group's name from /etc/group, or its number"
            )));
        }
        if self.mode & 0o020 == 0 {
            return Err(CreateError::Settings(format!(
                "socket-mode {:04o} does not let the socket-group {group:?} in: set socket-mode to 0660",
                self.mode
            )));
        }
        Ok(())
    }

    /// The group for the socket, if one was set.
    pub(in crate::producer) fn gid(&self) -> Option<u32> {
        self.gid
    }

    /// Permissions of the socket's file. A file has no list of users, so with `allow_uids` all users may connect, and `check`
    /// refuses the others.
    pub(in crate::producer) fn file_mode(&self) -> u32 {
        if self.allow_uids.is_empty() {
            self.mode
        } else {
            self.mode | 0o022
        }
    }

    /// Whether this peer of a socket may join. `group`: the group that owns the socket's file. `Err`: the reason.
    pub(in crate::producer) fn check(
        &self,
        socket: impl AsFd,
        peer: Peer,
        group: u32,
    ) -> Result<(), String> {
        let uid = peer.uid;
        if uid == NOBODY {
            // The kernel does not know the user here. But the file's mode allowed the peer to connect.
            return Ok(());
        }
        if uid == own_uid() || uid == 0 || self.allow_uids.contains(&uid) || self.mode & 0o002 != 0
        {
            return Ok(());
        }
        // Without a list of users, the file's mode has checked the group.
        let is_known = self.allow_uids.is_empty() || !cred::is_ambiguous_group(group);
        // The credentials contain only the main group. The other groups need another call.
        if self.mode & 0o020 != 0
            && is_known
            && (peer.gid == group || cred::peer_groups(&socket).contains(&group))
        {
            return Ok(());
        }
        Err(format!(
            "user {uid} may not join this pool: its producer decides which users may (socket-mode, socket-group, allow-uids)"
        ))
    }
}

/// The number of a group that is given by name or number.
fn group_number(group: &str) -> Option<u32> {
    if !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()) {
        return group.parse().ok();
    }
    let file = fs::read_to_string("/etc/group").ok()?;
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
    })
}
