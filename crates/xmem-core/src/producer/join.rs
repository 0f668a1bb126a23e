// SPDX-License-Identifier: MPL-2.0

//! How a consumer joins: its lease page is listed before it can hold a frame.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use xmem_shm::abi::layout::{LeasePage, VERSION};
use xmem_shm::abi::meta::Text;
use xmem_shm::abi::wire::ToConsumer;
use xmem_shm::fault::{self, Point};

use super::answers::origin;
use super::control::{ControlThread, Next, PROCESS, Stage, refuse};
use super::event::ConsumerEvent;
use super::event::Departure;
use super::peer::{Joining, Peer};
use super::pool::Pool;

impl ControlThread {
    /// A consumer that joined has said of every pool of origin whether it reaches it.
    pub(super) fn arrive(&mut self, id: u64, peer: &Peer) -> Next {
        self.pool.arrive(peer);
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        if connection.send(&ToConsumer::Arrived, &[]).is_err() {
            return Next::Close(Departure::Died);
        }
        connection.told = false;
        self.tell(ConsumerEvent::Connected, peer);
        Next::Stay
    }

    pub(super) fn join(&mut self, joining: Joining<'_>) -> Next {
        let id = joining.id;
        let pool = self.pool.clone();
        if pool.closed.load(Ordering::Acquire) {
            // Not refused: the next producer may be welcome, so the consumer is to try again.
            return Next::Close(Departure::Closed);
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        let welcome = match pool.welcome(&joining) {
            Ok(welcome) => welcome,
            Err(NoWelcome::Refused(reason)) => {
                log::warn!(
                    "pool {:?}: refusing process {}: {reason}",
                    pool.name,
                    connection.peer.pid
                );
                refuse(&connection.socket, &reason);
                return Next::Close(Departure::CutOff);
            }
            Err(NoWelcome::NotNow(error)) => {
                // Not refused: this may pass, so the consumer is to try again.
                log::warn!(
                    "pool {:?}: cannot make a lease page for process {}: {error}",
                    pool.name,
                    connection.peer.pid
                );
                return Next::Close(Departure::Closed);
            }
        };
        let message = ToConsumer::Welcome {
            version: VERSION,
            id,
            budget: welcome.peer.budget,
            peers_may_write: pool.settings.peers_may_write,
            pool: Text::new(&pool.name),
            origins: welcome.origins.len() as u32,
        };
        connection.stage = Stage::Joined(welcome.peer.clone());
        // The page is in the list already (`welcome`): a consumer that could hold before its page counts would tear.
        let fds = [pool.control_fd.as_fd(), welcome.page_fd.as_fd()];
        if let Err(error) = connection.send(&message, &fds) {
            if error.kind() != io::ErrorKind::BrokenPipe {
                log::warn!(
                    "pool {:?}: cannot send the pool's memory to process {}: {error}",
                    pool.name,
                    connection.peer.pid
                );
            }
            // Nobody was told that it came.
            connection.told = true;
            return Next::Close(Departure::Died);
        }
        let process = Pid::from_raw(connection.peer.pid as i32)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = process
            && epoll::add(
                &self.epoll,
                &process,
                EventData::new_u64(id | PROCESS),
                EventFlags::IN,
            )
            .is_ok()
        {
            connection.process = Some(process);
            fault::point(Point::PeerWatched);
        }
        if let Some(connection) = self.connections.get(&id) {
            let version = pool.lock().sticky.version();
            let _ = self.send_sticky(connection, version);
            for (pool_id, path) in &welcome.origins {
                let _ = connection.send(&origin(*pool_id, path), &[]);
            }
        }
        if !welcome.origins.is_empty() {
            // Nobody is told that it came, or that it went, before it has its place.
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.told = true;
            }
            return Next::Stay;
        }
        self.tell(ConsumerEvent::Connected, &welcome.peer);
        Next::Stay
    }
}

/// What a consumer that may join is given.
pub(super) struct Welcome {
    peer: Arc<Peer>,
    page_fd: OwnedFd,
    origins: Vec<(u64, String)>,
}

/// Why a consumer is not let in.
enum NoWelcome {
    /// In words.
    Refused(String),
    /// The system has no memory or no descriptors.
    NotNow(io::Error),
}

impl Pool {
    /// Lets a consumer in: from here on its page counts.
    fn welcome(&self, joining: &Joining<'_>) -> Result<Welcome, NoWelcome> {
        let settings = &self.settings;
        let state = self.lock();
        if state.peers.len() >= settings.max_consumers as usize {
            return Err(NoWelcome::Refused(format!(
                "{} consumers are connected and it takes no more: raise max-consumers, or max_buffers of a BufferPool",
                state.peers.len()
            )));
        }
        drop(state);
        // A consumer that asks for none wants one, as `ConsumerBuilder::max_held` has it.
        let budget = joining.max_held.max(1).min(settings.max_held);
        // A page takes a few system calls, so the lock is not held meanwhile. Only this thread lets consumers in.
        let (page, page_fd) = LeasePage::create(self.shape()).map_err(NoWelcome::NotNow)?;
        fault::point(Point::LeasePageMade);
        let peer = Arc::new(Peer::new(joining, budget, page));
        let origins = self.add_peer(peer.clone());
        Ok(Welcome {
            peer,
            page_fd,
            origins,
        })
    }
}
