// SPDX-License-Identifier: MPL-2.0

//! Publishes the exporter's stream in the local pool, and keeps the state of the exporter.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use xmem_core::{
    Attachments, FrameFlags, FrameMeta, Producer, SlotSpec, Sticky, WriteLease, monotonic_ns,
};

use super::assembly::Assembly;
use crate::clock::Clock;
use crate::window::{CREDIT_EVERY, Receiver, SILENCE};
use crate::wire::{Begin, Credit, Data, Ids, Kind, Malformed, Probe, Pulse};
use crate::{MARK, lock, tai};

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Figures {
    pub(super) received: u64,
    pub(super) bytes: u64,
    pub(super) missed: u64,
    /// How often items were lost, incomplete or not accepted.
    pub(super) lost: u64,
    pub(super) malformed: u64,
}

/// The state of the exported pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemotePool {
    Running,
    Ended,
    NoProducer,
}

#[derive(Debug)]
pub(super) struct Inbound {
    producer: Producer,
    /// The exported pool and its host.
    origin: String,
    ids: Ids,
    receiver: Receiver<Assembly>,
    /// The exporter's number of the sticky state that the local pool has.
    sticky: u64,
    /// The producer's stream, and the number that its next frame has if no frame is missing. A new exporter does not reset it.
    next: Option<(u64, u64)>,
    /// The local pool has consumers, and the offset of the clocks is known.
    wants: bool,
    remote: RemotePool,
    /// The duration of the last frame, in nanoseconds.
    duration: Option<u64>,
    /// The arrival of the last message.
    heard: Option<Instant>,
    /// The position in the last credit.
    credited: u64,
    figures: Figures,
    /// Shared with the thread that sends requests. It has a separate lock, so that this thread does not wait for a frame.
    clock: Arc<Mutex<Clock>>,
    tai: tai::Reader,
}

impl Inbound {
    pub(super) fn new(
        producer: Producer,
        origin: String,
        importer: u64,
        clock: Arc<Mutex<Clock>>,
    ) -> Self {
        Self {
            producer,
            origin,
            ids: Ids {
                exporter: 0,
                importer,
            },
            receiver: Receiver::default(),
            sticky: 0,
            next: None,
            wants: false,
            remote: RemotePool::Running,
            duration: None,
            heard: None,
            credited: 0,
            figures: Figures::default(),
            clock,
            tai: tai::Reader::default(),
        }
    }

    /// The instances of the stream.
    pub(super) fn ids(&self) -> Ids {
        self.ids
    }

    /// Whether an exporter has answered.
    pub(super) fn has_exporter(&self) -> bool {
        self.ids.exporter != 0
    }

