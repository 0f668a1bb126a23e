// SPDX-License-Identifier: MPL-2.0

//! Reads the exported pool for one session.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "cuda")]
use xmem_core::cuda::CudaError;
use xmem_core::discovery::query;
use xmem_core::follow::{FollowError, Follower, FollowerHandle, OnEos, OverBudget, Step};
use xmem_core::{
    Consumer, ConsumerBuilder, Delivery, FrameMeta, ReadLease, ReceiveError, StartFrom, Sticky,
    key_frame,
};

use crate::MARK;
use crate::wire::MAX_FRAME;

/// The budget: the newest frame, the frame before it, and a frame that is being sent.
const SLOTS: u32 = 3;
/// The maximum number of steps in search of a newer frame. Without a limit, the search would not end if the producer publishes
/// faster than this thread reads.
const MAX_STEPS: usize = 64;
/// The longest wait for the sticky state of a new producer.
const STICKY_TIME: Duration = Duration::from_millis(500);

/// The longest wait for a device to complete a frame. The session sends nothing to the importer in this time.
#[cfg(feature = "cuda")]
const DEVICE_TIME: Duration = Duration::from_secs(1);

/// A reason why a pool cannot be exported.
pub(super) const LOSSLESS: &str = "it is lossless, and a link between hosts loses frames";
/// A reason why a pool cannot be exported.
pub(super) const IMPORTED: &str =
    "it is imported itself: import it from the host that has its producer";

const DRM: &str = "the layout of its frames is that of a device (format=DMA_DRM): convert them upstream of xmemsink";

/// A frame or an event of the pool.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) meta: FrameMeta,
    pub(super) payload: Bytes,
    pub(super) sticky: Arc<Sticky>,
    pub(super) stream: u64,
    pub(super) number: u64,
    pub(super) published_at: i64,
    pub(super) is_downloaded: bool,
}

/// Reads a pool, one producer after another.
#[derive(Debug)]
pub(super) struct Source {
    pool: String,
    builder: ConsumerBuilder,
    follower: Follower,
    /// Continues after the last frame that was read before [`leave`](Self::leave).
    resume: Option<ConsumerBuilder>,
    /// The random number of the current producer's pool.
    stream: u64,
    encoded: bool,
    in_order: bool,
    /// Frames and events, each with its stream. The stream may be that of the previous producer.
    taken: VecDeque<(u64, ReadLease)>,
    ended: bool,
    live: bool,
}

impl Source {
    pub(super) fn new(pool: &str, importer: &str) -> Self {
        let builder = Consumer::builder(pool)
            .name(&format!("xmem-bridge {importer}"))
            .max_held(SLOTS)
            .start_from(StartFrom::Newest)
            .events(true)
            .parts(true);
        let follower = builder.clone().follow();
        Self {
            pool: pool.to_owned(),
            follower: follower.on_eos(OnEos::Wait).over_budget(OverBudget::Drop),
            builder,
            resume: None,
            stream: 0,
            encoded: false,
            in_order: false,
            taken: VecDeque::new(),
            ended: false,
            live: true,
        }
    }

    /// A handle with which other threads send requests to the producer.
    pub(super) fn handle(&self) -> FollowerHandle {
        self.follower.handle()
    }

