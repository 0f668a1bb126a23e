// SPDX-License-Identifier: MPL-2.0

//! The transports that are compared.

use clap::ValueEnum;
use gst::prelude::*;

use crate::decoder;
use crate::frames::Frames;
use crate::pipewire::{self, NODE};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// shmsink and shmsrc
    Shm,
    /// unixfdsink and unixfdsrc
    Unixfd,
    /// xmemsink and xmemsrc
    Xmem,
    /// iceoryx2sink and iceoryx2src
    Iceoryx2Elements,
    /// pipewiresink and pipewiresrc
    Pipewire,
    /// The crate xmem-core, without GStreamer
    Core,
    /// As core, with a consumer that polls
    CorePolled,
    /// As core, with 100 pools in each process, and one thread that waits for all of them
    CoreMany,
    /// The crate iceoryx2: publish-subscribe with an event for each frame
    Iceoryx2,
    /// As iceoryx2, without events, with a consumer that polls
    Iceoryx2Polled,
    /// As iceoryx2, with 100 services in each process, and one thread that waits for all of them
    Iceoryx2Many,
    /// A ring in a memfd, and a socket for the slot numbers
    Ring,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shmsink/shmsrc",
            Self::Unixfd => "unixfdsink/unixfdsrc",
            Self::Xmem => "xmemsink/xmemsrc",
            Self::Iceoryx2Elements => "iceoryx2sink/iceoryx2src",
            Self::Pipewire => "pipewiresink/pipewiresrc",
            Self::Core | Self::CorePolled | Self::CoreMany => "xmem-core",
            Self::Iceoryx2 | Self::Iceoryx2Polled | Self::Iceoryx2Many => "iceoryx2",
            Self::Ring => "ring",
        }
    }

    /// The name in a ratio.
    pub(crate) fn short_name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Unixfd => "unixfd",
            Self::Pipewire => "pipewire",
            Self::Xmem | Self::Core | Self::CorePolled | Self::CoreMany => "xmem",
            Self::Iceoryx2Elements | Self::Iceoryx2 | Self::Iceoryx2Polled | Self::Iceoryx2Many => {
                "iceoryx2"
            }
            Self::Ring => "ring",
        }
    }

    /// Whether the transport works without GStreamer.
    pub(crate) fn is_without_gstreamer(self) -> bool {
        !matches!(
            self,
            Self::Shm | Self::Unixfd | Self::Xmem | Self::Iceoryx2Elements | Self::Pipewire
        )
    }

    /// Whether both sides poll and do not sleep.
    pub(crate) fn is_polled(self) -> bool {
        matches!(self, Self::CorePolled | Self::Iceoryx2Polled)
    }

    /// How many pools or services a process has.
    pub(crate) fn topics(self) -> u32 {
        if matches!(self, Self::CoreMany | Self::Iceoryx2Many) {
            100
        } else {
            1
        }
    }

    pub(crate) fn is_xmem(self) -> bool {
        self.short_name() == Self::Xmem.short_name()
    }

    /// The reason why the transport cannot send these frames on this system.
    pub(crate) fn unsupported_reason(self, frames: Frames) -> Option<String> {
        if frames.is_decoded()
            && let Some(element) = decoder::missing_element()
        {
            return Some(format!("{} has no {element} here", gst::version_string()));
        }
        match self {
            Self::Unixfd => {
                let sink = gst::ElementFactory::make("unixfdsink").build().ok();
                let version = gst::version_string();
                match sink {
                    None => Some(format!(
                        "{version} does not have it, 1.24 or newer does; use `cargo xtask bench --compat`"
                    )),
                    // The elements copy frames since the version that has this property.
                    Some(sink)
                        if frames.is_foreign()
                            && sink.find_property("min-memory-size").is_none() =>
                    {
                        Some(format!(
                            "the one of {version} does not accept memory without a descriptor; since 1.28 it copies such memory"
                        ))
                    }
                    Some(_) => None,
                }
            }
            Self::Iceoryx2Elements => {
                let is_missing = gst::ElementFactory::find("iceoryx2sink").is_none();
                is_missing.then(|| {
                    "GST_PLUGIN_PATH has no folder with the plugin of gst-plugin-iceoryx2"
                        .to_owned()
                })
            }
            Self::Pipewire => {
                let has_element = gst::ElementFactory::find("pipewiresink").is_some();
                let missing = pipewire::missing_program();
                let missing = missing.or((!has_element).then_some("gstreamer1.0-pipewire"));
                missing.map(|missing| format!("{missing} is not installed"))
            }
            Self::Iceoryx2 | Self::Iceoryx2Polled | Self::Iceoryx2Many
                if !cfg!(feature = "iceoryx2") =>
            {
                Some("this program was built without its feature `iceoryx2`".to_owned())
            }
            _ => None,
        }
    }

    /// The description of the producer's element. It sends each frame immediately, as in a live pipeline.
    pub(crate) fn sink(self, socket: &str) -> String {
        match self {
            // Memory for a dozen 4K frames. The default has memory for five.
            Self::Shm => format!(
                "shmsink socket-path={socket} shm-size=201326592 sync=false wait-for-connection=false"
            ),
            Self::Unixfd => format!("unixfdsink socket-path={socket} sync=false"),
            Self::Iceoryx2Elements => format!("iceoryx2sink service={socket} sync=false"),
            Self::Pipewire => format!(
                "pipewiresink mode=provide sync=false \
                 stream-properties=props,media.class=Video/Source,node.name={NODE}"
            ),
            _ => format!("xmemsink pool={socket} pace=never"),
        }
    }

    /// The description of the consumer's element. shmsrc and pipewiresrc need the caps.
    pub(crate) fn source(self, socket: &str, frames: Frames) -> String {
        match self {
            Self::Shm => format!(
                "shmsrc socket-path={socket} is-live=true ! capsfilter caps={}",
                frames.caps()
            ),
            Self::Unixfd => format!("unixfdsrc socket-path={socket}"),
            Self::Iceoryx2Elements => format!("iceoryx2src service={socket}"),
            Self::Pipewire => format!(
                "pipewiresrc target-object={NODE} ! capsfilter caps={}",
                frames.caps()
            ),
            _ => format!("xmemsrc pool={socket}"),
        }
    }
}

/// The name of a value on the command line.
pub(crate) fn argument(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}
