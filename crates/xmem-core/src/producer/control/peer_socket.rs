// SPDX-License-Identifier: MPL-2.0

//! The producer's end of a connection.
//!
//! A peer can send descriptors, although the protocol has no such message. Closing the last descriptor of a file may take any
//! time, for example that of a TCP connection that lingers. So the control thread receives none, and another thread closes
//! sockets that have unread descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::CWD;
use xmem_shm::os::socket;
use xmem_shm::os::thread::Thread;

/// The socket of a peer.
#[derive(Debug)]
pub(super) struct PeerSocket {
    /// `None` while this is dropped.
    socket: Option<OwnedFd>,
}

impl PeerSocket {
    /// A socket that was accepted.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
        }
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().map_or(CWD, AsFd::as_fd)
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let socket = self.socket.take();
        if socket.as_ref().is_some_and(socket::shut_with_fds) {
            // If no thread can be started, this one closes the socket.
            let _ = Thread::spawn("xmem-close", move || drop(socket));
        }
    }
}
