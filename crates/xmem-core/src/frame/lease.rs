// SPDX-License-Identifier: MPL-2.0

//! The right to read a frame, of this process or another.
#![allow(unsafe_code)] // slices over shared memory, while the protocol keeps writers out

use std::sync::Arc;
use std::{fmt, io};

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::entry::FrameInfo;
use xmem_shm::abi::frame_layout::FrameLayout;
use xmem_shm::abi::limits::MAX_NAMED_SIZE;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::{Named, Sticky};
use xmem_shm::abi::parts::{self, PartPlace};
use xmem_shm::bounds::is_range_inside;

use super::hold::{Hold, Memory};
use super::parts::Part;
use crate::error::NotReadable;
use crate::region::Dmabuf;

/// Why another process's description of a frame is invalid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Reads the attachments of a held frame.
#[inline(never)]
fn attachments(hold: &Hold, (at, len): (u64, u64)) -> Result<Named, Malformed> {
    let outside = Malformed("attachments lie outside their slot");
    if !is_range_inside(at, len, hold.len() as u64) || len > MAX_NAMED_SIZE as u64 {
        return Err(outside);
    }
    let (at, len) = (at as usize, len as usize);
    let mut bytes = vec![0; len];
    // Copied first and without a reference, because a malicious producer could change the bytes meanwhile.
    // SAFETY: the source is inside of the slot, which is mapped while the frame is held. See `ReadLease::bytes`.
    unsafe {
        hold.ptr()
            .wrapping_add(at)
            .copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
    }
    Named::decode(&bytes).ok_or(Malformed("invalid attachments"))
}

/// The places of a frame's parts, from the attachment with their list.
#[cold]
fn part_places(list: &[u8], meta: &FrameMeta) -> Result<Vec<PartPlace>, Malformed> {
    parts::decode(list)
        .filter(|places| parts::total(places) == Some(meta.size) && meta.offset == 0)
        .ok_or(Malformed("the list of a frame's parts is invalid"))
}

/// The right to read a published frame. The frame does not change as long as a clone of the lease exists.
///
/// Clones are local to the process and do not copy the frame. The lease ends when the last clone is dropped, on any
/// thread. A lease outlives the [`Consumer`](crate::Consumer) or [`Producer`](crate::Producer) it came from, and the
/// process that published the frame. It does not outlive a fork: the slot is used again once the parent releases it, and the
/// child then reads another frame there.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("p.sock");
/// # let pool = pool.to_str().unwrap();
/// use xmem_core::{Consumer, FrameMeta, Producer};
///
/// let producer = Producer::builder(pool).build()?;
/// let mut consumer = Consumer::builder(pool).connect()?;
/// let mut slot = producer.acquire(4)?;
/// slot.as_mut_slice().copy_from_slice(b"abcd");
/// slot.publish(FrameMeta::new(4))?;
///
/// let frame = consumer.receive(None)?;
/// drop((consumer, producer));
/// assert_eq!(frame.bytes()?, b"abcd");
/// assert_eq!(frame.info().sequence, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ReadLease {
    hold: Hold,
    frame: Arc<Description>,
}

/// Finds the parts of a held frame. `None`: they are gone.
pub(crate) type FindParts<'a, E> = &'a dyn Fn(Vec<PartPlace>) -> Result<Option<Vec<Part>>, E>;

impl fmt::Debug for ReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadLease")
            .field("pool", &self.pool())
            .field("sequence", &self.info().sequence)
            .field("slot", &self.info().slot)
            .field("generation", &self.info().generation)
            .field("size", &self.meta().size)
            .finish_non_exhaustive()
    }
}

impl ReadLease {
    /// A lease on the held frame of an entry, which another process may have written. `kept`: reusable memory for the description.
    /// `None`: a part of it is gone.
    pub(crate) fn new<E: From<Malformed>>(
        kept: &mut Descriptions,
        hold: Hold,
        entry: &Entry,
        info: FrameInfo,
        described: Described<'_>,
        sticky: &Arc<Sticky>,
        find_parts: FindParts<'_, E>,
    ) -> Result<Option<Self>, E> {
        let attached = entry.attached();
        let room = hold.device_len().unwrap_or(hold.len()) as u64;
        let frame = match described {
            Described::Plain(layout) if attached.1 == 0 => {
                check_payload(entry.offset(), entry.size(), room)?;
                kept.share(entry, info, layout, sticky)
            }
            described => {
                let mut meta = described.meta(entry);
                let mut places = None;
                if attached.1 > 0 {
                    meta.attachments = attachments(&hold, attached)?;
                    places = meta.attachments.take(parts::NAME);
                }
                let payload = if let Some(places) = places {
                    match find_parts(part_places(&places, &meta)?)? {
                        Some(parts) => Payload::Parts(parts.into()),
                        None => return Ok(None),
                    }
                } else {
                    check_payload(meta.offset, meta.size, room)?;
                    Payload::Slot
                };
                Arc::new(Description {
                    info,
                    meta,
                    sticky: sticky.clone(),
                    payload,
                })
            }
        };
        Ok(Some(Self { hold, frame }))
    }

