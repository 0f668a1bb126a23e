// SPDX-License-Identifier: MPL-2.0

//! The scenarios, and the transports that each one compares.

use clap::ValueEnum;

use crate::frames::Frames;
use crate::group::Case;
use crate::transport::Transport;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// 1080p I420, written into the sink's memory
    Hd,
    /// 4K NV12, written into the sink's memory
    Uhd,
    /// 1080p I420, written into the producer's own memory
    HdForeign,
    /// 4K NV12, written into the producer's own memory
    UhdForeign,
    /// 1080p I420, decoded from H.264 into the sink's memory
    Decoder,
    /// 1080p I420 for 1, 4 and 16 consumers
    FanOut,
    /// 1080p I420 in 16 pools with 4 consumers each
    ManyPools,
    /// Two consumers, one of them stopped
    Stopped,
    /// From the start of a consumer of 1080p I420 to its first frame
    Start,
    /// 1080p I420, written into the producer's own memory, beside PipeWire
    Daemon,
    /// 1080p I420 for 1 and 4 consumers, without GStreamer
    Core,
    /// As core, with 1 consumer and 10,000 frames a second; neither side sleeps
    Polled,
    /// 4 KiB in 200 pools with 2 consumers each, at 100 frames a second, without GStreamer; a process has 100 pools
    Topics,
}

const ELEMENTS: &[Transport] = &[
    Transport::Shm,
    Transport::Unixfd,
    Transport::Iceoryx2Elements,
    Transport::Xmem,
];
const WITHOUT_GSTREAMER: &[Transport] = &[Transport::Ring, Transport::Iceoryx2, Transport::Core];
const POLLED: &[Transport] = &[Transport::Iceoryx2Polled, Transport::CorePolled];
const WITH_DAEMON: &[Transport] = &[Transport::Pipewire, Transport::Xmem];
const MANY: &[Transport] = &[Transport::Iceoryx2Many, Transport::CoreMany];

/// The interval is short enough that the caches of both sides still contain their data.
const POLLED_FPS: u32 = 10_000;
/// Of each topic.
const TOPICS_FPS: u32 = 100;

impl Scenario {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Hd => "1080p I420, written into the transport's memory",
            Self::Uhd => "4K NV12, written into the transport's memory",
            Self::HdForeign => "1080p I420, written into the producer's own memory",
            Self::UhdForeign => "4K NV12, written into the producer's own memory",
            Self::Decoder => "1080p I420, decoded from H.264 into the transport's memory",
            Self::FanOut => "Many consumers: 1080p I420, written into the transport's memory",
            Self::ManyPools => {
                "Many pools: 16 with 1080p I420, written into the transport's memory"
            }
            Self::Stopped => "A stopped consumer: 1080p I420, written into the transport's memory",
            Self::Start => "The start of a consumer: 1080p I420",
            Self::Daemon => "Beside PipeWire: 1080p I420, written into the producer's own memory",
            Self::Core => "Without GStreamer: 1080p I420, written into the transport's memory",
            Self::Polled => "Without GStreamer, polled: 1080p I420, 10,000 frames a second",
            Self::Topics => {
                "Without GStreamer, 200 pools: 4 KiB, 100 frames a second in each, 2 consumers of each"
            }
        }
    }

    pub(crate) fn frames(self) -> Frames {
        match self {
            Self::Hd
            | Self::FanOut
            | Self::ManyPools
            | Self::Stopped
            | Self::Start
            | Self::Core
            | Self::Polled => Frames::Hd,
            Self::Uhd => Frames::Uhd,
            Self::HdForeign | Self::Daemon => Frames::HdForeign,
            Self::UhdForeign => Frames::UhdForeign,
            Self::Decoder => Frames::HdDecoded,
            Self::Topics => Frames::Small,
        }
    }

    pub(crate) fn transports(self) -> &'static [Transport] {
        match self {
            Self::Daemon => WITH_DAEMON,
            Self::Core => WITHOUT_GSTREAMER,
            Self::Polled => POLLED,
            Self::Topics => MANY,
            _ => ELEMENTS,
        }
    }

    /// Frames per second. `fps` is the value of the option.
    pub(crate) fn fps(self, fps: u32) -> u32 {
        match self {
            Self::Polled => POLLED_FPS,
            Self::Topics => TOPICS_FPS,
            _ => fps,
        }
    }

    /// The numbers of consumers, each of which is measured.
    pub(crate) fn consumers(self) -> &'static [usize] {
        match self {
            Self::FanOut => &[1, 4, 16],
            Self::ManyPools => &[4],
            Self::Core => &[1, 4],
            Self::Stopped | Self::Topics => &[2],
            Self::Start => &[0],
            _ => &[1],
        }
    }

    /// The number of producers, each with consumers of its own.
    fn pools(self) -> usize {
        match self {
            Self::ManyPools => 16,
            Self::Topics => 2,
            _ => 1,
        }
    }

    /// Whether to also measure the source and the receiver in one process.
    pub(crate) fn has_alone(self) -> bool {
        !matches!(
            self,
            Self::FanOut
                | Self::ManyPools
                | Self::Stopped
                | Self::Start
                | Self::Core
                | Self::Polled
                | Self::Topics
        )
    }

    /// The cases that the system supports.
    pub(crate) fn cases(self) -> Vec<Case> {
        let frames = self.frames();
        let cases = self.consumers().iter().flat_map(|consumers| {
            self.transports().iter().map(|transport| Case {
                transport: *transport,
                frames,
                consumers: *consumers,
                pools: self.pools(),
            })
        });
        cases
            .filter(|case| case.transport.unsupported_reason(frames).is_none())
            .collect()
    }

    /// The transports that the system does not support, with the reasons.
    pub(crate) fn unsupported(self) -> Vec<String> {
        let transports = self.transports().iter();
        let unsupported = transports.filter_map(|transport| {
            let why = transport.unsupported_reason(self.frames())?;
            Some(format!("{} is not measured: {why}", transport.name()))
        });
        unsupported.collect()
    }
}
