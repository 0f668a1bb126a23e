// SPDX-License-Identifier: MPL-2.0

//! Figures over all producers that a source was connected to, and the present connection, for any thread.

use std::sync::Mutex;

use xmem_core::{
    ConsumerHandle,
    follow::{Handle, Stats},
};

use super::log::CAT;
use crate::{
    event::key_frame::{self, KeyFrame},
    lock,
};

#[derive(Debug, Default)]
pub(super) struct Figures(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    zero_copy: u64,
    undecodable: u64,
    /// `None`: the source was never started.
    follower: Option<Handle>,
}

impl Figures {
    /// Counts from 0 for a new follower.
    pub(super) fn restart(&self, follower: Handle) {
        *lock(&self.0) = State {
            follower: Some(follower),
            ..State::default()
        };
    }

    /// Counts a frame that is handed downstream where it lies.
    pub(super) fn note_zero_copy(&self) {
        lock(&self.0).zero_copy += 1;
    }

    /// Counts a frame that needs a key frame that was not received.
    pub(super) fn note_undecodable(&self) {
        lock(&self.0).undecodable += 1;
    }

    /// The figures of the follower, `zero-copy` and `undecodable`.
    pub(super) fn get(&self) -> (Stats, u64, u64) {
        let (follower, zero_copy, undecodable) = {
            let state = lock(&self.0);
            (state.follower.clone(), state.zero_copy, state.undecodable)
        };
        let stats = follower.map(|it| it.stats()).unwrap_or_default();
        (stats, zero_copy, undecodable)
    }

    /// The connection to the present producer. `None`: there is no producer.
    pub(super) fn consumer(&self) -> Option<ConsumerHandle> {
        let follower = lock(&self.0).follower.clone();
        follower?.consumer()
    }

    /// Asks the producer for a key frame. `false`: there is no producer, or it takes no requests.
    pub(super) fn request(&self, element: &gst_base::BaseSrc, key_frame: KeyFrame) -> bool {
        let Some(consumer) = self.consumer() else {
            return false;
        };
        let asked = consumer.request(key_frame::NAME, &key_frame.encode());
        asked
            .inspect_err(|error| {
                gst::debug!(CAT, obj = element, "Cannot ask for {key_frame:?}: {error}");
            })
            .is_ok()
    }
}
