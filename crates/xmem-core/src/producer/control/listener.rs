// SPDX-License-Identifier: MPL-2.0

//! The pool's socket, which replaces a stale one, never a live one, and is removed at the end. And the producer's ends of connections.
//!
//! A peer can send descriptors, although the protocol has no such message. Closing the last descriptor of a file may take any
//! time, for example that of a TCP connection that lingers. So the control thread receives none, and other threads take them out
//! of the socket. One of them may be the peer's own end: as long as it is in this socket, nothing else shows that the peer is gone.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, Gid, chownat, fstat};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::fork::KeptFromChildren;
use xmem_shm::os::lock::LockFile;
use xmem_shm::os::socket::{self, Listening};
use xmem_shm::os::thread::Thread;

use super::lock_file;
use crate::error::{CreateError, SystemError};
use crate::producer::pool::access::Access;

/// The pool's socket, and the lock that makes this process its owner.
#[derive(Debug)]
pub(in crate::producer) struct Listener {
    _kept: KeptFromChildren,
    pub(super) socket: OwnedFd,
    path: PathBuf,
    /// Identity of the socket's file, so that no other producer's socket is removed.
    inode: (u64, u64),
    /// The group that owns the socket's file.
    pub(super) group: u32,
    closer: Arc<Closer>,
    _lock: LockFile,
}

impl Listener {
    /// Listens at the path. Replaces a socket that a killed producer left.
    pub(in crate::producer) fn bind(
        path: &Path,
        lock: LockFile,
        access: &Access,
    ) -> Result<Self, CreateError> {
        lock_file::remove_socket(path)?;
        let Listening { socket, file } = socket::listen_at(path, access.file_mode())
            .map_err(SystemError::at("listen on the pool's socket"))?;
        let stat_file = || fstat(&file).map_err(SystemError::at("look at the pool's socket"));
        let stat = stat_file()?;
        let mut listener = Self {
            _kept: KeptFromChildren::new(&socket),
            socket,
            path: path.to_owned(),
            inode: (stat.st_dev, stat.st_ino),
            group: stat.st_gid,
            closer: Arc::default(),
            _lock: lock,
        };
        if let Some(gid) = access.gid() {
            // Uses the file's own descriptor, because the path may refer to another file by now.
            chownat(
                &file,
                "",
                None,
                Some(Gid::from_raw(gid)),
                AtFlags::EMPTY_PATH,
            )
            .map_err(|error| not_the_groups(gid, error))?;
            listener.group = stat_file()?.st_gid;
        }
        Ok(listener)
    }

    /// Accepts a waiting connection.
    pub(super) fn accept(&self) -> io::Result<PeerSocket> {
        socket::accept(&self.socket).map(|socket| PeerSocket::new(socket, &self.closer))
    }
}

/// The error if the socket's group cannot be set.
fn not_the_groups(gid: u32, error: Errno) -> CreateError {
    match error {
        Errno::PERM | Errno::INVAL => CreateError::Settings(format!(
            "socket-group: cannot give the socket to group {gid} ({error}): this user has to be a member of it"
        )),
        _ => SystemError::at("give the pool's socket to its group")(error).into(),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.inode);
        if is_ours {
            let _ = std::fs::remove_file(&self.path);
            fault::point(Point::SocketRemoved);
        }
        // The sockets of waiting connections are closed with the listening one, unless they are accepted.
        let _ = shutdown(&self.socket, Shutdown::Both);
        while self.accept().is_ok() {}
    }
}

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
