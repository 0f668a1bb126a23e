// SPDX-License-Identifier: MPL-2.0

//! The producer's end of a connection.
//!
//! A peer can send descriptors, although the protocol has no such message. Closing the last descriptor of a file may take any
//! time, for example that of a TCP connection that lingers. So the control thread receives none, and other threads take them out
//! of the socket. One of them may be the peer's own end: as long as it is in this socket, nothing else shows that the peer is gone.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use xmem_shm::lock::lock;
use xmem_shm::os::socket;
use xmem_shm::os::thread::Thread;

/// The maximum number of threads that close descriptors of peers. Further sockets wait until one of the threads is done.
const MAX_THREADS: usize = 32;

/// The socket of a peer.
#[derive(Debug)]
pub(super) struct PeerSocket {
    socket: Arc<OwnedFd>,
    closer: Arc<Closer>,
}

impl PeerSocket {
    /// A socket that was accepted.
    pub(super) fn new(socket: OwnedFd, closer: &Arc<Closer>) -> Self {
        Self {
            socket: Arc::new(socket),
            closer: closer.clone(),
        }
    }

    /// Ends the connection, and closes the descriptors that the peer sent.
    pub(super) fn shut(&self) {
        if socket::shut_with_fds(&self.socket) {
            self.closer.empty(self.socket.clone());
        }
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        self.shut();
    }
}

/// Closes descriptors that peers sent.
#[derive(Debug, Default)]
pub(super) struct Closer(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    sockets: VecDeque<Arc<OwnedFd>>,
    threads: usize,
}

impl Closer {
    fn empty(self: &Arc<Self>, socket: Arc<OwnedFd>) {
        let mut queue = lock(&self.0);
        queue.sockets.push_back(socket);
        if queue.threads == MAX_THREADS {
            return;
        }
        queue.threads += 1;
        drop(queue);
        let closer = self.clone();
        if Thread::spawn("xmem-close", move || closer.run()).is_err() {
            // The socket waits for another thread, or for the next one that can be started.
            lock(&self.0).threads -= 1;
        }
    }

    fn run(&self) {
        while let Some(socket) = self.next() {
            socket::discard_all(&socket);
        }
    }

    fn next(&self) -> Option<Arc<OwnedFd>> {
        let mut queue = lock(&self.0);
        let next = queue.sockets.pop_front();
        if next.is_none() {
            queue.threads -= 1;
        }
        next
    }
}
