// SPDX-License-Identifier: MPL-2.0

//! Where an allocator and its pools get their slots, for as long as the sink runs.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use xmem_core::{AcquireError, Producer, SlotSpec, WriteLease};

use crate::buffers::memory::SpareBuffers;
use crate::buffers::tally::Tally;
use crate::lock;

static CAT: std::sync::LazyLock<gst::DebugCategory> = std::sync::LazyLock::new(|| {
    gst::DebugCategory::new(
        "xmemallocator",
        gst::DebugColorFlags::empty(),
        Some("Memory in shared slots"),
    )
});

/// The link from allocators and pools to the sink's producer. Upstream may keep both for any time.
#[derive(Debug)]
pub(crate) struct SlotSource {
    /// Gone once the sink has stopped.
    producer: Mutex<Option<Producer>>,
    /// Why the pool cannot serve this upstream, in words for an element error.
    refusal: Mutex<Option<String>>,
    is_refused: AtomicBool,
    tally: Arc<Tally>,
    private: AtomicU64,
    /// The pools' kept buffers, which are freed when the sink stops.
    spare: Mutex<Vec<Weak<SpareBuffers>>>,
    /// Bytes behind each frame for its metas.
    room: AtomicUsize,
}

impl SlotSource {
    /// Slots with so many bytes of `room` for metas, to begin with.
    pub(crate) fn new(producer: Producer, room: usize) -> Arc<Self> {
        Arc::new(Self {
            producer: Mutex::new(Some(producer)),
            refusal: Mutex::new(None),
            is_refused: AtomicBool::new(false),
            tally: Arc::default(),
            private: AtomicU64::new(0),
            spare: Mutex::default(),
            room: AtomicUsize::new(room),
        })
    }

    /// From now on there are no slots, only system memory.
    pub(crate) fn close(&self) {
        let producer = lock(&self.producer).take();
        drop(producer);
        let spare = std::mem::take(&mut *lock(&self.spare));
        spare
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|spare| spare.close());
    }

    /// Adds buffers to free when the sink stops.
    pub(crate) fn close_later(&self, buffers: &Arc<SpareBuffers>) {
        let mut spare = lock(&self.spare);
        spare.retain(|other| other.strong_count() > 0);
        spare.push(Arc::downgrade(buffers));
    }

    /// The producer, for use without the lock: it may make a region, which takes time, and run hooks, which may call back.
    fn producer(&self) -> Option<Producer> {
        lock(&self.producer).clone()
    }

    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// How many buffers upstream got in private memory because no slot was free.
    pub(crate) fn private(&self) -> u64 {
        self.private.load(Ordering::Relaxed)
    }

    /// A slot, without waiting.
    pub(crate) fn acquire(&self, size: usize) -> Option<WriteLease> {
        self.acquire_as(size, SlotSpec::new(size))
    }

    /// The same for a slot of this kind, with room for metas.
    pub(crate) fn acquire_as(&self, size: usize, spec: SlotSpec) -> Option<WriteLease> {
        let producer = self.producer()?;
        let room = self.room.load(Ordering::Relaxed);
        match producer.acquire(spec.attachments(room).ahead()) {
            Ok(lease) => Some(lease),
            Err(error) => {
                if !matches!(error, AcquireError::Closed) {
                    self.private.fetch_add(1, Ordering::Relaxed);
                }
                gst::debug!(
                    gst::CAT_PERFORMANCE,
                    "No slot for {size} bytes, giving private memory: {error}"
                );
                None
            }
        }
    }

    /// Makes later slots with room for so many bytes of metas.
    pub(crate) fn expect_metas(&self, bytes: usize) {
        if bytes > self.room.load(Ordering::Relaxed) {
            // The next frame's may be somewhat larger.
            let room = bytes.checked_next_power_of_two().unwrap_or(bytes);
            self.room.fetch_max(room, Ordering::Relaxed);
        }
    }

    /// Sets the number of slots that upstream keeps at once.
    pub(crate) fn set_upstream_need(&self, slots: u32) {
        let Some(producer) = self.producer() else {
            return;
        };
        let refusal = producer.set_upstream_need(slots).err().map(|error| {
            format!("Upstream needs {slots} slots at once, and the pool cannot give them: {error}. Raise max-slots")
        });
        if let Some(refusal) = &refusal {
            gst::warning!(CAT, "{refusal}");
        }
        let mut known = lock(&self.refusal);
        self.is_refused.store(refusal.is_some(), Ordering::Relaxed);
        *known = refusal;
    }

    /// Why the pool cannot serve this upstream.
    pub(crate) fn refusal(&self) -> Option<String> {
        // Called for each frame.
        let is_refused = self.is_refused.load(Ordering::Relaxed);
        is_refused.then(|| lock(&self.refusal).clone())?
    }
}
