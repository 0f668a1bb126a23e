// SPDX-License-Identifier: MPL-2.0

//! The frames: their size, and the owner of the memory into which the producer writes.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Frames {
    /// 1080p I420, into the memory that the transport offers
    Hd,
    /// 4K NV12, into the memory that the transport offers
    Uhd,
    /// 1080p I420, into memory of the producer's own
    HdForeign,
    /// 4K NV12, into memory of the producer's own
    UhdForeign,
}

impl Frames {
    pub(crate) fn is_foreign(self) -> bool {
        matches!(self, Self::HdForeign | Self::UhdForeign)
    }

    /// Bytes of one.
    pub(crate) fn size(self) -> usize {
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
