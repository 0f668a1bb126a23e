// SPDX-License-Identifier: MPL-2.0

//! By what frames are sent.

use clap::ValueEnum;
use gst::prelude::*;

use crate::frames::Frames;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// shmsink and shmsrc
    Shm,
    /// unixfdsink and unixfdsrc
    Unixfd,
    /// xmemsink and xmemsrc
    Xmem,
    /// The crate xmem-core, without GStreamer
    Core,
    /// The same, and the consumer polls
    CorePolled,
    /// The crate iceoryx2: publish-subscribe, and an event for each frame
    Iceoryx2,
    /// The same without events, and the consumer polls
    Iceoryx2Polled,
    /// A ring in a memfd, and a socket for the numbers of its slots
    Ring,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shmsink/shmsrc",
            Self::Unixfd => "unixfdsink/unixfdsrc",
            Self::Xmem => "xmemsink/xmemsrc",
            Self::Core | Self::CorePolled => "xmem-core",
            Self::Iceoryx2 | Self::Iceoryx2Polled => "iceoryx2",
            Self::Ring => "a ring by hand",
        }
    }

    /// As in a ratio.
    pub(crate) fn short_name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Unixfd => "unixfd",
            Self::Xmem | Self::Core | Self::CorePolled => "xmem",
            Self::Iceoryx2 | Self::Iceoryx2Polled => "iceoryx2",
            Self::Ring => "by hand",
        }
    }

    /// Whether it is used without GStreamer.
    pub(crate) fn is_bare(self) -> bool {
        self.is_polled() || matches!(self, Self::Core | Self::Iceoryx2 | Self::Ring)
    }

    /// Whether neither side sleeps.
    pub(crate) fn is_polled(self) -> bool {
        matches!(self, Self::CorePolled | Self::Iceoryx2Polled)
    }

    pub(crate) fn is_xmem(self) -> bool {
        self.short_name() == Self::Xmem.short_name()
    }

    /// Why it cannot send these frames here.
    pub(crate) fn hindrance(self, frames: Frames) -> Option<String> {
        match self {
            Self::Unixfd => {
                let sink = gst::ElementFactory::make("unixfdsink").build().ok();
                let version = gst::version_string();
                match sink {
                    None => Some(format!(
                        "{version} has none, it came with 1.24; `cargo xtask bench --compat` has it"
                    )),
                    // The copying elements came with this property.
                    Some(sink)
                        if frames.is_foreign()
                            && sink.find_property("min-memory-size").is_none() =>
                    {
                        Some(format!(
                            "that of {version} refuses memory without a descriptor; from 1.28 on it copies"
                        ))
                    }
                    Some(_) => None,
                }
            }
            Self::Iceoryx2 | Self::Iceoryx2Polled if !cfg!(feature = "iceoryx2") => {
                Some("this program was built without its feature `iceoryx2`".to_owned())
            }
            _ => None,
        }
    }

    /// The producer's element. It hands frames over as they come, as a live pipeline does.
    pub(crate) fn sink(self, socket: &str) -> String {
        match self {
            // Room for a dozen 4K frames; the default would hold five.
            Self::Shm => format!(
                "shmsink socket-path={socket} shm-size=201326592 sync=false wait-for-connection=false"
            ),
            Self::Unixfd => format!("unixfdsink socket-path={socket} sync=false"),
            _ => format!("xmemsink pool={socket} pace=never"),
        }
    }

    /// The consumer's element. shmsrc does not know the caps.
    pub(crate) fn source(self, socket: &str, frames: Frames) -> String {
        match self {
            Self::Shm => format!(
                "shmsrc socket-path={socket} is-live=true ! capsfilter caps={}",
                frames.caps()
            ),
            Self::Unixfd => format!("unixfdsrc socket-path={socket}"),
            _ => format!("xmemsrc pool={socket}"),
        }
    }
}

/// The word that stands for it on the command line.
pub(crate) fn argument(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}