    /// As [`refusal`], without joining the pool: its producer may be an importer, which requests frames while it has a consumer.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        refusal(&self.pool)
    }

    /// Whether the stream has ended and all entries have been returned.
    pub(super) fn has_ended(&self) -> bool {
        self.ended && self.taken.is_empty()
    }

    /// Whether the pool had a producer at the last attempt to read it. Initially true.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// Whether frames may refer to other frames.
    pub(super) fn is_encoded(&self) -> bool {
        self.encoded
    }

    /// Whether each frame is needed: unless they are pictures or tensors.
    pub(super) fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// Leaves the pool. The next step joins it again, and continues after the last frame if the producer is the same.
    pub(super) fn leave(&mut self) {
        self.taken.clear();
        if let Some(consumer) = self.follower.leave() {
            self.resume = Some(self.builder.clone().resume(&consumer));
        }
    }

    /// Returns the next event or the newest frame; the next frame if each is needed.
    ///
    /// It waits at most `timeout` for an entry, and in addition [`STICKY_TIME`] for the sticky state of a new producer and 1 s for
    /// a device. The error is the reason why the pool cannot be exported.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Option<Entry>, String> {
        if self.taken.is_empty() {
            self.step(timeout)?;
        }
        if !self.in_order && !self.taken.is_empty() {
            for _ in 0..MAX_STEPS {
                if !self.step(Duration::ZERO)? {
                    break;
                }
                // Drop older frames immediately, because held frames use the budget.
                self.skip_older_frames();
            }
        }
        let taken = self.taken.pop_front();
        taken
            .map(|(stream, lease)| self.entry(stream, lease))
            .transpose()
    }

    /// Drops all frames but the newest one. Keeps events.
    fn skip_older_frames(&mut self) {
        let is_frame = |(_, lease): &&(u64, ReadLease)| !lease.meta().event;
        let frames = self.taken.iter().filter(is_frame).count();
        let mut older = frames.saturating_sub(1);
        self.taken.retain(|(_, lease)| {
            let skips = older > 0 && !lease.meta().event;
            older -= usize::from(skips);
            !skips
        });
        for _ in 1..frames {
            self.follower.note_dropped();
        }
    }

    /// Joins the pool, or takes the next entry. Returns whether it took an entry.
    fn step(&mut self, timeout: Duration) -> Result<bool, String> {
        let step = match &self.resume {
            Some(resume) if self.follower.consumer().is_none() => {
                let found = resume.connect_wait(Some(timeout));
                self.follower.found(found)
            }
            _ => self.follower.step(Some(timeout), |taken| taken.kept()),
        };
        match step {
            Ok(Step::Took(Some(lease))) => {
                self.ended = false;
                self.taken.push_back((self.stream, lease));
                return Ok(true);
            }
            Ok(Step::Took(None)) => self.follower.note_dropped(),
            Ok(Step::Joined { .. }) => self.joined()?,
            Ok(Step::Eos) => self.ended = true,
            Ok(Step::Lost(_) | Step::NoProducer { .. }) => self.live = false,
            Ok(_) => {}
            // Each step would return it until this consumer has left, or this process has descriptors and memory again.
            Err(FollowError::Receive(error @ (ReceiveError::CutOff | ReceiveError::Region(_)))) => {
                return Err(error.to_string());
            }
            // The error concerns one frame. The next frame may be valid.
            Err(FollowError::Receive(error)) => log::debug!("a frame is not exported: {error}"),
            Err(error) => return Err(error.to_string()),
        }
        Ok(false)
    }

    /// Checks whether the pool of a new producer can be exported.
    fn joined(&mut self) -> Result<(), String> {
        self.resume = None;
        (self.live, self.ended) = (true, false);
        let Some(consumer) = self.follower.consumer() else {
            return Ok(());
        };
        if consumer.delivery() == Delivery::Lossless {
            return Err(LOSSLESS.to_owned());
        }
        self.stream = consumer.pool_id();
        if let Some(sticky) = consumer.wait_sticky(Some(STICKY_TIME)) {
            self.check_sticky(&sticky)?;
        }
        Ok(())
    }

    /// Checks whether frames with this sticky state can be exported.
    fn check_sticky(&mut self, sticky: &Sticky) -> Result<(), String> {
        let caps = sticky.text("caps").unwrap_or_default();
        self.encoded = key_frame::is_needed(caps);
        let needs_all = ["audio/", "text/", "video/mpegts"];
        self.in_order = self.encoded || needs_all.iter().any(|name| caps.starts_with(name));
        match sticky.get(MARK) {
            Some(_) => Err(IMPORTED.to_owned()),
            None if caps.contains("DMA_DRM") => Err(DRM.to_owned()),
            None => Ok(()),
        }
    }

    fn entry(&mut self, stream: u64, lease: ReadLease) -> Result<Entry, String> {
        self.check_sticky(lease.sticky())?;
        let (info, meta) = (*lease.info(), lease.meta().clone());
        if meta.size > MAX_FRAME {
            let text = "a frame has more than the 256 MiB that are exported";
            return Err(format!("{text}: {} bytes", meta.size));
        }
        let sticky = lease.sticky().clone();
        let is_downloaded = lease.is_on_device();
        Ok(Entry {
            payload: if meta.event {
                Bytes::new()
            } else {
                payload(lease)?
            },
            meta,
            sticky,
            stream,
            number: info.number(),
            published_at: info.published_at,
            is_downloaded,
        })
    }
}

