// SPDX-License-Identifier: MPL-2.0

//! Signals and messages for consumers that connect and disconnect, and their requests for key frames.
//!
//! `GstXmemClientDropped`: fields `id` (guint64) and `name` (string) as in #GstXmemSink:stats, `pid` (guint) and
//! `reason` (string): `died`, its process ended without leaving; `cut-off`, its lease page was invalid; `timed-out`,
//! it held up lossless delivery for longer than #GstXmemSink:lossless-timeout. Consumers that leave emit
//! #GstXmemSink::client-disconnected.

use std::{
    sync::{
        Arc, Condvar, LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use gst::{glib, prelude::*};
use gst_base::prelude::*;
use xmem_core::{ConsumerStats, Departure, PoolEvent, key_frame::KeyFrame};

use super::{base::CAT, settings::PROP_NUM_CLIENTS, when::ToMonotonic};
use crate::{
    lock,
    stream::{caps, event, stats, timing},
};

const SIGNAL_CONNECTED: &str = "client-connected";
const SIGNAL_DISCONNECTED: &str = "client-disconnected";

pub(super) fn signals() -> &'static [glib::subclass::Signal] {
    static SIGNALS: LazyLock<Vec<glib::subclass::Signal>> = LazyLock::new(|| {
        vec![
            /**
             * GstXmemSink::client-connected:
             *
             * A consumer joined. The argument is an `application/x-xmem-client`, as in `stats`. Handlers run on the pool's own
             * thread, so they must return quickly.
             */
            glib::subclass::Signal::builder(SIGNAL_CONNECTED)
                .param_types([gst::Structure::static_type()])
                .build(),
            /**
             * GstXmemSink::client-disconnected:
             *
             * A consumer was disconnected. The argument is an `application/x-xmem-client` with its last statistics and `reason`
             * (string): `left`, `died`, `cut-off`, `timed-out` or `closed`. Handlers run on the pool's own thread, so they must
             * return quickly.
             */
            glib::subclass::Signal::builder(SIGNAL_DISCONNECTED)
                .param_types([gst::Structure::static_type()])
                .build(),
        ]
    });
    SIGNALS.as_ref()
}

/// The pool's callback for events of its consumers. It blocks until the sink is started.
pub(super) fn handler(
    sink: &gst_base::BaseSink,
    requests: Arc<Requests>,
    times: Arc<ToMonotonic>,
    is_started: Arc<OnceLock<()>>,
) -> impl Fn(PoolEvent) + Send + Sync + 'static {
    let sink = sink.downgrade();
    move |event| {
        is_started.wait();
        let Some(sink) = sink.upgrade() else { return };
        match event {
            PoolEvent::Connected(client) => {
                gst::info!(CAT, obj = sink, "Consumer connected: {client:?}");
                sink.emit_by_name::<()>(SIGNAL_CONNECTED, &[&stats::of_client(&client)]);
            }
            PoolEvent::Disconnected { consumer, reason } => {
                gst::info!(CAT, obj = sink, "Consumer gone ({reason:?}): {consumer:?}");
                let mut client = stats::of_client(&consumer);
                client.set("reason", word(reason));
                sink.emit_by_name::<()>(SIGNAL_DISCONNECTED, &[&client]);
                dropped(&sink, &consumer, reason, word(reason));
            }
            PoolEvent::Request { name, data, .. } => {
                match KeyFrame::decode(&name, &data) {
                    Some(request) => requests.add(&sink, &times, request),
                    None => gst::debug!(CAT, obj = sink, "Unknown request {name:?}"),
                }
                return;
            }
            PoolEvent::BudgetsCut { .. } | PoolEvent::CannotGrow(_) | PoolEvent::HoldsUp(_) => {
                warn(&sink, &event);
                return;
            }
            _ => {}
        }
        sink.notify(PROP_NUM_CLIENTS);
    }
}

fn word(reason: Departure) -> &'static str {
    match reason {
        Departure::Left => "left",
        Departure::Died => "died",
        Departure::CutOff => "cut-off",
        Departure::TimedOut => "timed-out",
        Departure::Closed => "closed",
        _ => "other",
    }
}

