// SPDX-License-Identifier: MPL-2.0

//! Bounds on the descriptors that wait in sockets until the peer reads them.
//!
//! The kernel counts a user's descriptors in flight, over all processes of the user. Past RLIMIT_NOFILE none of them can send a
//! descriptor (ETOOMANYREFS), unless it has CAP_SYS_RESOURCE or CAP_SYS_ADMIN. A descriptor is in flight until the peer reads it
//! or closes its socket; closing this end changes nothing. Without bounds a consumer of another user, which only had to stop
//! reading, could thus cut this user off from every pool.
//!
//! Root and this user are exempt: they can use up the limit without any pool.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Resource, getrlimit};
use xmem_shm::os::cred;
use xmem_shm::os::fork::KeptFromChildren;

use super::{Connection, ControlThread};

/// Less than the kernel counts for any message, in bytes.
const LESS_THAN_A_MESSAGE: usize = 512;
/// The limit to share out, where RLIMIT_NOFILE is not lower: a higher one would let peers cost this process more sockets.
const MAX_LIMIT: u64 = 1024;
/// One user may have this part of the limit, and all other users together that.
const OF_ONE_USER: u64 = 8;
const OF_ALL_USERS: u64 = 4;

/// The descriptors sent to a peer since its queue was last seen empty.
#[derive(Debug, Default)]
pub(super) struct InFlight(Cell<u64>);

impl InFlight {
    pub(super) fn add(&self, descriptors: usize) {
        self.0.set(self.0.get() + descriptors as u64);
    }

    fn count(&self, socket: impl AsFd) -> u64 {
        if cred::unread(socket).is_ok_and(|bytes| bytes < LESS_THAN_A_MESSAGE) {
            self.0.set(0);
        }
        self.0.get()
    }
}

/// A connection that is over, with descriptors that its peer has not read. The socket is kept, to see when they are read.
#[derive(Debug)]
pub(super) struct Unread {
    _kept: KeptFromChildren,
    socket: OwnedFd,
    uid: u32,
    in_flight: InFlight,
}

fn is_exempt(uid: u32) -> bool {
    uid == 0 || uid == cred::own_uid()
}

impl ControlThread {
    /// Whether the peer may be sent descriptors now: not if its user leaves too many unread.
    pub(super) fn check_in_flight(&self, connection: &Connection) -> io::Result<()> {
        let uid = connection.peer.uid;
        if is_exempt(uid) {
            return Ok(());
        }
        let open = self.connections.values();
        let open = open.map(|open| (open.peer.uid, &open.in_flight, &open.socket));
        let unread = self.unread.values();
        let unread = unread.map(|unread| (unread.uid, &unread.in_flight, &unread.socket));
        let (mut of_user, mut of_all) = (0, 0);
        for (other, in_flight, socket) in open.chain(unread) {
            if !is_exempt(other) {
                let count = in_flight.count(socket);
                of_all += count;
                of_user += if other == uid { count } else { 0 };
            }
        }
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(MAX_LIMIT, |limit| limit.min(MAX_LIMIT));
        if of_user < limit / OF_ONE_USER && of_all < limit / OF_ALL_USERS {
            return Ok(());
        }
        let reason = format!(
            "{of_user} descriptors for processes of user {uid}, and {of_all} for those of all other users, wait to be read"
        );
        Err(io::Error::new(io::ErrorKind::WouldBlock, reason))
    }

    /// Ends a connection. Its socket stays open for as long as the peer leaves descriptors in it unread.
    pub(super) fn end_connection(&mut self, id: u64, connection: Connection) {
        let unread = Unread {
            _kept: connection._kept,
            socket: connection.socket,
            uid: connection.peer.uid,
            in_flight: connection.in_flight,
        };
        if is_exempt(unread.uid) || unread.in_flight.count(&unread.socket) == 0 {
            return;
        }
        let _ = shutdown(&unread.socket, Shutdown::Both);
        // It becomes writable when the peer reads, and when the peer closes its end.
        let flags = EventFlags::OUT | EventFlags::ET;
        if epoll::add(&self.epoll, &unread.socket, EventData::new_u64(id), flags).is_ok() {
            self.unread.insert(id, unread);
        }
    }

    /// Closes the socket of a connection that is over if the peer has read all.
    pub(super) fn look_at_unread(&mut self, id: u64) {
        let unread = self.unread.get(&id);
        if unread.is_some_and(|unread| unread.in_flight.count(&unread.socket) == 0) {
            self.unread.remove(&id);
        }
    }
}