/// A frame whose bytes were found readable.
struct Whole(ReadLease);

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

/// The bytes of a frame. They keep the lease, unless the frame is copied: from a device, or from several parts.
fn payload(lease: ReadLease) -> Result<Bytes, String> {
    if lease.is_on_device() {
        return download(&lease);
    }
    let unreadable = |error| format!("a frame cannot be read: {error}");
    match lease.parts() {
        [] => {}
        [part] => {
            part.map().map_err(unreadable)?;
        }
        _ => return Ok(lease.to_vec().map_err(unreadable)?.into()),
    }
    lease.bytes().map_err(|error| error.to_string())?;
    Ok(Bytes::from_owner(Whole(lease)))
}

/// Copies a frame from a device.
#[cfg(feature = "cuda")]
fn download(lease: &ReadLease) -> Result<Bytes, String> {
    let download = || -> Result<_, CudaError> {
        let frame = lease.cuda()?;
        if !frame.synchronize_for(DEVICE_TIME)? {
            return Ok(None);
        }
        let mut bytes = vec![0; frame.parts().map(|(_, len)| len).sum()];
        frame.download(&mut bytes)?;
        Ok(Some(bytes))
    };
    match download() {
        Ok(Some(bytes)) => Ok(bytes.into()),
        Ok(None) => Err("the device does not complete a frame".to_owned()),
        Err(error) => Err(format!("a frame on a device cannot be read: {error}")),
    }
}

#[cfg(not(feature = "cuda"))]
fn download(_: &ReadLease) -> Result<Bytes, String> {
    let text = "frames on a device are not exported: build xmem-bridge with the feature `cuda`, or publish from host memory";
    Err(text.to_owned())
}

/// The sticky state with caps for host memory, because frames arrive in host memory, and xmemsrc refuses frames that are not in
/// the memory that the caps name.
pub(super) fn in_host_memory(sticky: &Sticky) -> Sticky {
    let mut sticky = sticky.clone();
    if let Some(caps) = sticky.text("caps").and_then(without_memory) {
        sticky.set("caps", caps.as_str());
    }
    sticky
}

/// Removes the memory features from caps. `None` if the caps have no features.
fn without_memory(caps: &str) -> Option<String> {
    let (name, rest) = caps
        .split_once('(')
        .filter(|(name, _)| !name.contains(','))?;
    let (features, fields) = rest.split_once(')')?;
    let features = features.split(',').map(str::trim);
    let kept: Vec<_> = features.filter(|it| !it.starts_with("memory:")).collect();
    Some(match &kept[..] {
        [] => format!("{name}{fields}"),
        kept => format!("{name}({}){fields}", kept.join(", ")),
    })
}

/// The reason why the pool cannot be exported. `None` if it can, or if it has no producer yet.
pub(super) fn refusal(pool: &str) -> Option<&'static str> {
    let stats = query(pool).ok()?;
    let is_imported = stats.sticky.iter().any(|(key, _)| key == MARK);
    match stats.delivery {
        Delivery::Lossless => Some(LOSSLESS),
        Delivery::Live => is_imported.then_some(IMPORTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_of_host_memory() {
        for (caps, expected) in [
            (
                "video/x-raw(memory:CUDAMemory), format=(string)NV12",
                Some("video/x-raw, format=(string)NV12"),
            ),
            (
                "video/x-raw(memory:DMABuf, meta:GstVideoOverlayComposition), width=(int)2",
                Some("video/x-raw(meta:GstVideoOverlayComposition), width=(int)2"),
            ),
            ("video/x-raw, format=(string)NV12", None),
            ("video/x-raw", None),
        ] {
            assert_eq!(without_memory(caps).as_deref(), expected, "{caps}");
        }
    }
}