/// The minimum time between two requests to upstream.
const INTERVAL: Duration = Duration::from_millis(200);
/// At most this many requests with a time are kept: the nearest ones.
const MAX_TIMED: usize = 16;
/// Requests further ahead wait here, because an encoder keeps those that it gets until their time.
const HORIZON: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Requests {
    state: Mutex<State>,
    /// A request was added, or the sink is stopped.
    changed: Condvar,
    /// Counts the requests for a key frame as soon as possible. Written under the lock. If it changed, there was another request.
    num_requested: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    /// A request for a key frame as soon as possible: whether it wants all headers.
    now: Option<bool>,
    /// The nearest first. All have a time.
    later: Vec<KeyFrame>,
    /// A thread is sending them.
    is_serving: bool,
    is_running: bool,
    last: Option<Instant>,
    count: u32,
}

impl State {
    fn add(&mut self, request: KeyFrame) {
        let Some(at) = request.at else {
            self.now = Some(request.all_headers || self.now.unwrap_or_default());
            return;
        };
        if self.later.contains(&request) {
            return;
        }
        let place = self.later.partition_point(|other| other.at <= Some(at));
        self.later.insert(place, request);
        self.later.truncate(MAX_TIMED);
    }

    /// The time until the next request is due.
    fn pause(&self) -> Duration {
        let since = |last: Instant| INTERVAL.saturating_sub(last.elapsed());
        let until = |at| Duration::from(timing::elapsed(xmem_core::monotonic_ns(), at));
        let first = self.later.first().filter(|_| self.now.is_none());
        let ahead = first
            .and_then(|first| first.at)
            .map_or(Duration::ZERO, until);
        let least = self.last.map_or(Duration::ZERO, since);
        least.max(ahead.saturating_sub(HORIZON))
    }

    /// The request that is due next.
    fn take(&mut self) -> Option<KeyFrame> {
        if let Some(all_headers) = self.now.take() {
            return Some(KeyFrame {
                all_headers,
                at: None,
            });
        }
        (!self.later.is_empty()).then(|| self.later.remove(0))
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
        self.changed.notify_all();
    }

    /// Adds a request of a consumer. Returns at once.
    pub(super) fn add(
        self: &Arc<Self>,
        sink: &gst_base::BaseSink,
        times: &Arc<ToMonotonic>,
        request: KeyFrame,
    ) {
        {
            let mut state = lock(&self.state);
            if !state.is_running {
                return;
            }
            self.note(&mut state, request);
            if state.is_empty() {
                return;
            }
            if std::mem::replace(&mut state.is_serving, true) {
                // It may be due before the one that the thread waits for.
                self.changed.notify_all();
                return;
            }
        }
        let (requests, times) = (self.clone(), times.clone());
        sink.call_async(move |sink| requests.serve(sink, &times));
    }

    fn note(&self, state: &mut State, request: KeyFrame) {
        state.add(request);
        if request.at.is_none() {
            self.num_requested.fetch_add(1, Ordering::Release);
        }
    }

    /// The number of requests for a key frame as soon as possible. Read it before a frame is published.
    pub(super) fn num_requested(&self) -> u32 {
        self.num_requested.load(Ordering::Acquire)
    }

    /// A key frame was published. It answers the requests counted in `num_requested`. Later requests stay, because their consumers may
    /// already have received that key frame.
    pub(super) fn note_key_frame(&self, num_requested: u32) {
        // This is called for each frame if all frames are key frames.
        if num_requested == 0 {
            return;
        }
        let mut state = lock(&self.state);
        if self.num_requested.load(Ordering::Relaxed) == num_requested {
            state.now = None;
        }
    }