    /// The producer's own lease on a frame that it just published. It does not have the frame's parts.
    pub(crate) fn of_own(
        hold: Hold,
        info: FrameInfo,
        meta: FrameMeta,
        sticky: Arc<Sticky>,
        has_parts: bool,
    ) -> Self {
        let payload = if has_parts {
            Payload::UnknownParts
        } else {
            Payload::Slot
        };
        let frame = Arc::new(Description {
            info,
            meta,
            sticky,
            payload,
        });
        Self { hold, frame }
    }

    /// Whether all bytes that were read belonged to this frame. With all leases they did; see
    /// [`receive_with`](crate::Consumer::receive_with).
    pub(crate) fn is_intact(&self) -> bool {
        self.held_at_origin().all(Hold::is_intact)
    }

    /// Whether there are clones of this lease, although another process has the lease on a part.
    pub(crate) fn has_unleased_clones(&self) -> bool {
        self.held_at_origin().any(|held| !held.is_lease()) && Arc::strong_count(&self.frame) > 1
    }

    fn held_at_origin(&self) -> impl Iterator<Item = &Hold> {
        self.parts().iter().filter_map(Part::held_at_origin)
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Whether the frame is in parts that this lease does not have, because it is the producer's own.
    pub(crate) fn has_unknown_parts(&self) -> bool {
        matches!(self.frame.payload, Payload::UnknownParts)
    }

    /// Whether both are clones of one lease.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.frame, &other.frame)
    }

    /// The slot's first byte.
    #[doc(hidden)]
    pub fn slot_ptr(&self) -> *const u8 {
        self.hold.ptr()
    }

    /// The slot's size in bytes; 0 if it is on a device.
    pub fn slot_len(&self) -> usize {
        if self.hold.device_len().is_some() {
            0
        } else {
            self.hold.len()
        }
    }

    /// Whether the payload is on a CUDA device. Then host memory has none of its bytes.
    pub fn is_on_device(&self) -> bool {
        self.hold.device_len().is_some() || self.parts().iter().any(Part::is_on_device)
    }

    /// The parts of the frame, if it is not in its slot. Only for consumers that enabled
    /// [`parts`](crate::ConsumerBuilder::parts); the producer's own lease has none.
    pub fn parts(&self) -> &[Part] {
        match &self.frame.payload {
            Payload::Parts(parts) => parts,
            Payload::Slot | Payload::UnknownParts => &[],
        }
    }

    /// The payload as a DMA buffer, if it is in its slot and the consumer set [`dmabuf`](crate::ConsumerBuilder::dmabuf). The bytes
    /// are those of [`bytes`](Self::bytes), which is faster for the CPU.
    pub fn dmabuf(&self) -> Option<Dmabuf> {
        let Memory::Received(view) = self.hold.memory() else {
            return None;
        };
        let start = self.hold.offset() + self.meta().offset as usize;
        let size = self.meta().size as usize;
        match self.frame.payload {
            Payload::Slot => view.dmabuf(&(start..start + size)),
            Payload::Parts(_) | Payload::UnknownParts => None,
        }
    }

    /// The payload's size in bytes, wherever it is.
    pub fn size(&self) -> u64 {
        self.meta().size
    }

    /// The payload.
    ///
    /// # Errors
    ///
    /// [`NotReadable`] says why it is not in one piece of this process's memory.
    pub fn bytes(&self) -> Result<&[u8], NotReadable> {
        match &self.frame.payload {
            Payload::Slot if self.hold.device_len().is_none() => {}
            _ => return self.bytes_elsewhere(),
        }
        let (offset, size) = (self.meta().offset as usize, self.meta().size as usize);
        // SAFETY: the payload is inside of the slot (checked by `new`, or by `publish`), and the slot inside of a mapping that the
        // hold keeps (checked by `Take::frame`, or planned by the producer). While the hold lives, a producer that follows the
        // protocol does not write there. Another producer can only corrupt its own frames: bytes have no invalid values.
        Ok(unsafe { std::slice::from_raw_parts(self.slot_ptr().wrapping_add(offset), size) })
    }

