// SPDX-License-Identifier: MPL-2.0

//! What the control thread answers: who may join, what is sent, who may write.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xmem_shm::abi::layout::VERSION;
use xmem_shm::abi::meta::{FrameMeta, Text};
use xmem_shm::abi::wire::{RegionKind, ToConsumer, ToProducer};
use xmem_shm::fault::{self, Point};
use xmem_shm::os::sealed;

use super::control::{Connection, ControlThread, Next, Stage, refuse};
use super::event::ConsumerEvent;
use super::event::Departure;
use super::peer::{Joining, Peer};
use super::pool::{Claimed, Pool};
use super::publish::ReleaseHooks;
use super::slots::{Place, Want};
use crate::region::Ticket;

/// Slots that one peer may be writing at once.
const MAX_WRITING: usize = 8;
/// The largest buffer that a peer may ask for, in bytes: reserving it takes this thread's time.
const MAX_PEER_SIZE: u64 = 1 << 30;

impl ControlThread {
    /// Answers one message of a connection.
    pub(super) fn answer(&mut self, id: u64, bytes: &[u8]) -> Next {
        let Some(connection) = self.connections.get(&id) else {
            return Next::Stay;
        };
        let (peer, leaves) = match &connection.stage {
            Stage::Pending(_) => return self.answer_first(id, bytes),
            Stage::Joined(peer) => (peer.clone(), false),
            Stage::Leaving(peer) => (peer.clone(), true),
        };
        self.answer_consumer(id, &peer, leaves, bytes)
    }

