// SPDX-License-Identifier: MPL-2.0

//! Forwards the consumers' requests for key frames to upstream.
//!
//! The pool's control thread receives requests, in any number. It merges them into a short list. Another thread sends them
//! upstream, one at a time and at limited intervals.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use gst::prelude::*;
use gst_base::prelude::*;
use xmem_core::key_frame::KeyFrame;

use super::log::CAT;
use crate::{
    lock,
    stream::{caps, event::key_frame, timing},
};

/// The minimum time between two requests to upstream.
const INTERVAL: Duration = Duration::from_millis(200);
/// At most this many requests with a time are kept.
const MAX_TIMED: usize = 16;
/// Requests further ahead are dropped, because an encoder keeps them until their time.
const HORIZON: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Requests {
    state: Mutex<State>,
    stopped: Condvar,
    /// Counts the requests for a key frame as soon as possible. Written under the lock.
    num_requested: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    /// A request for a key frame as soon as possible: whether it wants all headers.
    now: Option<bool>,
    later: Vec<KeyFrame>,
    /// Counts the requests for a key frame as soon as possible. If it changed, there was another request.
    num_requested: u32,
    /// A thread is sending them.
    is_serving: bool,
    is_running: bool,
    last: Option<Instant>,
    count: u32,
}

impl State {
    fn add(&mut self, request: KeyFrame) {
        let Some(at) = request.at else {
            self.num_requested = self.num_requested.wrapping_add(1);
            self.now = Some(request.all_headers || self.now.unwrap_or_default());
            return;
        };
        let until = Duration::from(timing::elapsed(xmem_core::monotonic_ns(), at));
        if until <= HORIZON && self.later.len() < MAX_TIMED && !self.later.contains(&request) {
            self.later.push(request);
        }
    }

    fn take(&mut self) -> Option<KeyFrame> {
        if let Some(all_headers) = self.now.take() {
            return Some(KeyFrame {
                all_headers,
                at: None,
            });
        }
        (!self.later.is_empty()).then(|| self.later.remove(0))
    }

    /// A key frame answers the requests counted in `num_requested`. Later requests stay, because their consumers may already have
    /// received that key frame.
    fn note_key_frame(&mut self, num_requested: u32) {
        if self.num_requested == num_requested {
            self.now = None;
        }
    }

    fn is_empty(&self) -> bool {
        self.now.is_none() && self.later.is_empty()
    }
}

impl Requests {
    /// The sink is started.
    pub(super) fn start(&self) {
        let mut state = lock(&self.state);
        *state = State {
            is_serving: state.is_serving,
            is_running: true,
            ..State::default()
        };
        self.num_requested.store(0, Ordering::Release);
    }

    /// The sink is stopped. From now on nothing is sent.
    pub(super) fn stop(&self) {
        lock(&self.state).is_running = false;
        self.stopped.notify_all();
    }

    /// Adds a request of a consumer. Returns at once.
    pub(super) fn add(self: &Arc<Self>, sink: &gst_base::BaseSink, request: KeyFrame) {
        {
            let mut state = lock(&self.state);
            if !state.is_running {
                return;
            }
            state.add(request);
            self.num_requested
                .store(state.num_requested, Ordering::Release);
            if state.is_empty() || std::mem::replace(&mut state.is_serving, true) {
                return;
            }
        }
        let requests = self.clone();
        sink.call_async(move |sink| requests.serve(sink));
    }

    /// The number of requests for a key frame as soon as possible. Read it before a frame is published.
    pub(super) fn num_requested(&self) -> u32 {
        self.num_requested.load(Ordering::Acquire)
    }

    /// A key frame was published. It answers the requests counted in `num_requested`.
    pub(super) fn note_key_frame(&self, num_requested: u32) {
        // This is called for each frame if all frames are key frames.
        if num_requested == 0 {
            return;
        }
        lock(&self.state).note_key_frame(num_requested);
    }

    /// Sends the requests upstream until none is left.
    fn serve(&self, sink: &gst_base::BaseSink) {
        let mut state = lock(&self.state);
        loop {
            if !state.is_running || state.is_empty() {
                state.is_serving = false;
                return;
            }
            let pause = state.last.map_or(Duration::ZERO, |last| {
                INTERVAL.saturating_sub(last.elapsed())
            });
            if !pause.is_zero() {
                state = self
                    .stopped
                    .wait_timeout(state, pause)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
                continue;
            }
            let Some(request) = state.take() else {
                continue;
            };
            state.last = Some(Instant::now());
            state.count = state.count.wrapping_add(1);
            let count = state.count;
            drop(state);
            if is_heeded(sink) {
                let event = key_frame::to_event(request, sink.upcast_ref(), count);
                let answered = sink.sink_pad().push_event(event);
                gst::debug!(CAT, obj = sink, "{request:?} upstream, answer {answered}");
            }
            state = lock(&self.state);
        }
    }
}

/// Whether a key frame that is requested lets a consumer begin. Muxers with a header begin their clusters or pages at the encoder's
/// own key frames. A requested one ends the present cluster early, the next one begins without it, and so all consumers that join
/// wait longer.
fn is_heeded(sink: &gst_base::BaseSink) -> bool {
    let caps = sink.sink_pad().current_caps();
    caps.is_none_or(|caps| !caps::begins_with_header(&caps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_frame_answers_earlier_requests() {
        let mut state = State::default();
        state.add(KeyFrame::NOW);
        let num_requested = state.num_requested;
        state.note_key_frame(num_requested);
        assert!(state.is_empty());

        state.add(KeyFrame::NOW);
        let num_requested = state.num_requested;
        // The consumer received the key frame and requests the next one before the sink notes the first.
        state.add(KeyFrame::NOW);
        state.note_key_frame(num_requested);
        assert_eq!(state.take(), Some(KeyFrame::NOW));
    }
}
