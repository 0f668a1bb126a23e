// SPDX-License-Identifier: MPL-2.0

//! Properties of a stream's start besides its name. They are part of the sticky state.

use std::{
    collections::VecDeque,
    sync::{LazyLock, Mutex},
};

use crate::lock;
use crate::stream::text;

const NAME: &str = "stream";
const FLAGS: &str = "flags";
const TYPE: &str = "type";
const GROUP: &str = "group";

/// At most this many groups of other processes are remembered.
const MAX_GROUPS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) flags: gst::StreamFlags,
    /// The type of the GstStream. `None`: there was none.
    pub(crate) stream_type: Option<gst::StreamType>,
    /// Identifies streams that belong together. Unique on this host.
    pub(crate) group: Option<String>,
}

impl Default for Description {
    fn default() -> Self {
        Self {
            flags: gst::StreamFlags::empty(),
            stream_type: None,
            group: None,
        }
    }
}

impl Description {
    pub(crate) fn of(event: &gst::event::StreamStart) -> Self {
        // A group's number is valid only in its own process.
        static PROCESS: LazyLock<String> =
            LazyLock::new(|| format!("{}-{:x}", std::process::id(), xmem_core::monotonic_ns()));
        Self {
            flags: event.stream_flags(),
            stream_type: event.stream().map(|stream| stream.stream_type()),
            group: event
                .structure()
                .and_then(|structure| structure.get::<u32>("group-id").ok())
                .map(|group| format!("{}-{group}", *PROCESS)),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        let structure = gst::Structure::builder(NAME)
            .field(FLAGS, self.flags.bits())
            .field_if_some(TYPE, self.stream_type.map(|kind| kind.bits()))
            .field_if_some(GROUP, self.group.as_deref());
        structure.build().to_string()
    }

    /// Invalid fields count as unknown.
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let Some(structure) = text.and_then(text::to_bounded_structure) else {
            return Self::default();
        };
        let bits = |field| structure.get::<u32>(field).ok();
        Self {
            flags: gst::StreamFlags::from_bits_truncate(bits(FLAGS).unwrap_or_default()),
            stream_type: bits(TYPE).map(gst::StreamType::from_bits_truncate),
            group: structure.get(GROUP).ok(),
        }
    }

    /// The event that starts such a stream.
    pub(crate) fn to_event(
        &self,
        stream_id: &str,
        caps: Option<&gst::Caps>,
        tags: Option<&gst::TagList>,
    ) -> gst::Event {
        let start = gst::event::StreamStart::builder(stream_id)
            .flags(self.flags)
            .group_id(self.local_group());
        match self.stream_type {
            Some(kind) => {
                let stream = gst::Stream::new(Some(stream_id), caps, kind, self.flags);
                stream.set_tags(tags);
                start.stream(stream).build()
            }
            None => start.build(),
        }
    }

    /// The number of the group in this process.
    fn local_group(&self) -> gst::GroupId {
        static GROUPS: Mutex<VecDeque<(String, gst::GroupId)>> = Mutex::new(VecDeque::new());
        let Some(group) = &self.group else {
            return gst::GroupId::next();
        };
        let mut groups = lock(&GROUPS);
        if let Some((_, number)) = groups.iter().find(|(other, _)| other == group) {
            return *number;
        }
        let number = gst::GroupId::next();
        if groups.len() == MAX_GROUPS {
            groups.pop_front();
        }
        groups.push_back((group.clone(), number));
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_start_round_trips_and_bad_text_is_ignored() {
        gst::init().unwrap();
        let full = Description {
            flags: gst::StreamFlags::SPARSE | gst::StreamFlags::SELECT,
            stream_type: Some(gst::StreamType::TEXT),
            group: Some("a-1".to_owned()),
        };
        for description in [full.clone(), Description::default()] {
            assert_eq!(
                Description::parse(Some(&description.to_text())),
                description
            );
        }
        for text in [None, Some(""), Some("stream, flags=(string)x")] {
            assert_eq!(Description::parse(text), Description::default(), "{text:?}");
        }
        let other = Description {
            group: Some("a-2".to_owned()),
            ..full.clone()
        };
        assert_eq!(full.local_group(), full.local_group());
        assert_ne!(full.local_group(), other.local_group());
    }
}
