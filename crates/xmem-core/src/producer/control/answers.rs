// SPDX-License-Identifier: MPL-2.0

//! Answers of the control thread: joins, sticky state, regions.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use xmem_shm::abi::layout::VERSION;
use xmem_shm::abi::text::Text;
use xmem_shm::abi::wire::{RegionKind, ToConsumer, ToProducer};
use xmem_shm::os::sealed;

use super::{Connection, ControlThread, Next, Stage, refuse};
use crate::producer::devices;
use crate::producer::pool::consumer::{ConsumerRecord, Joining};
use crate::producer::pool::event::{Departure, PoolEvent};
use crate::producer::pool::stats;
use crate::region::Ticket;

/// What frames need, and a consumer may not have.
pub(super) enum Unsent {
    /// A version of the sticky state.
    Sticky(u64),
    Region(u32),
}

impl ControlThread {
    /// Answers one message of a connection.
    pub(super) fn answer(&mut self, id: u64, bytes: &[u8]) -> Next {
        let Some(connection) = self.connections.get(&id) else {
            return Next::Stay;
        };
        let (consumer, leaves) = match &connection.stage {
            Stage::Pending(_) => return self.answer_first(id, bytes),
            Stage::Joined(consumer) => (consumer.clone(), false),
            Stage::Leaving(consumer) => (consumer.clone(), true),
        };
        self.answer_consumer(id, &consumer, leaves, bytes)
    }

    /// Answers the first message of a connection.
    fn answer_first(&mut self, id: u64, bytes: &[u8]) -> Next {
        let Some(connection) = self.connections.get(&id) else {
            return Next::Stay;
        };
        if let Err(error) = self.check_in_flight(connection) {
            // Close without `Refused`: the cause may be temporary, so the consumer tries again.
            let text = format_args!("cannot answer process {}: {error}", connection.peer.pid);
            self.warnings.warn(self.pool.name(), text);
            return Next::Close(Departure::Closed);
        }
        match ToProducer::decode(bytes) {
            Some(ToProducer::Join {
                version,
                max_held,
                start_from,
                name,
                via,
            }) if version == VERSION => {
                return self.join(Joining {
                    id,
                    process: connection.peer,
                    max_held,
                    start_from,
                    name: name.as_str(),
                    via: via.as_str(),
                });
            }
            Some(ToProducer::Query { version }) if version == VERSION => {
                let stats = serde_json::to_vec(&stats::of_pool(&self.pool)).unwrap_or_default();
                if let Ok(fd) = sealed::write("xmem-stats", &stats) {
                    let _ = connection.send(&ToConsumer::Stats, &[fd.as_fd()]);
                }
                return Next::Close(Departure::Left);
            }
            _ => {}
        }
        let reason = match ToProducer::version_of(bytes) {
            Some(version) => {
                let old = if version < VERSION {
                    "the consumer"
                } else {
                    "the producer"
                };
                format!(
                    "the consumer uses version {version} of the shared format, and the producer version {VERSION}: update {old} and \
                     restart it"
                )
            }
            None => "that was not an xmem consumer's first message".into(),
        };
        let text = format_args!("refusing process {}: {reason}", connection.peer.pid);
        self.warnings.warn(self.pool.name(), text);
        refuse(&connection.socket, &reason);
        Next::Close(Departure::CutOff)
    }