    /// Answers who has not said yet what it wants.
    fn answer_first(&mut self, id: u64, bytes: &[u8]) -> Next {
        let Some(connection) = self.connections.get(&id) else {
            return Next::Stay;
        };
        if let Err(error) = self.check_in_flight(connection) {
            // Not refused: this may pass, so the consumer is to try again.
            log::warn!(
                "pool {:?}: cannot answer process {}: {error}",
                self.pool.name,
                connection.peer.pid
            );
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
                let stats = serde_json::to_vec(&self.pool.stats()).unwrap_or_default();
                if let Ok(fd) = sealed::write("xmem-stats", &stats) {
                    let _ = connection.send(&ToConsumer::Stats, &[fd.as_fd()]);
                }
                return Next::Close(Departure::Left);
            }
            _ => {}
        }
        let reason = match ToProducer::version_of(bytes) {
            Some(version) => format!(
                "it speaks protocol version {VERSION} and this consumer version {version}: update the older one"
            ),
            None => "that was not an xmem consumer's first message".into(),
        };
        log::warn!(
            "pool {:?}: refusing process {}: {reason}",
            self.pool.name,
            connection.peer.pid
        );
        refuse(&connection.socket, &reason);
        Next::Close(Departure::CutOff)
    }

    /// Answers a consumer, which `leaves` if it said so, or was told to.
    fn answer_consumer(&mut self, id: u64, peer: &Arc<Peer>, leaves: bool, bytes: &[u8]) -> Next {
        let Some(connection) = self.connections.get(&id) else {
            return Next::Stay;
        };
        let result = match ToProducer::decode(bytes) {
            Some(ToProducer::Bell) => {
                self.rung = true;
                Ok(())
            }
            Some(ToProducer::GetRegion { id: region }) => self.send_region(id, connection, region),
            Some(ToProducer::GetSticky { version }) => {
                let _ = self.send_sticky(connection, version);
                // One that is not the newest is copied.
                return Next::Yield;
            }
            Some(ToProducer::Leave) => {
                if !leaves {
                    peer.leave();
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.stage = Stage::Leaving(peer.clone());
                    }
                    self.rung = true;
                }
                Ok(())
            }
            Some(ToProducer::Request { name, data }) => {
                let request = |consumer| ConsumerEvent::Request {
                    consumer,
                    name: name.as_str().to_owned(),
                    data,
                };
                if !leaves {
                    self.tell(request, peer);
                }
                Ok(())
            }
            Some(ToProducer::Reaches { pool_id, yes }) => {
                let arrives = peer.answer(pool_id, yes) && peer.is_arriving();
                // Who waits for answers looks again.
                self.pool.bell.ring();
                if !arrives {
                    return Next::Stay;
                }
                return self.arrive(id, peer);
            }
            Some(ToProducer::GetOrigin { pool_id }) => {
                let known = self.pool.lock().origins.clone();
                match known.iter().find(|(known, _)| *known == pool_id) {
                    Some((_, path)) => connection.send(&origin(pool_id, path), &[]),
                    None => connection.send(&ToConsumer::NoOrigin { pool_id }, &[]),
                }
            }
            Some(ToProducer::Device { works, how }) => {
                peer.say_device(works, how.as_str());
                Ok(())
            }
            Some(ToProducer::MarkReady) => {
                peer.wants_marks.store(true, Ordering::Release);
                #[cfg(feature = "cuda")]
                self.pool.mark_devices();
                Ok(())
            }
            Some(ToProducer::AcquireSlot { request, size }) if !leaves => {
                return self.grant(id, request, |pool| claim_new(pool, size));
            }
            Some(ToProducer::AcquireIndex { request, slot }) if !leaves => {
                return self.grant(id, request, |pool| claim_index(pool, slot));
            }
            Some(ToProducer::Written {
                request,
                slot,
                generation,
                publish,
                keep,
                size,
            }) => {
                let publish = publish.then_some((keep, size));
                return self.written(id, request, slot, generation, publish);
            }
            None
            | Some(
                ToProducer::Join { .. }
                | ToProducer::Query { .. }
                | ToProducer::AcquireSlot { .. }
                | ToProducer::AcquireIndex { .. },
            ) => {
                log::warn!(
                    "pool {:?}: consumer {} sent a message that makes no sense",
                    self.pool.name,
                    peer.id
                );
                return Next::Close(Departure::CutOff);
            }
        };
        // A peer that does not read gets no answer, and asks again; what else is wrong shows as a hang-up.
        if let Err(error) = result {
            log::debug!("pool {:?}: an answer was not sent: {error}", self.pool.name);
        }
        Next::Stay
    }

    pub(super) fn introduce(&self, pool_id: u64) {
        let known = self.pool.lock().origins.clone();
        let Some((_, path)) = known.iter().find(|(known, _)| *known == pool_id) else {
            return;
        };
        for connection in self.connections.values() {
            if let Stage::Joined(peer) = &connection.stage
                && peer.via.is_empty()
            {
                // Who does not read now asks when it meets such a frame.
                let _ = connection.send(&origin(pool_id, path), &[]);
            }
        }
    }

    pub(super) fn say_gone(&self, id: u32) {
        let consumers = self.pool.lock().regions.retired.mapped_by(id);
        for consumer in consumers {
            if let Some(connection) = self.connections.get(&consumer) {
                // Who does not read now notices when it looks for the next frame.
                let _ = connection.send(&ToConsumer::NoRegion { id }, &[]);
            }
        }
    }

    fn send_region(&self, consumer: u64, connection: &Connection, id: u32) -> io::Result<()> {
        self.check_in_flight(connection)?;
        let region = self.pool.lock().regions.send(id, consumer);
        let Some(region) = region else {
            return connection.send(&ToConsumer::NoRegion { id }, &[]);
        };
        let message = |kind, name: &str, number| ToConsumer::Region {
            id,
            len: region.len() as u64,
            kind,
            name: Text::new(name),
            number,
        };
        match region.ticket() {
            Ticket::Memfd(fd) => connection.send(&message(RegionKind::Memfd, "", 0), &[fd]),
            Ticket::PosixShm(name) => {
                connection.send(&message(RegionKind::PosixShm, &name, 0), &[])
            }
            Ticket::Heap(number) => connection.send(&message(RegionKind::Heap, "", number), &[]),
            Ticket::Imported(fd) => connection.send(&message(RegionKind::Imported, "", 0), &[fd]),
            Ticket::Cuda(fd, twin) => {
                let fds: Vec<_> = [Some(fd), twin].into_iter().flatten().collect();
                connection.send(&message(RegionKind::Cuda, "", 0), &fds)
            }
        }
    }

    pub(super) fn send_sticky(&self, connection: &Connection, version: u64) -> io::Result<()> {
        self.check_in_flight(connection)?;
        let found = self.pool.lock().sticky.get(version);
        match found {
            // Without the lock: it is a copy, unless it is the newest.
            Some(found) => {
                let fd = found.descriptor()?;
                connection.send(&ToConsumer::Sticky { version }, &[fd.as_fd()])
            }
            None => connection.send(&ToConsumer::NoSticky { version }, &[]),
        }
    }

    pub(super) fn push_sticky(&self) {
        let version = self.pool.lock().sticky.version();
        for connection in self.connections.values() {
            if matches!(connection.stage, Stage::Joined(_)) {
                // Who does not read now asks for it when it meets it.
                let _ = self.send_sticky(connection, version);
            }
        }
        // Consumers that sleep may wait for the state itself.
        let peers = self.pool.lock().peers.clone();
        for peer in peers.iter() {
            peer.page.wake();
        }
    }

    fn grant(
        &mut self,
        id: u64,
        request: u32,
        claim: impl FnOnce(&Pool) -> Result<Claimed, String>,
    ) -> Next {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        let claimed = if !self.pool.settings.peers_may_write {
            Err("this pool's producer lets nobody else write (peers_may_write)".into())
        } else if connection.writing.len() >= MAX_WRITING {
            Err(format!(
                "this process writes {MAX_WRITING} slots already: publish or drop one first"
            ))
        } else {
            claim(&self.pool)
        };
        fault::point(Point::SlotGranted);
        let sent = match &claimed {
            Ok(claimed) => connection.send(&granted(request, claimed), &[]),
            Err(reason) => connection.send(
                &ToConsumer::Denied {
                    request,
                    reason: Text::new(reason),
                },
                &[],
            ),
        };
        match (claimed, sent) {
            (Ok(claimed), Ok(())) => connection.writing.push(claimed),
            // It never heard of it.
            (Ok(claimed), Err(_)) => self.pool.abandon(claimed.slot, claimed.word),
            (Err(_), _) => {}
        }
        // Memory may have been reserved.
        Next::Yield
    }

    fn written(
        &mut self,
        id: u64,
        request: u32,
        slot: u32,
        generation: u32,
        publish: Option<(u32, u64)>,
    ) -> Next {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        let Some(at) = connection
            .writing
            .iter()
            .position(|claimed| claimed.slot == slot && claimed.word.generation() == generation)
        else {
            // A slot that was published meanwhile is given back by who had stopped waiting for that news.
            return match publish {
                None => Next::Stay,
                Some(_) => Next::Close(Departure::CutOff),
            };
        };
        let claimed = connection.writing.swap_remove(at);
        let published = publish.is_some_and(|(keep, size)| {
            let mut meta = FrameMeta {
                size,
                ..FrameMeta::default()
            };
            let mut hooks = ReleaseHooks {
                hook: None,
                keep: (keep > 0).then_some(keep),
                parts: None,
            };
            self.pool.check_payload(&meta, claimed.place).is_ok()
                && self
                    .pool
                    .publish(&claimed, &mut meta, Some(&mut hooks))
                    .is_ok()
        });
        let connection = self.connections.get(&id);
        if published {
            // The writer keeps no reference; the count, or the history, keeps the frame.
            self.pool.dereference(claimed.slot);
        } else {
            self.pool.abandon(claimed.slot, claimed.word);
        }
        if let (Some(connection), Some(_)) = (connection, publish) {
            // The writer waits for this before it tells others the slot's number.
            let answer = if published {
                granted(request, &claimed)
            } else {
                ToConsumer::Denied {
                    request,
                    reason: "its size is larger than the slot, or the pool is closed".into(),
                }
            };
            let _ = connection.send(&answer, &[]);
        }
        Next::Stay
    }
}

