// SPDX-License-Identifier: MPL-2.0

//! What peers may use up: descriptors that are in sockets until the peer reads them, and lines of the log. Any number of peers can
//! connect again and again.
//!
//! The kernel counts the descriptors in flight of each user, over all its processes. Above RLIMIT_NOFILE none of the processes
//! can send a descriptor (ETOOMANYREFS), unless it has CAP_SYS_RESOURCE or CAP_SYS_ADMIN. A descriptor is in flight until the
//! peer reads it or closes its socket; closing this end has no effect. Without limits, a consumer of another user that stops
//! reading could prevent this user from using any pool.
//!
//! Root and this user are exempt, because they can use up the limit without a pool.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Resource, getrlimit};
use xmem_shm::os::cred;
use xmem_shm::os::fork::KeptFromChildren;

use super::listener::PeerSocket;
use super::{Connection, ControlThread};

/// A lower bound for the bytes that the kernel counts for any message.
const LESS_THAN_A_MESSAGE: usize = 512;
/// An upper bound for the limit that is shared out, because a higher RLIMIT_NOFILE would let peers use up more sockets of this
/// process.
const MAX_LIMIT: u64 = 1024;
/// One user may use 1/8 of the limit, all other users together 1/4.
const OF_ONE_USER: u64 = 8;
const OF_ALL_USERS: u64 = 4;

/// The descriptors sent to a peer since its queue was last empty.
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

/// A closed connection whose peer has not read all descriptors. The socket is kept open, to detect when it has.
#[derive(Debug)]
pub(super) struct Unread {
    _kept: KeptFromChildren,
    socket: PeerSocket,
    uid: u32,
    in_flight: InFlight,
}

impl ControlThread {
    /// Fails if the peer may not be sent descriptors now, because its user leaves too many unread.
    pub(super) fn check_in_flight(&self, connection: &Connection) -> io::Result<()> {
        let uid = connection.peer.uid;
        if cred::is_own_or_root(uid) {
            return Ok(());
        }
        let open = self.connections.values();
        let open = open.map(|open| (open.peer.uid, &open.in_flight, &open.socket));
        let unread = self.unread.values();
        let unread = unread.map(|unread| (unread.uid, &unread.in_flight, &unread.socket));
        let (mut of_user, mut of_all) = (0, 0);
        for (other, in_flight, socket) in open.chain(unread) {
            if !cred::is_own_or_root(other) {
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

    /// Ends a connection. Its socket stays open until the peer has read or closed its end.
    pub(super) fn end_connection(&mut self, id: u64, connection: Connection) {
        let unread = Unread {
            _kept: connection._kept,
            socket: connection.socket,
            uid: connection.peer.uid,
            in_flight: connection.in_flight,
        };
        if cred::is_own_or_root(unread.uid) || unread.in_flight.count(&unread.socket) == 0 {
            return;
        }
        // The socket becomes writable when the peer reads or closes its end.
        let flags = EventFlags::OUT | EventFlags::ET;
        if epoll::add(&self.epoll, &unread.socket, EventData::new_u64(id), flags).is_ok() {
            // The peer's end may be in the queue of this socket, where the peer put it.
            unread.socket.shut();
            self.unread.insert(id, unread);
        }
    }

    /// Closes the socket of an ended connection if the peer has read everything.
    pub(super) fn close_if_read(&mut self, id: u64) {
        let unread = self.unread.get(&id);
        if unread.is_some_and(|unread| unread.in_flight.count(&unread.socket) == 0) {
            self.unread.remove(&id);
        }
    }
}

/// The time after a warning in which further ones are only counted.
const PAUSE: Duration = Duration::from_secs(1);

/// Warnings that peers can cause.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    last: Option<Instant>,
    omitted: u64,
}

impl Warnings {
    /// Writes a warning to the log, unless there was one a short time ago.
    pub(super) fn warn(&mut self, pool: &str, text: fmt::Arguments<'_>) {
        if self.last.is_some_and(|last| last.elapsed() < PAUSE) {
            self.omitted += 1;
            return;
        }
        self.last = Some(Instant::now());
        match std::mem::take(&mut self.omitted) {
            0 => log::warn!("pool {pool:?}: {text}"),
            omitted => log::warn!("pool {pool:?}: {text} ({omitted} warnings before were omitted)"),
        }
    }
}
