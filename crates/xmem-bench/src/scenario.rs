// SPDX-License-Identifier: MPL-2.0

//! The scenarios, and the transports in each.

use clap::ValueEnum;

use crate::frames::Frames;
use crate::group::Case;
use crate::transport::Transport;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// 1080p I420, into the memory that the sink offers
    Hd,
    /// 4K NV12, into the memory that the sink offers
    Uhd,
    /// 1080p I420, into memory of the producer's own
    HdForeign,
    /// 4K NV12, into memory of the producer's own
    UhdForeign,
    /// 1080p I420 for 1, 4 and 16 consumers
    FanOut,
    /// Two consumers, of which one is stopped
    Stopped,
    /// 1080p I420 for 1 and 4 consumers, without GStreamer
    Core,
    /// The same for 1 consumer, 10,000 frames a second; neither side sleeps
    Polled,
}

const ELEMENTS: &[Transport] = &[Transport::Shm, Transport::Unixfd, Transport::Xmem];
const BARE: &[Transport] = &[Transport::Ring, Transport::Iceoryx2, Transport::Core];
const POLLED: &[Transport] = &[Transport::Iceoryx2Polled, Transport::CorePolled];

/// Close enough for a frame to find both sides' caches as the one before left them.
const POLLED_FPS: u32 = 10_000;

impl Scenario {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Hd => "1080p I420, written into the transport's memory",
            Self::Uhd => "4K NV12, written into the transport's memory",
            Self::HdForeign => "1080p I420, from memory of the producer's own",
            Self::UhdForeign => "4K NV12, from memory of the producer's own",
            Self::FanOut => "Many consumers: 1080p I420, written into the transport's memory",
            Self::Stopped => "A stopped consumer: 1080p I420, written into the transport's memory",
            Self::Core => "Without GStreamer: 1080p I420, written into the transport's memory",
            Self::Polled => "Without GStreamer, polled: 1080p I420, 10,000 frames a second",
        }
    }

    pub(crate) fn frames(self) -> Frames {
        match self {
            Self::Hd | Self::FanOut | Self::Stopped | Self::Core | Self::Polled => Frames::Hd,
            Self::Uhd => Frames::Uhd,
            Self::HdForeign => Frames::HdForeign,
            Self::UhdForeign => Frames::UhdForeign,
        }
    }

    pub(crate) fn transports(self) -> &'static [Transport] {
        match self {
            Self::Core => BARE,
            Self::Polled => POLLED,
            _ => ELEMENTS,
        }
    }

    /// Frames a second, where `fps` are asked for.
    pub(crate) fn fps(self, fps: u32) -> u32 {
        if self == Self::Polled {
            POLLED_FPS
        } else {
            fps
        }
    }

    /// How many consumers there are at once.
    pub(crate) fn consumers(self) -> &'static [usize] {
        match self {
            Self::FanOut => &[1, 4, 16],
            Self::Core => &[1, 4],
            Self::Stopped => &[2],
            _ => &[1],
        }
    }

    /// Whether to measure the source and the receiver without a transport, too.
    pub(crate) fn has_alone(self) -> bool {
        !matches!(
            self,
            Self::FanOut | Self::Stopped | Self::Core | Self::Polled
        )
    }

    /// All that can be measured here.
    pub(crate) fn cases(self) -> Vec<Case> {
        let frames = self.frames();
        let cases = self.consumers().iter().flat_map(|consumers| {
            self.transports().iter().map(|transport| Case {
                transport: *transport,
                frames,
                consumers: *consumers,
            })
        });
        cases
            .filter(|case| case.transport.hindrance(frames).is_none())
            .collect()
    }

    /// The transports that are left out here, and why.
    pub(crate) fn left_out(self) -> Vec<String> {
        let transports = self.transports().iter();
        let left_out = transports.filter_map(|transport| {
            let why = transport.hindrance(self.frames())?;
            Some(format!("{} is left out: {why}", transport.name()))
        });
        left_out.collect()
    }
}
