// SPDX-License-Identifier: MPL-2.0

//! Admits consumers. The lease page of a consumer is on the list before the consumer can hold a frame.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use xmem_shm::abi::layout::{LeasePage, VERSION};
use xmem_shm::abi::text::Text;
use xmem_shm::abi::wire::ToConsumer;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::wake_socket;

use super::origins::send_origins;
use super::{ControlThread, Next, PROCESS, Stage, refuse};
use crate::producer::pool::Pool;
use crate::producer::pool::consumer::{ConsumerRecord, Joining};
use crate::producer::pool::event::{Departure, PoolEvent};

impl ControlThread {
    pub(super) fn join(&mut self, joining: Joining<'_>) -> Next {
        let id = joining.id;
        let pool = self.pool.clone();
        if pool.is_closed() {
            // Close without `Refused`: the next producer may be ready soon, so the consumer tries again.
            return Next::Close(Departure::Closed);
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        let welcome = match welcome(&pool, &joining) {
            Ok(welcome) => welcome,
            Err(NoWelcome::Refused(reason)) => {
                let text = format_args!("refusing process {}: {reason}", connection.peer.pid);
                self.warnings.warn(pool.name(), text);
                refuse(&connection.socket, &reason);
                return Next::Close(Departure::CutOff);
            }
            Err(NoWelcome::NotNow(error)) => {
                // Close without `Refused`: the cause may be temporary, so the consumer tries again.
                let pid = connection.peer.pid;
                let text = format_args!(
                    "cannot create a lease page and a socket for process {pid}: {error}"
                );
                self.warnings.warn(pool.name(), text);
                return Next::Close(Departure::Closed);
            }
        };
        let message = ToConsumer::Welcome {
            version: VERSION,
            id,
            budget: welcome.consumer.budget(),
            pool: Text::new(pool.name()),
            origins: welcome.origins.len() as u32,
        };
        connection.stage = Stage::Joined(welcome.consumer.clone());
        // `welcome` has already put the page on the list. If a consumer could hold a frame before that, the frame could be
        // overwritten while it is read.
        let fds = [
            pool.control_fd(),
            welcome.page_fd.as_fd(),
            welcome.wake_socket.as_fd(),
        ];
        if let Err(error) = connection.send(&message, &fds) {
            if error.kind() != io::ErrorKind::BrokenPipe {
                log::warn!(
                    "pool {:?}: cannot send the pool's memory to process {}: {error}",
                    pool.name(),
                    connection.peer.pid
                );
            }
            // The program was not notified that the consumer joined.
            connection.departure_reported = true;
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
            fault::point(Point::ConsumerWatched);
        }
        if let Some(connection) = self.connections.get(&id) {
            let version = pool.lock_on_own_thread().sticky.version();
            let _ = self.send_sticky(connection, version);
            send_origins(connection, &welcome.origins);
        }
        if !welcome.origins.is_empty() {
            // The program is notified of the consumer, and of its departure, only after its cursor is set.
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.departure_reported = true;
            }
            return Next::Stay;
        }
        self.report(PoolEvent::Connected, &welcome.consumer);
        Next::Stay
    }
}

/// The answer to an admitted consumer.
pub(super) struct Welcome {
    consumer: Arc<ConsumerRecord>,
    page_fd: OwnedFd,
    /// The consumer's end.
    wake_socket: OwnedFd,
    origins: Vec<(u64, String)>,
}

/// Why a consumer is not admitted.
enum NoWelcome {
    /// The reason as text.
    Refused(String),
    /// The system has no memory or no descriptors left. This may be temporary.
    NotNow(io::Error),
}

/// Admits a consumer.
fn welcome(pool: &Pool, joining: &Joining<'_>) -> Result<Welcome, NoWelcome> {
    let settings = pool.settings();
    let consumers = pool.lock_on_own_thread().consumers.len();
    if consumers >= settings.max_consumers as usize {
        return Err(NoWelcome::Refused(if settings.by_number {
            format!("{consumers} processes read its buffers, which is the maximum")
        } else {
            format!("{consumers} consumers are connected and it takes no more: raise max-consumers")
        }));
    }
    // 0 counts as 1, as in `ConsumerBuilder::max_held`.
    let budget = joining.max_held.max(1).min(settings.max_held);
    // Creating a page takes several system calls, so the lock is not held. Only this thread admits consumers.
    let (page, page_fd) = LeasePage::create(pool.shape()).map_err(NoWelcome::NotNow)?;
    fault::point(Point::LeasePageMade);
    let (ours, wake_socket) = wake_socket::pair().map_err(NoWelcome::NotNow)?;
    let consumer = Arc::new(ConsumerRecord::new(joining, budget, page, ours));
    let origins = add_to_list(pool, consumer.clone());
    Ok(Welcome {
        consumer,
        page_fd,
        wake_socket,
        origins,
    })
}

/// Puts a consumer on the list, so that its leases are respected. Returns the pools of origin for which it must answer before
/// its cursor is set.
fn add_to_list(pool: &Pool, consumer: Arc<ConsumerRecord>) -> Vec<(u64, String)> {
    let mut guard = pool.lock_on_own_thread();
    let origins = if consumer.follows_stream() {
        guard.origins.all()
    } else {
        Vec::new()
    };
    if origins.is_empty() {
        guard.set_start(&consumer);
    } else {
        let pool_ids = origins.iter().map(|(pool_id, _)| *pool_id);
        consumer.reach().await_for(pool_ids.collect());
    }
    consumer.set_keep_for(pool.settings().keep_for());
    consumer.set_regions_seen(guard.regions.retired.version());
    guard.consumers.add(consumer);
    fault::point(Point::ConsumerListed);
    guard.share_out();
    drop(guard);
    pool.notifier().notify();
    origins
}