pub(super) fn origin(pool_id: u64, path: &str) -> ToConsumer {
    ToConsumer::Origin {
        pool_id,
        path: Text::new(path),
    }
}

/// Claims a slot for a frame of a peer.
fn claim_new(pool: &Pool, size: u64) -> Result<Claimed, String> {
    if size > MAX_PEER_SIZE {
        return Err(format!(
            "a buffer for others may have {MAX_PEER_SIZE} bytes at most"
        ));
    }
    pool.acquire(Want::on_host(size as usize, 0))
        .map_err(|error| error.to_string())
}

/// Claims the slot of that number for a peer.
fn claim_index(pool: &Pool, slot: u32) -> Result<Claimed, String> {
    let is_on_device = |place: Place| place.device.is_some();
    let refusal = format!("slot {slot} lies on a device, where only its owner writes");
    // What is claimed and given back is empty, so it is not claimed in vain.
    let place = pool.lock().slots.get(slot).and_then(|info| info.place);
    if place.is_some_and(is_on_device) {
        return Err(refusal);
    }
    let claimed = pool
        .acquire_index(slot)
        .ok_or_else(|| format!("slot {slot} is in use, or there is none of that number"))?;
    // It may have gone elsewhere meanwhile, and then there was nothing in it.
    if is_on_device(claimed.place) {
        pool.abandon(claimed.slot, claimed.word);
        return Err(refusal);
    }
    Ok(claimed)
}

fn granted(request: u32, claimed: &Claimed) -> ToConsumer {
    ToConsumer::Granted {
        request,
        slot: claimed.slot,
        generation: claimed.word.generation(),
        region: claimed.place.region,
        offset: claimed.place.offset as u64,
        len: claimed.place.len as u64,
    }
}
