// SPDX-License-Identifier: MPL-2.0

//! The frames: their size, and whether the producer writes into the transport's memory or into its own.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Frames {
    /// 1080p I420, written into the transport's memory
    Hd,
    /// 4K NV12, written into the transport's memory
    Uhd,
    /// 1080p I420, written into the producer's own memory
    HdForeign,
    /// 4K NV12, written into the producer's own memory
    UhdForeign,
    /// 1080p I420, decoded from H.264 into the transport's memory
    HdDecoded,
    /// 4 KiB, written into the transport's memory
    Small,
}

impl Frames {
    pub(crate) fn is_foreign(self) -> bool {
        matches!(self, Self::HdForeign | Self::UhdForeign)
    }

    /// Whether a decoder writes the frames. They do not contain the time, because the decoder still reads frames that it has
    /// output.
    pub(crate) fn is_decoded(self) -> bool {
        self == Self::HdDecoded
    }

    /// The size of a frame in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Hd | Self::HdForeign | Self::HdDecoded => 1920 * 1080 * 3 / 2,
            Self::Uhd | Self::UhdForeign => 3840 * 2160 * 3 / 2,
            Self::Small => 4096,
        }
    }

    pub(crate) fn caps(self) -> String {
        let (format, width, height) = match self {
            Self::Small => ("GRAY8", 64, 64),
            Self::Hd | Self::HdForeign | Self::HdDecoded => ("I420", 1920, 1080),
            Self::Uhd | Self::UhdForeign => ("NV12", 3840, 2160),
        };
        format!("video/x-raw,format={format},width={width},height={height},framerate=60/1")
    }
}
