// SPDX-License-Identifier: MPL-2.0

//! Figures summed over all producers, and the present connection. Any thread may read them.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use xmem_core::{
    ConsumerHandle,
    follow::{Handle, Stats},
    key_frame::KeyFrame,
};

use super::log::CAT;
use crate::lock;

#[derive(Debug, Default)]
pub(super) struct Figures {
    zero_copy: AtomicU64,
    undecodable: AtomicU64,
    /// `None`: the source was never started.
    follower: Mutex<Option<Handle>>,
}

impl Figures {
    /// Starts to count at 0, for a new follower.
    pub(super) fn restart(&self, follower: Handle) {
        *lock(&self.follower) = Some(follower);
        self.zero_copy.store(0, Ordering::Relaxed);
        self.undecodable.store(0, Ordering::Relaxed);
    }

    /// Counts a frame that is sent downstream in place.
    pub(super) fn note_zero_copy(&self) {
        self.zero_copy.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame that depends on a key frame that was not received.
    pub(super) fn note_undecodable(&self) {
        self.undecodable.fetch_add(1, Ordering::Relaxed);
    }

    /// The figures of the follower, `zero-copy` and `undecodable`.
    pub(super) fn get(&self) -> (Stats, u64, u64) {
        let follower = lock(&self.follower).clone();
        let stats = follower.map(|it| it.stats()).unwrap_or_default();
        let figure = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        (stats, figure(&self.zero_copy), figure(&self.undecodable))
    }

    /// The connection to the present producer. `None`: there is no producer.
    pub(super) fn consumer(&self) -> Option<ConsumerHandle> {
        let follower = lock(&self.follower).clone();
        follower?.consumer()
    }

    /// Requests a key frame from the producer. `false`: there is no producer, or it takes no requests.
    pub(super) fn request(&self, element: &gst_base::BaseSrc, key_frame: KeyFrame) -> bool {
        let Some(consumer) = self.consumer() else {
            return false;
        };
        let asked = consumer.request(KeyFrame::NAME, &key_frame.encode());
        asked
            .inspect_err(|error| {
                gst::debug!(CAT, obj = element, "Cannot ask for {key_frame:?}: {error}");
            })
            .is_ok()
    }
}
