// SPDX-License-Identifier: MPL-2.0

//! The source in its pipeline: the latency that it reports, for how long the producer keeps frames for it, and the other sources.

use std::sync::{Mutex, MutexGuard};

use gst::prelude::*;
use gst_base::prelude::*;
use xmem_core::ConsumerHandle;

use super::{
    settings::XmemSrcTimestampMode,
    stream::{Playback, SourceStream},
};
use crate::{lock, pipeline};

/// Packets, encoded frames and sound may come in bursts and are small, and a hole in them costs more than a delay.
const BURSTS: gst::ClockTime = gst::ClockTime::SECOND;

/// About as many frames as xmemsink keeps without a set history, however small they are.
const MANY: u64 = 900;

/// The time for which xmemsink keeps frames for every consumer by default.
const ALWAYS_KEPT: gst::ClockTime = gst::ClockTime::from_mseconds(100);

/// By how much frames are later than their times.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Delays {
    /// By how much the frames' times are delayed here.
    pub(super) shift: gst::ClockTime,
    /// The part of the shift by which the latency is less.
    pub(super) paid: gst::ClockTime,
    /// The least time from that of a frame of the present producer to its publication, in steps.
    pub(super) least: gst::ClockTime,
    /// By how much all frames were later than their times when that was measured.
    pub(super) measured: gst::ClockTime,
    /// The most by which a frame was published before its time, in steps.
    pub(super) ahead: gst::ClockTime,
}

/// The times that decide.
#[derive(Debug, Default)]
pub(super) struct Latency(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    /// The latency of the pipeline: how much later than its time downstream uses a frame.
    pipeline: gst::ClockTime,
    /// The reported latency, until the pipeline has answered. Its sinks may wait so long soon.
    expected: gst::ClockTime,
    delays: Delays,
}

/// Posts that the latency has changed. The application then makes the pipeline query it.
pub(super) fn changed(src: &gst_base::BaseSrc) {
    let _ = src.post_message(gst::message::Latency::builder().src(src).build());
}

