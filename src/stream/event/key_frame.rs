// SPDX-License-Identifier: MPL-2.0

//! A consumer's request for a key frame.

use gst::prelude::*;
use gst_video::UpstreamForceKeyUnitEvent;

use crate::stream::timing;

/// The request's name.
pub(crate) const NAME: &str = "force-key-unit";

/// A request for a key frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyFrame {
    /// Whether to send all headers with it.
    pub(crate) all_headers: bool,
    /// The latest time for it, on CLOCK_MONOTONIC. `None`: as soon as possible.
    pub(crate) at: Option<i64>,
}

impl KeyFrame {
    pub(crate) const NOW: Self = Self {
        all_headers: true,
        at: None,
    };

    /// The request in an event from downstream.
    pub(crate) fn from_event(event: &UpstreamForceKeyUnitEvent, element: &gst::Element) -> Self {
        let now = xmem_core::monotonic_ns();
        let at = event
            .running_time
            .zip(element.current_running_time())
            .map(|(time, running)| {
                now.saturating_add_unsigned(time.saturating_sub(running).nseconds())
            })
            .filter(|at| *at > now);
        Self {
            all_headers: event.all_headers,
            at,
        }
    }

    /// The event that requests it from upstream of an element.
    pub(crate) fn to_event(self, element: &gst::Element, count: u32) -> gst::Event {
        let now = xmem_core::monotonic_ns();
        let running_time = self.at.and_then(|at| {
            let running = element.current_running_time()?;
            Some(running.saturating_add(timing::elapsed(now, at)))
        });
        UpstreamForceKeyUnitEvent::builder()
            .running_time(running_time)
            .all_headers(self.all_headers)
            .count(count)
            .build()
    }

    pub(crate) fn encode(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[0] = self.all_headers.into();
        bytes[1..].copy_from_slice(&self.at.unwrap_or(0).to_le_bytes());
        bytes
    }

    /// `None`: the bytes are invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (all_headers, at) = bytes.split_first()?;
        let at = i64::from_le_bytes(at.try_into().ok()?);
        Some(Self {
            all_headers: *all_headers != 0,
            at: (at != 0).then_some(at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip() {
        let later = KeyFrame {
            all_headers: false,
            at: Some(12_345_678_901),
        };
        for request in [KeyFrame::NOW, later] {
            assert_eq!(KeyFrame::decode(&request.encode()), Some(request));
        }
        for nonsense in [&[][..], &[1], &[0; 8], &[0; 10]] {
            assert_eq!(KeyFrame::decode(nonsense), None);
        }
    }
}
