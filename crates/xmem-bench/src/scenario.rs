// SPDX-License-Identifier: MPL-2.0

//! What is sent, and by what.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Shm,
    Xmem,
}

/// A size of picture, and whose memory the producer writes it into.
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
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shmsink/shmsrc",
            Self::Xmem => "xmemsink/xmemsrc",
        }
    }

    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Xmem => "xmem",
        }
    }

    /// The producer's element. It hands frames over as they come, as a live pipeline does.
    pub(crate) fn sink(self, socket: &str) -> String {
        match self {
            // Room for a dozen 4K frames; the default would hold five.
            Self::Shm => format!(
                "shmsink socket-path={socket} shm-size=201326592 sync=false wait-for-connection=false"
            ),
            Self::Xmem => format!("xmemsink pool={socket} pace=never"),
        }
    }

    /// The consumer's element. shmsrc does not know the caps.
    pub(crate) fn source(self, socket: &str, scenario: Scenario) -> String {
        match self {
            Self::Shm => format!(
                "shmsrc socket-path={socket} is-live=true ! capsfilter caps={}",
                scenario.caps()
            ),
            Self::Xmem => format!("xmemsrc pool={socket}"),
        }
    }
}

impl Scenario {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Hd => "1080p I420, written into the transport's memory",
            Self::Uhd => "4K NV12, written into the transport's memory",
            Self::HdForeign => "1080p I420, from memory of the producer's own",
            Self::UhdForeign => "4K NV12, from memory of the producer's own",
        }
    }

    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Hd => "hd",
            Self::Uhd => "uhd",
            Self::HdForeign => "hd-foreign",
            Self::UhdForeign => "uhd-foreign",
        }
    }

    pub(crate) fn is_foreign(self) -> bool {
        matches!(self, Self::HdForeign | Self::UhdForeign)
    }

    pub(crate) fn frame_size(self) -> usize {
        match self {
            Self::Hd | Self::HdForeign => 1920 * 1080 * 3 / 2,
            Self::Uhd | Self::UhdForeign => 3840 * 2160 * 3 / 2,
        }
    }

    pub(crate) fn caps(self) -> String {
        let (format, width, height) = match self {
            Self::Hd | Self::HdForeign => ("I420", 1920, 1080),
            Self::Uhd | Self::UhdForeign => ("NV12", 3840, 2160),
        };
        format!("video/x-raw,format={format},width={width},height={height},framerate=60/1")
    }
}