impl Latency {
    fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.0)
    }

    pub(super) fn reset(&self) {
        *self.times() = Times::default();
    }

    pub(super) fn set_pipeline(&self, latency: gst::ClockTime) {
        let mut times = self.times();
        (times.pipeline, times.expected) = (latency, gst::ClockTime::ZERO);
    }

    /// The pipeline is about to be told this latency. Zero: it is not expected to answer any more.
    pub(super) fn expect(&self, latency: gst::ClockTime) {
        self.times().expected = latency;
    }

    pub(super) fn set_delays(&self, delays: Delays) {
        self.times().delays = delays;
    }

    /// The latency to report. Not less than the delay of all frames, which a producer may fail to report. Not more than the time for
    /// which the producer can keep frames: a sink that waits longer would miss nearly all of them.
    pub(super) fn answer(
        &self,
        playback: &Playback,
        mode: XmemSrcTimestampMode,
        deadline: gst::ClockTime,
    ) -> gst::ClockTime {
        let Delays {
            paid,
            least,
            measured,
            ahead,
            ..
        } = self.times().delays;
        let promised = playback.latency(mode);
        let promised = match mode {
            XmemSrcTimestampMode::Arrival => promised,
            _ => promised.max(measured),
        };
        let kept = playback
            .kept()
            .map(|kept| kept.saturating_add(least).saturating_sub(ahead));
        let producer = kept.map_or(promised, |kept| promised.min(kept));
        producer.saturating_sub(paid).saturating_add(deadline)
    }

    /// Why frames are missed, and the remedy. `within`: the time in which they were published. `busy`: how long ago the frame before
    /// them was published. `is_encoded`: whether frames need others.
    #[cold]
    pub(super) fn why_missed(
        &self,
        frames: u64,
        within: gst::ClockTime,
        busy: gst::ClockTime,
        is_encoded: bool,
    ) -> String {
        let wait = self.wait();
        let within = Some(within.nseconds()).filter(|time| *time > 0);
        let meanwhile = within.and_then(|within| frames.mul_div_round(wait.nseconds(), within));
        if busy < ALWAYS_KEPT {
            format!(
                "Frames are missed: the producer published {frames} within {} ms, more than it keeps. Raise history and max-slots on \
                 xmemsink, and max-bytes if it is set, or put more into one buffer, as alignment=7 of mpegtsmux does",
                busy.mseconds()
            )
        } else if wait > ALWAYS_KEPT && busy <= wait.saturating_add(ALWAYS_KEPT) {
            let Delays { shift, paid, .. } = self.times().delays;
            if shift.saturating_sub(paid) > wait / 2 {
                return format!(
                    "Frames are missed: the producer was {} ms behind when this stream began, and cannot keep frames for so long. The \
                     delay becomes less by what is missed. Set delivery=lossless on xmemsink if no frame may be missed",
                    shift.mseconds()
                );
            }
            if let Some(meanwhile) = meanwhile.filter(|frames| *frames >= MANY) {
                return format!(
                    "Frames are missed: a sink waits up to {} ms for the time of a frame, and the producer cannot keep the {meanwhile} \
                     frames that it publishes meanwhile. Put more into one buffer, as alignment=7 of mpegtsmux does, or put a queue \
                     max-size-buffers=0 max-size-time=0 behind this element, or raise history and max-slots on xmemsink",
                    wait.mseconds()
                );
            }
            format!(
                "Frames are missed: a sink waits up to {} ms for the time of a frame, and the producer has no room to keep all frames \
                 for so long. Reduce the latency of the producer's pipeline, such as latency=200 of rtspsrc, or set pace=always on \
                 xmemsink. Raise history, max-slots or max-bytes if they are set",
                wait.mseconds()
            )
        } else {
            let newest = match is_encoded {
                true => "",
                false => ", or set newest-only=true if only the newest are needed",
            };
            format!(
                "Frames are missed: downstream is {} ms behind, longer than the producer keeps frames. Make it faster, or put a queue behind \
                 this element if it is slow only at times{newest}",
                busy.mseconds()
            )
        }
    }

    /// How long after its publication downstream may wait for a frame's time.
    fn wait(&self) -> gst::ClockTime {
        let times = self.times();
        let latency = times.pipeline.max(times.expected);
        let Delays { shift, ahead, .. } = times.delays;
        latency.saturating_add(shift).saturating_add(ahead)
    }

    /// Asks the present producer to keep frames for as long as downstream may need. Called when one of the times, the caps or the
    /// producer has changed.
    #[cold]
    pub(super) fn ask(&self, consumer: Option<ConsumerHandle>, stream: &SourceStream) {
        let Some(consumer) = consumer else {
            return;
        };
        let caps = stream.caps();
        let name = caps.as_ref().and_then(|caps| caps.structure(0));
        let bursts = match name.map(|structure| structure.name().as_str()) {
            None | Some("video/x-raw") => gst::ClockTime::ZERO,
            Some(_) => BURSTS,
        };
        consumer.keep_for_longer(self.wait().max(bursts).into());
    }
}

/// The other sources of this kind in the pipeline.
pub(super) fn others(src: &gst_base::BaseSrc) -> Vec<gst::Element> {
    let mut sources = pipeline::sources(src.upcast_ref());
    sources.retain(|element| *element != *src);
    sources
}

/// Whether the pipeline has a live source of another kind, such as a microphone.
pub(super) fn has_other_live_source(src: &gst_base::BaseSrc) -> bool {
    let Some(pipeline) = pipeline::of(src.upcast_ref()) else {
        return false;
    };
    let elements = pipeline.iterate_recurse().into_iter();
    let mut sources = elements
        .filter_map(Result::ok)
        .filter_map(|element| element.downcast::<gst_base::BaseSrc>().ok());
    sources.any(|other| other.type_() != src.type_() && other.is_live())
}

/// The address of the pipeline, as a name for it while the source is in it.
pub(super) fn pipeline_address(src: &gst_base::BaseSrc) -> usize {
    match pipeline::of(src.upcast_ref()) {
        Some(pipeline) => pipeline.as_ptr() as usize,
        None => src.as_ptr() as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_every_limit_that_may_be_the_reason() {
        let latency = Latency::default();
        let time = gst::ClockTime::from_mseconds;
        let why = |frames, busy| latency.why_missed(frames, time(100), time(busy), false);
        let names_all = |text: &str| {
            let limits = ["history", "max-slots", "max-bytes"];
            limits.iter().all(|limit| text.contains(limit))
        };
        assert!(names_all(&why(9, 50)));
        assert!(!names_all(&why(9, 300)), "downstream is the reason");
        latency.set_pipeline(time(500));
        assert!(names_all(&why(9, 300)));
        // Packets of 188 bytes.
        assert!(why(300, 300).contains("the 1500 frames"));
    }
}