    /// Whether no message has arrived for [`SILENCE`].
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.heard
            .is_none_or(|heard| now.saturating_duration_since(heard) >= SILENCE)
    }

    pub(super) fn wants(&self) -> bool {
        self.wants
    }

    pub(super) fn remote(&self) -> RemotePool {
        self.remote
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            lost: self.figures.lost + self.receiver.lost(),
            ..self.figures
        }
    }

    /// The maximum error of the times in nanoseconds, if it is more than the duration of a frame.
    pub(super) fn rough_times(&self) -> Option<i64> {
        let duration = self.duration.and_then(|it| i64::try_from(it).ok())?;
        let error = lock(&self.clock).settled_error()?;
        (error > duration).then_some(error)
    }

    /// Handles a pulse of the exporter.
    pub(super) fn pulse(&mut self, pulse: &Pulse, now: Instant) {
        let arrived = monotonic_ns();
        let ids = pulse.ids;
        if ids.importer != self.ids.importer {
            return;
        }
        if ids.exporter != self.ids.exporter {
            // A new instance of the exporter: reset the positions, the sticky state and the clock. Keep the local pool. Keep the
            // number of the next frame too, because the producer may be the same.
            self.figures = self.figures();
            self.ids = ids;
            self.receiver = Receiver::default();
            (self.sticky, self.credited) = (0, 0);
            *lock(&self.clock) = Clock::default();
        }
        if !self.has_exporter() {
            return;
        }
        self.heard = Some(now);
        let here = self.tai.read(now);
        let mut clock = lock(&self.clock);
        clock.add(pulse.echo, pulse.received, pulse.sent, arrived);
        clock.set_tai(here, pulse.tai);
    }

    /// Returns the next credit, and gives up an item without progress. `is_wanted`: the local pool has consumers.
    pub(super) fn credit(&mut self, is_wanted: bool, now: Instant) -> Credit {
        self.receiver.look(now);
        self.wants = is_wanted && lock(&self.clock).is_known();
        if !is_wanted {
            // Without consumers, no frame counts as missed.
            self.next = None;
        }
        self.credited = self.receiver.position();
        Credit {
            ids: self.ids,
            items: self.receiver.items(),
            position: self.receiver.position(),
            lost: self.receiver.lost(),
            sticky: self.sticky,
            wants: self.wants,
            sent: monotonic_ns(),
        }
    }

    /// Handles a message of the stream. Returns whether a credit is due.
    pub(super) fn data(&mut self, bytes: &[u8], now: Instant) -> bool {
        let data = match Data::decode(bytes) {
            Ok(data) => data,
            Err(error) => return self.malformed(error),
        };
        if data.place().ids != self.ids || !self.has_exporter() {
            return false;
        }
        self.heard = Some(now);
        let (len, items) = (bytes.len(), self.receiver.items());
        let whole = match data {
            Data::Begin(begin) => self.begin(begin, len, now),
            Data::Chunk(chunk) => self.receiver.chunk(&chunk, len, now),
            Data::Probe(probe) => return self.probe(&probe, len),
        };
        if let Some(whole) = whole {
            self.complete(whole);
        }
        let since = self.receiver.position().saturating_sub(self.credited);
        self.receiver.items() > items || since >= CREDIT_EVERY
    }

    fn malformed(&mut self, error: Malformed) -> bool {
        log::debug!("{}: {error}", self.origin);
        self.figures.malformed += 1;
        false
    }

    fn probe(&mut self, probe: &Probe, len: usize) -> bool {
        self.receiver.probe(probe.place, len);
        let remote = match (probe.live, probe.ended) {
            (false, _) => RemotePool::NoProducer,
            (true, true) => RemotePool::Ended,
            (true, false) => RemotePool::Running,
        };
        self.set_remote(remote);
        true
    }

    fn set_remote(&mut self, remote: RemotePool) {
        if self.remote != remote {
            self.producer.set_eos(remote == RemotePool::Ended);
            self.remote = remote;
        }
    }

    fn begin(&mut self, begin: Box<Begin>, len: usize, now: Instant) -> Option<Assembly> {
        let (place, total) = (begin.place, begin.total());
        let is_taken = match begin.kind {
            Kind::Sticky => true,
            Kind::Event => self.wants,
            Kind::Frame => self.wants && begin.sticky == self.sticky && self.is_next(&begin),
        };
        let producer = &self.producer;
        let target = || {
            if !is_taken {
                return None;
            }
            let slot = match begin.kind {
                Kind::Frame => Some(slot(producer, &begin)?),
                _ => None,
            };
            Some(Assembly::new(begin, slot))
        };
        self.receiver.begin(place, len, total, now, target)
    }

    /// Whether the frame is newer than the last one. A new exporter may send a frame again.
    fn is_next(&self, begin: &Begin) -> bool {
        let (stream, number) = self.next.unwrap_or_default();
        begin.stream != stream || begin.number >= number
    }

    fn complete(&mut self, whole: Assembly) {
        let Some((begin, slot, named)) = whole.finish() else {
            self.malformed(Malformed("attachments are not valid"));
            return;
        };
        match (begin.kind, slot) {
            (Kind::Sticky, _) => self.set_sticky(begin.sticky, named),
            (Kind::Event, _) => {
                let event = self.localized(begin.meta, named);
                if let Err(error) = self.producer.publish_event(event) {
                    log::debug!("an event is lost: {error}");
                    self.figures.lost += 1;
                }
            }
            (Kind::Frame, Some(slot)) => self.publish(&begin, slot, named),
            (Kind::Frame, None) => {}
        }
    }

    fn set_sticky(&mut self, number: u64, mut sticky: Sticky) {
        sticky.set(MARK, self.origin.as_str());
        match self.producer.set_sticky(&sticky) {
            Ok(_) => self.sticky = number,
            Err(error) => log::warn!("the sticky state cannot be set: {error}"),
        }
    }

    fn publish(&mut self, begin: &Begin, slot: WriteLease, attachments: Attachments) {
        let missed = match self.next {
            Some((stream, number)) if stream == begin.stream => begin.number.saturating_sub(number),
            _ => 0,
        };
        self.next = Some((begin.stream, begin.number.saturating_add(1)));
        self.figures.missed = self.figures.missed.saturating_add(missed);
        let mut meta = self.localized(begin.meta.clone(), attachments);
        if missed > 0 {
            meta.flags |= FrameFlags::AFTER_GAP;
        }
        self.duration = meta.duration.filter(|it| *it > 0);
        self.set_remote(RemotePool::Running);
        match slot.publish(meta) {
            Ok(_) => {
                self.figures.received += 1;
                self.figures.bytes += begin.meta.size;
            }
            Err(error) => {
                log::debug!("a frame is lost: {error}");
                self.figures.lost += 1;
                self.figures.missed += 1;
            }
        }
    }

    /// Converts the times to the clock of this host, and adds the attachments.
    fn localized(&self, mut meta: FrameMeta, attachments: Attachments) -> FrameMeta {
        let clock = lock(&self.clock);
        let local = |time: Option<i64>| time.map(|time| clock.to_local(time));
        meta.timestamp = local(meta.timestamp);
        meta.decode_timestamp = local(meta.decode_timestamp);
        meta.attachments(attachments)
    }
}

fn slot(producer: &Producer, begin: &Begin) -> Option<WriteLease> {
    let size = usize::try_from(begin.meta.size).ok()?.max(1);
    let room = usize::try_from(begin.attached).ok()?;
    let slot = producer.acquire(SlotSpec::new(size).attachments(room));
    slot.inspect_err(|error| log::debug!("a frame is not taken: {error}"))
        .ok()
}
