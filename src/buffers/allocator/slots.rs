// SPDX-License-Identifier: MPL-2.0

//! Gives slots to an allocator and its buffer pools until the sink stops, and counts copies of slots.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use xmem_core::{AcquireError, Producer, SlotSpec, WriteLease};

use crate::{debug_category, lock};

static CAT: std::sync::LazyLock<gst::DebugCategory> =
    std::sync::LazyLock::new(|| debug_category("xmemallocator", "Memory in shared slots"));

/// What keeps buffers between two frames.
pub(crate) trait KeepsBuffers: std::fmt::Debug + Send + Sync {
    /// Frees them. From now on none are kept.
    fn close(&self);
}

/// Connects allocators and buffer pools to the sink's producer. Upstream may keep both longer than the sink runs.
#[derive(Debug)]
pub(crate) struct SlotSource {
    /// `None` after the sink has stopped.
    producer: Mutex<Option<Producer>>,
    /// Why the pool cannot serve this upstream, as the text of an element error.
    refusal: Mutex<Option<String>>,
    is_refused: AtomicBool,
    tally: Arc<Tally>,
    private: AtomicU64,
    /// The buffers that buffer pools keep. They are freed when the sink stops.
    kept: Mutex<Vec<Weak<dyn KeepsBuffers>>>,
    /// The room for the metas of a frame, in bytes.
    room: AtomicUsize,
}

impl SlotSource {
    /// `room` is the initial room for metas, in bytes.
    pub(crate) fn new(producer: Producer, room: usize) -> Arc<Self> {
        Arc::new(Self {
            producer: Mutex::new(Some(producer)),
            refusal: Mutex::new(None),
            is_refused: AtomicBool::new(false),
            tally: Arc::default(),
            private: AtomicU64::new(0),
            kept: Mutex::default(),
            room: AtomicUsize::new(room),
        })
    }

    /// From now on there are no slots, only system memory.
    pub(crate) fn close(&self) {
        let producer = lock(&self.producer).take();
        drop(producer);
        let kept = std::mem::take(&mut *lock(&self.kept));
        kept.iter()
            .filter_map(Weak::upgrade)
            .for_each(|kept| kept.close());
    }

    /// Registers kept buffers that are freed when the sink stops.
    pub(crate) fn close_later(&self, buffers: Weak<dyn KeepsBuffers>) {
        let mut kept = lock(&self.kept);
        kept.retain(|other| other.strong_count() > 0);
        kept.push(buffers);
    }

    /// The producer, for use without this lock: it may allocate a region, which takes time, and run hooks that call back.
    fn producer(&self) -> Option<Producer> {
        lock(&self.producer).clone()
    }

    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// How many buffers in private memory upstream got because no slot was free.
    pub(crate) fn private(&self) -> u64 {
        self.private.load(Ordering::Relaxed)
    }

    /// A slot. Does not wait.
    pub(crate) fn acquire(&self, size: usize) -> Option<WriteLease> {
        self.acquire_as(size, SlotSpec::new(size))
    }

    /// A slot of this kind, with room for metas. Does not wait.
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

    /// Gives later slots at least this much room for metas.
    pub(crate) fn expect_metas(&self, bytes: usize) {
        if bytes > self.room.load(Ordering::Relaxed) {
            // The metas of the next frame may be slightly larger.
            let room = bytes.checked_next_power_of_two().unwrap_or(bytes);
            self.room.fetch_max(room, Ordering::Relaxed);
        }
    }

    /// Sets the number of slots that upstream holds at one time.
    pub(crate) fn set_upstream_need(&self, slots: u32) {
        let Some(producer) = self.producer() else {
            return;
        };
        let refusal = producer.set_upstream_need(slots).err().map(|error| {
            format!("Upstream needs {slots} slots at once, and the pool cannot give them: {error}")
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
        // This is called for each frame.
        let is_refused = self.is_refused.load(Ordering::Relaxed);
        is_refused.then(|| lock(&self.refusal).clone())?
    }
}

/// Counts copies of slots. Each slot in use holds a reference to it.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    copies: AtomicU64,
}

impl Tally {
    /// Restarts the count at 0.
    pub(crate) fn reset(&self) {
        self.copies.store(0, Ordering::Relaxed);
    }

    /// Counts a copy that GStreamer made of the memory of a slot.
    pub(crate) fn note_copy(&self) {
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    /// How often GStreamer copied the memory of a slot, for an element that wanted to write it.
    pub(crate) fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }
}