    /// Answers a consumer. `leaves`: whether it takes no more frames.
    fn answer_consumer(
        &mut self,
        id: u64,
        consumer: &Arc<ConsumerRecord>,
        leaves: bool,
        bytes: &[u8],
    ) -> Next {
        let Some(connection) = self.connections.get(&id) else {
            return Next::Stay;
        };
        let result = match ToProducer::decode(bytes) {
            Some(ToProducer::Bell) => {
                self.has_released = true;
                Ok(())
            }
            Some(ToProducer::GetRegion { id: region }) => self.send_region(id, connection, region),
            Some(ToProducer::GetDmabuf { region, offset }) => {
                self.send_dmabuf(connection, region, offset)
            }
            Some(ToProducer::GetSticky { version }) => {
                let _ = self.send_sticky(connection, version);
                // A version other than the newest must first be copied, which takes time.
                return Next::Yield;
            }
            Some(ToProducer::Leave) => {
                if !leaves {
                    consumer.leave();
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.stage = Stage::Leaving(consumer.clone());
                    }
                    self.has_released = true;
                }
                Ok(())
            }
            Some(ToProducer::Request { name, data }) => {
                let request = |figures| PoolEvent::Request {
                    consumer: figures,
                    name: name.as_str().to_owned(),
                    data,
                };
                if !leaves {
                    self.report(request, consumer);
                }
                Ok(())
            }
            Some(ToProducer::Reaches { pool_id, yes }) => {
                return self.note_reach(id, consumer, pool_id, yes);
            }
            Some(ToProducer::GetOrigin { pool_id }) => self.send_origin(connection, pool_id),
            Some(ToProducer::Device { works, how }) => {
                consumer.set_device(works, how.as_str());
                Ok(())
            }
            Some(ToProducer::MarkReady) => {
                consumer.set_wants_marks();
                devices::mark(&self.pool);
                Ok(())
            }
            None | Some(ToProducer::Join { .. } | ToProducer::Query { .. }) => {
                let text = format_args!("{consumer} sent a message that breaks the protocol");
                self.warnings.warn(self.pool.name(), text);
                return Next::Close(Departure::CutOff);
            }
        };
        // If the queue of a peer that does not read is full, it gets no answer and asks again. Other errors show as a hang-up.
        if let Err(error) = result {
            log::debug!(
                "pool {:?}: an answer was not sent: {error}",
                self.pool.name()
            );
        }
        Next::Stay
    }

    /// What consumers that have not taken all frames may not have: each with its consumer.
    pub(super) fn unsent(&self) -> Vec<(u64, Unsent)> {
        let guard = self.pool.lock_on_own_thread();
        let unsent = |(consumer, cursor)| {
            let stickies = guard.sticky.needed_from(cursor).map(Unsent::Sticky);
            let regions = guard.regions.unsent(consumer).map(Unsent::Region);
            stickies.chain(regions).map(move |it| (consumer, it))
        };
        self.lagging().flat_map(unsent).collect()
    }

    /// `false`: the consumer has to read messages first.
    pub(super) fn has_sent(&self, consumer: u64, unsent: &Unsent) -> bool {
        let connection = self.connections.get(&consumer);
        connection.is_none_or(|connection| {
            let sent = match *unsent {
                Unsent::Sticky(version) => self.send_sticky(connection, version),
                Unsent::Region(region) => self.send_region(consumer, connection, region),
            };
            sent.is_ok()
        })
    }

    /// Makes consumers unmap a region that was removed.
    pub(super) fn announce_gone(&self, id: u32) {
        let consumers = self.pool.lock_on_own_thread().regions.retired.mapped_by(id);
        for consumer in consumers {
            if let Some(connection) = self.connections.get(&consumer) {
                // If its queue is full, the consumer sees that the region is retired when it looks for the next frame.
                let _ = connection.send(&ToConsumer::NoRegion { id }, &[]);
            }
        }
    }

    fn send_region(&self, consumer: u64, connection: &Connection, id: u32) -> io::Result<()> {
        self.check_in_flight(connection)?;
        let region = self.pool.lock_on_own_thread().regions.send(id, consumer);
        let Some(region) = region else {
            return connection.send(&ToConsumer::NoRegion { id }, &[]);
        };
        let message = |kind, name: &str| ToConsumer::Region {
            id,
            len: region.len() as u64,
            kind,
            name: Text::new(name),
        };
        match region.ticket() {
            Ticket::Memfd(fd) => connection.send(&message(RegionKind::Memfd, ""), &[fd]),
            Ticket::PosixShm(name) => connection.send(&message(RegionKind::PosixShm, &name), &[]),
            Ticket::Imported(fd) => connection.send(&message(RegionKind::Imported, ""), &[fd]),
            Ticket::Cuda(fd, twin) => {
                let fds: Vec<_> = [Some(fd), twin].into_iter().flatten().collect();
                connection.send(&message(RegionKind::Cuda, ""), &fds)
            }
        }
    }

    /// Sends the DMA buffer of a slot. The consumer holds a frame in the slot, so the region is there.
    fn send_dmabuf(&self, connection: &Connection, id: u32, offset: u64) -> io::Result<()> {
        self.check_in_flight(connection)?;
        let region = self.pool.lock_on_own_thread().regions.get(id).cloned();
        let found = match &region {
            Some(region) => region.dmabuf(offset),
            None => Err("it is not in memory of its pool"),
        };
        match found {
            Ok((fd, start)) => connection.send(&ToConsumer::Dmabuf { region: id, start }, &[fd]),
            Err(reason) => {
                let reason = Text::new(reason);
                connection.send(&ToConsumer::NoDmabuf { region: id, reason }, &[])
            }
        }
    }

    pub(super) fn send_sticky(&self, connection: &Connection, version: u64) -> io::Result<()> {
        self.check_in_flight(connection)?;
        let found = self.pool.lock_on_own_thread().sticky.get(version);
        match found {
            // Without the lock, because all versions except the newest are copied.
            Some(found) => {
                let fd = found.descriptor()?;
                connection.send(&ToConsumer::Sticky { version }, &[fd.as_fd()])
            }
            None => connection.send(&ToConsumer::NoSticky { version }, &[]),
        }
    }

    pub(super) fn push_sticky(&self) {
        let version = self.pool.lock_on_own_thread().sticky.version();
        for connection in self.connections.values() {
            if matches!(connection.stage, Stage::Joined(_)) {
                // If its queue is full, the consumer asks for the version when it takes a frame of it.
                let _ = self.send_sticky(connection, version);
            }
        }
        // Sleeping consumers may wait for the sticky state itself.
        self.pool.lock_on_own_thread().wake_consumers();
    }
}