    /// A copy of the payload in private memory.
    ///
    /// # Errors
    ///
    /// If it is on a CUDA device, a part cannot be [mapped](Part::map), or there is too little memory: parts may overlap, so a frame
    /// can be larger than its memory.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let pieces = match self.parts() {
            [] => vec![self.bytes().map_err(io::Error::other)?],
            parts => parts.iter().map(Part::map).collect::<io::Result<_>>()?,
        };
        let mut copy = Vec::new();
        copy.try_reserve_exact(pieces.iter().map(|piece| piece.len()).sum())?;
        pieces
            .iter()
            .for_each(|piece| copy.extend_from_slice(piece));
        Ok(copy)
    }

    /// The payload, which is not in a slot in host memory.
    #[cold]
    fn bytes_elsewhere(&self) -> Result<&[u8], NotReadable> {
        if self.is_on_device() {
            return Err(NotReadable::OnDevice);
        }
        match self.parts() {
            [] => Err(NotReadable::NotMapped),
            [part] => part.mapped().ok_or(NotReadable::NotMapped),
            parts => Err(NotReadable::InParts(parts.len())),
        }
    }

    /// The values that publishing added: the frame's number, its slot, when it was published.
    pub fn info(&self) -> &FrameInfo {
        &self.frame.info
    }

    /// The frame's description, as the program that published it gave it.
    pub fn meta(&self) -> &FrameMeta {
        &self.frame.meta
    }

    /// The sticky state that the frame belongs to.
    pub fn sticky(&self) -> &Arc<Sticky> {
        &self.frame.sticky
    }

    /// The name of the frame's pool.
    pub fn pool(&self) -> &str {
        self.hold.pool_name()
    }

    /// Whether the producer that published it, or its process, has ended. Resources that it kept with the frame are gone then; the
    /// frame itself stays. Always `false` for the producer's own lease ([`is_local`](Self::is_local)).
    pub fn producer_is_gone(&self) -> bool {
        self.hold.producer_is_gone()
    }

    /// Whether a producer of this process published the frame, and this is its own reference.
    pub fn is_local(&self) -> bool {
        self.hold.is_own()
    }
}

/// The properties of a frame besides its slot.
pub(super) struct Description {
    pub(super) info: FrameInfo,
    pub(super) meta: FrameMeta,
    pub(super) sticky: Arc<Sticky>,
    pub(super) payload: Payload,
}

/// The place of the payload.
pub(super) enum Payload {
    Slot,
    Parts(Box<[Part]>),
    /// In parts. This is the producer's own lease, which does not have them.
    UnknownParts,
}

fn check_payload(offset: u64, size: u64, room: u64) -> Result<(), Malformed> {
    if is_range_inside(offset, size, room) {
        Ok(())
    } else {
        Err(Malformed("a payload lies outside its slot"))
    }
}

/// The description of an entry's frame, without the attachments.
pub(crate) enum Described<'a> {
    /// The entry has all of it, except this layout.
    Plain(&'a Arc<FrameLayout>),
    Whole(FrameMeta),
}

impl Described<'_> {
    pub(crate) fn meta(self, entry: &Entry) -> FrameMeta {
        match self {
            Self::Plain(layout) => entry.meta(layout.clone(), None),
            Self::Whole(meta) => meta,
        }
    }
}

/// The maximum number of kept descriptions.
const MAX_KEPT: usize = 16;

/// Reuses the descriptions of plain frames, which lie in their slots and have no attachments. A consumer that releases its frames
/// allocates none for the next frame, and most have the layout and the sticky state of the frame before.
#[derive(Default)]
pub(crate) struct Descriptions(Vec<Arc<Description>>);

impl std::fmt::Debug for Descriptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptions").finish_non_exhaustive()
    }
}

impl Descriptions {
    /// Shares a description, in memory that no frame uses any more if there is any.
    fn share(
        &mut self,
        entry: &Entry,
        info: FrameInfo,
        layout: &Arc<FrameLayout>,
        sticky: &Arc<Sticky>,
    ) -> Arc<Description> {
        let unused = self.0.iter_mut().find(|kept| Arc::strong_count(kept) == 1);
        if let Some(kept) = unused
            && let Some(place) = Arc::get_mut(kept)
        {
            place.info = info;
            entry.describe(&mut place.meta);
            keep(&mut place.meta.layout, layout);
            keep(&mut place.sticky, sticky);
            return kept.clone();
        }
        let shared = Arc::new(Description {
            info,
            meta: entry.meta(layout.clone(), None),
            sticky: sticky.clone(),
            payload: Payload::Slot,
        });
        if self.0.len() < MAX_KEPT {
            self.0.push(shared.clone());
        }
        shared
    }
}

/// Refers to `now`. Mostly it already does.
fn keep<T>(place: &mut Arc<T>, now: &Arc<T>) {
    if !Arc::ptr_eq(place, now) {
        *place = now.clone();
    }
}
