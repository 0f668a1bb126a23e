// SPDX-License-Identifier: MPL-2.0

//! How a stream's times relate to CLOCK_MONOTONIC. Part of the sticky state.

use crate::stream::{text, timing};

const NAME: &str = "timeline";
const LIVE: &str = "live";
const LATENCY: &str = "latency";
const PACING: &str = "pacing";
const BASE_TIME: &str = "base-time";
const KEPT: &str = "kept";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// The source decides when frames are published, and not the element that renders them.
    pub(crate) live: bool,
    /// How much later than their time on CLOCK_MONOTONIC frames may be published.
    pub(crate) latency: gst::ClockTime,
    /// The distance from the producer's running time to the frames' times on CLOCK_MONOTONIC.
    pub(crate) pacing: gst::ClockTime,
    /// The base time of the producer's pipeline. Streams of one pipeline have the same. `None`: it has no clock.
    pub(crate) base_time: Option<gst::ClockTime>,
    /// How long the pool can keep these frames for a consumer that waits for their times. `None`: long enough.
    pub(crate) kept: Option<gst::ClockTime>,
}

impl Timeline {
    pub(crate) fn to_text(self) -> String {
        let structure = gst::Structure::builder(NAME)
            .field(LIVE, self.live)
            .field(LATENCY, self.latency.nseconds())
            .field(PACING, self.pacing.nseconds())
            .field_if_some(BASE_TIME, self.base_time.map(gst::ClockTime::nseconds))
            .field_if_some(KEPT, self.kept.map(gst::ClockTime::nseconds));
        structure.build().to_string()
    }

    /// Invalid values count as not known.
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let Some(structure) = text.and_then(text::to_bounded_structure) else {
            return Self::default();
        };
        let time = |field| structure.get::<u64>(field).ok().and_then(timing::known);
        Self {
            live: structure.get(LIVE).unwrap_or_default(),
            latency: time(LATENCY).unwrap_or_default(),
            pacing: time(PACING).unwrap_or_default(),
            base_time: time(BASE_TIME),
            kept: time(KEPT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_ignores_invalid_text() {
        gst::init().unwrap();
        let timeline = Timeline {
            live: true,
            latency: gst::ClockTime::from_mseconds(40),
            pacing: gst::ClockTime::from_nseconds(1),
            base_time: Some(gst::ClockTime::from_seconds(9)),
            kept: Some(gst::ClockTime::from_mseconds(700)),
        };
        for timeline in [timeline, Timeline::default()] {
            assert_eq!(Timeline::parse(Some(&timeline.to_text())), timeline);
        }
        for text in [
            None,
            Some(""),
            Some("timeline, latency=(string)long, live=(guint64)18446744073709551615"),
            Some("timeline, latency=(guint64)18446744073709551615"),
        ] {
            assert_eq!(Timeline::parse(text), Timeline::default(), "{text:?}");
        }
    }
}
