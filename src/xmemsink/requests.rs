// SPDX-License-Identifier: MPL-2.0

//! Requests of consumers to upstream: key frames.
//!
//! Requests come on the pool's own thread, in any number. They are joined, wait in a short list, and another thread hands them
//! on, one at a time and not too often.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use gst::prelude::*;
use gst_base::prelude::*;

use super::log::CAT;
use crate::stream::event::key_frame::KeyFrame;
use crate::{lock, stream::timing};

/// How long a key frame that was asked for lasts for all others that want one.
const INTERVAL: Duration = Duration::from_millis(200);
/// Key frames at a time that may wait.
const MOST: usize = 16;
/// Requests for later key frames are dropped: an encoder keeps them until their time.
const HORIZON: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Requests {
    state: Mutex<State>,
    stopped: Condvar,
    /// How often a key frame as soon as possible was asked for. Written under the lock.
    asked: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    /// A key frame as soon as possible, and whether with all headers.
    now: Option<bool>,
    later: Vec<KeyFrame>,
    /// How often one as soon as possible was asked for. Another number means another request.
    asked: u32,
    /// A thread hands them on.
    served: bool,
    running: bool,
    last: Option<Instant>,
    count: u32,
}

impl State {
    fn add(&mut self, request: KeyFrame) {
        let Some(at) = request.at else {
            self.asked = self.asked.wrapping_add(1);
            self.now = Some(request.all_headers || self.now.unwrap_or_default());
            return;
        };
        let until = Duration::from(timing::elapsed(xmem_core::monotonic_ns(), at));
        if until <= HORIZON && self.later.len() < MOST && !self.later.contains(&request) {
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

    /// There is a key frame for the requests until then. A later request may have followed from that frame.
    fn note_key_frame(&mut self, asked: u32) {
        if self.asked == asked {
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
            served: state.served,
            running: true,
            ..State::default()
        };
        self.asked.store(0, Ordering::Release);
    }

    /// The sink is stopped. Nothing is handed on from here on.
    pub(super) fn stop(&self) {
        lock(&self.state).running = false;
        self.stopped.notify_all();
    }

    /// A consumer asks for a key frame. Returns at once.
    pub(super) fn ask(self: &Arc<Self>, sink: &gst_base::BaseSink, request: KeyFrame) {
        {
            let mut state = lock(&self.state);
            if !state.running {
                return;
            }
            state.add(request);
            self.asked.store(state.asked, Ordering::Release);
            if state.is_empty() || std::mem::replace(&mut state.served, true) {
                return;
            }
        }
        let requests = self.clone();
        sink.call_async(move |sink| requests.serve(sink));
    }

    /// How often a key frame as soon as possible was asked for. Read it before a frame is published.
    pub(super) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    /// A key frame is published, for the requests until `asked`.
    pub(super) fn note_key_frame(&self, asked: u32) {
        // Each frame of a stream of key frames comes here.
        if asked == 0 {
            return;
        }
        lock(&self.state).note_key_frame(asked);
    }

    /// Hands on the requests, until none is left.
    fn serve(&self, sink: &gst_base::BaseSink) {
        let mut state = lock(&self.state);
        loop {
            if !state.running || state.is_empty() {
                state.served = false;
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
            let event = request.to_event(sink.upcast_ref(), count);
            let answered = sink.sink_pad().push_event(event);
            gst::debug!(CAT, obj = sink, "{request:?} upstream, answer {answered}");
            state = lock(&self.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_frame_is_for_those_who_asked_before_it() {
        let mut state = State::default();
        state.add(KeyFrame::NOW);
        let asked = state.asked;
        state.note_key_frame(asked);
        assert!(state.is_empty());

        state.add(KeyFrame::NOW);
        let asked = state.asked;
        // A consumer has the key frame already, and asks for the next before the sink has noted it.
        state.add(KeyFrame::NOW);
        state.note_key_frame(asked);
        assert_eq!(state.take(), Some(KeyFrame::NOW));
    }
}
