// SPDX-License-Identifier: MPL-2.0

//! The control thread of a connection: reads the producer's messages until the producer is gone or the consumer leaves.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use xmem_shm::abi::limits::MAX_NAMED_SIZE;
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::wire::{MAX_MESSAGE, MAX_QUEUED, RegionKind, ToConsumer};
use xmem_shm::fault::{self, Point};
use xmem_shm::os::sealed;
use xmem_shm::os::thread::Thread;
use xmem_shm::printable::printable;

use super::connection::Connection;
use super::link::Woken;
use super::session::Session;
use crate::cancel::Wake;
use crate::region::Ticket;

/// The number of messages that are read before the thread checks whether it must end.
const MESSAGES_PER_TURN: usize = 64;

/// The control thread.
pub(super) struct Listener {
    session: Arc<Session>,
}

impl Listener {
    pub(super) fn start(session: &Arc<Session>) -> io::Result<Thread> {
        let session = session.clone();
        let listener = Self { session };
        Thread::spawn("xmem-consumer", move || listener.run())
    }

    fn connection(&self) -> &Connection {
        self.session.connection()
    }

    fn run(&self) {
        loop {
            match self.session.link().wait() {
                Ok(Woken::Stop) => {
                    self.session.regions().unmap_all();
                    fault::point(Point::LeaveDone);
                    return;
                }
                Ok(Woken::ProducerDied) => {
                    self.read_rest();
                    break;
                }
                Ok(Woken::Message) if self.read_some() => {}
                Ok(Woken::Message) => break,
                Err(error) => {
                    let pool = self.connection().pool_name();
                    log::error!("pool {pool:?}: the control thread cannot wait: {error}");
                    break;
                }
            }
        }
        self.session.link().set_lost();
        self.connection().wake_own();
    }

    /// Reads the available messages, at most [`MESSAGES_PER_TURN`]. `false`: the producer is gone, or sent an invalid message.
    fn read_some(&self) -> bool {
        let mut buffer = [0; MAX_MESSAGE + 1];
        let pool = self.connection().pool_name();
        for _ in 0..MESSAGES_PER_TURN {
            match self.session.link().receive(&mut buffer) {
                Ok(Some(message)) if message.fds_lost => {
                    log::warn!(
                        "pool {pool:?}: no descriptors are left to take what its producer sent: raise RLIMIT_NOFILE"
                    );
                    // They are requested again when a frame needs them.
                    self.session.link().note_fds(true);
                    self.connection().wake();
                }
                Ok(Some(message)) => {
                    let fds = message.fds;
                    if !fds.is_empty() {
                        self.session.link().note_fds(false);
                    }
                    let Some(message) = ToConsumer::decode(message.bytes) else {
                        log::warn!("pool {pool:?}: its producer sent an invalid message");
                        return false;
                    };
                    self.handle(message, fds);
                }
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads the messages that the producer sent before it died. The queue is bounded, and nothing is added to it.
    fn read_rest(&self) {
        for _ in 0..MAX_QUEUED / MESSAGES_PER_TURN {
            if !self.read_some() {
                break;
            }
        }
    }

    fn handle(&self, message: ToConsumer, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let fd = fds.next();
        match message {
            ToConsumer::Region {
                id,
                len,
                kind,
                name,
            } => {
                let ticket = match kind {
                    RegionKind::Memfd => fd.map(Ticket::Memfd),
                    RegionKind::PosixShm => Some(Ticket::PosixShm(name.as_str().to_owned())),
                    RegionKind::Imported => fd.map(Ticket::Imported),
                    RegionKind::Cuda => fd.map(|fd| Ticket::Cuda(fd, fds.next())),
                };
                self.session.regions().map(id, ticket, len);
            }
            ToConsumer::NoRegion { id } => self.session.regions().retired(id),
            ToConsumer::Sticky { version } => {
                let bytes = fd.and_then(|fd| sealed::read(fd, MAX_NAMED_SIZE).ok());
                let sticky = bytes.as_deref().and_then(Sticky::decode).map(Arc::new);
                let size = bytes.map_or(0, |bytes| bytes.len());
                fault::point(Point::StickyRead);
                self.connection().stickies().keep(version, sticky, size);
                self.connection().wake_own();
            }
            ToConsumer::NoSticky { version } => self.connection().stickies().keep(version, None, 0),
            ToConsumer::Dmabuf { region, start } => {
                self.session.regions().keep_dmabuf(region, start, fd);
            }
            ToConsumer::NoDmabuf { region, reason } => {
                let reason = printable(reason.as_str());
                self.session.regions().refuse_dmabuf(region, reason);
            }
            ToConsumer::Origin { pool_id, path } => self
                .session
                .origins()
                .join_and_report(pool_id, path.as_str()),
            ToConsumer::NoOrigin { pool_id } => self.session.origins().miss(pool_id),
            ToConsumer::Arrived => {
                fault::point(Point::Arrived);
                self.connection().set_arrived();
            }
            // These messages belong to the handshake.
            ToConsumer::Welcome { .. } | ToConsumer::Refused { .. } | ToConsumer::Stats => {}
        }
        // Wakes threads that wait for an answer, and the consumer.
        self.connection().wake();
    }
}