    /// Sends the requests upstream until none is left.
    fn serve(&self, sink: &gst_base::BaseSink, times: &ToMonotonic) {
        let mut state = lock(&self.state);
        loop {
            if !state.is_running || state.is_empty() {
                state.is_serving = false;
                return;
            }
            let pause = state.pause();
            if !pause.is_zero() {
                state = self
                    .changed
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
                let running_time = request.at.and_then(|at| times.running_time(sink, at));
                let event = event::key_frame_request(request, running_time, count);
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

/// Posts a message if a consumer did not leave by itself. The caller holds no lock, because a bus handler may read properties.
pub(super) fn dropped(
    sink: &gst_base::BaseSink,
    client: &ConsumerStats,
    reason: Departure,
    word: &str,
) {
    if matches!(reason, Departure::Left | Departure::Closed) {
        return;
    }
    let structure = gst::Structure::builder("GstXmemClientDropped")
        .field("id", client.id)
        .field("pid", client.pid)
        .field("name", &client.name)
        .field("reason", word)
        .build();
    // It fails only if the element has no bus.
    let _ = sink.post_message(gst::message::Element::builder(structure).src(sink).build());
}

/// Warns that consumers copy frames, that the pool cannot grow, or that a consumer holds up the stream. The caller holds no lock.
pub(super) fn warn(sink: &gst_base::BaseSink, event: &PoolEvent) {
    match event {
        PoolEvent::BudgetsCut {
            budget,
            consumers,
            limit,
        } => gst::element_warning!(
            sink,
            gst::ResourceError::NoSpaceLeft,
            ("Consumers may have to copy frames: {limit} leaves each of them a budget of {budget} ({consumers} connected). Raise {limit}")
        ),
        PoolEvent::CannotGrow(error) => gst::element_warning!(
            sink,
            gst::ResourceError::NoSpaceLeft,
            ("The pool cannot grow. While consumers hold all slots, frames are dropped, or wait with delivery=lossless: {error}")
        ),
        PoolEvent::HoldsUp(client) => gst::element_warning!(
            sink,
            gst::ResourceError::Busy,
            (
                "The stream waits for consumer {:?} (process {}), which has taken no frame for two seconds. Stop that consumer, or set \
                 lossless-timeout",
                client.name,
                client.pid
            )
        ),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request for a time this many minutes ahead.
    fn ahead(minutes: i64) -> KeyFrame {
        KeyFrame {
            all_headers: true,
            at: Some(xmem_core::monotonic_ns() + minutes * 60_000_000_000),
        }
    }

    #[test]
    fn a_request_far_ahead_waits_and_others_do_not_wait_for_it() {
        let mut state = State::default();
        let (far, near) = (ahead(600), ahead(0));
        state.add(far);
        state.add(far);
        assert!(state.pause() > Duration::from_secs(3_600));
        state.add(near);
        assert_eq!((state.pause(), state.take()), (Duration::ZERO, Some(near)));
        state.add(KeyFrame::NOW);
        assert_eq!(
            (state.pause(), state.take()),
            (Duration::ZERO, Some(KeyFrame::NOW))
        );
        assert_eq!((state.take(), state.take()), (Some(far), None));
    }

    #[test]
    fn the_nearest_requests_are_kept() {
        let mut state = State::default();
        let never = KeyFrame {
            at: Some(i64::MAX),
            ..KeyFrame::NOW
        };
        state.add(never);
        let requests: Vec<_> = (1..=20).map(|number| ahead(number * 10)).collect();
        requests
            .iter()
            .rev()
            .for_each(|request| state.add(*request));
        state.add(never);
        assert_eq!(state.later, requests[..MAX_TIMED]);
    }

    #[test]
    fn a_key_frame_answers_earlier_requests() {
        let requests = Requests::default();
        let add = || requests.note(&mut lock(&requests.state), KeyFrame::NOW);
        add();
        let num_requested = requests.num_requested();
        requests.note_key_frame(num_requested);
        assert!(lock(&requests.state).is_empty());

        add();
        let num_requested = requests.num_requested();
        // The consumer received the key frame and requests the next one before the sink notes the first.
        add();
        requests.note_key_frame(num_requested);
        assert_eq!(lock(&requests.state).take(), Some(KeyFrame::NOW));
    }
}
