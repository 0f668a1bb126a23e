// SPDX-License-Identifier: MPL-2.0

//! What a late joiner has to know: the stream's sticky events as named text. xmemsrc reads it.

use gst::{glib, prelude::*};
use xmem_core::Sticky;

pub(crate) const CAPS: &str = "caps";
pub(crate) const SEGMENT: &str = "segment";
pub(crate) const STREAM_ID: &str = "stream-start";
pub(crate) const TAGS: &str = "tags";
pub(crate) const GLOBAL_TAGS: &str = "tags-global";

/// Cover pictures and the like would be carried as text; past this nobody gets them.
const LONGEST_TAGS: usize = 1 << 20;

/// Takes an event over into the state. `true`: the state is another one now.
pub(super) fn update(sticky: &mut Sticky, event: &gst::Event) -> bool {
    let before = sticky.clone();
    match event.view() {
        gst::EventView::StreamStart(event) => {
            // A new stream has nothing of the old one.
            *sticky = Sticky::new();
            sticky.set(STREAM_ID, event.stream_id());
        }
        gst::EventView::Caps(event) => {
            sticky.set(CAPS, shareable(event.caps_owned()).to_string());
        }
        gst::EventView::Segment(event) => {
            if let Ok(text) = event.segment().to_value().serialize() {
                sticky.set(SEGMENT, text.as_str());
            }
        }
        gst::EventView::Tag(event) => {
            let key = match event.tag().scope() {
                gst::TagScope::Global => GLOBAL_TAGS,
                _ => TAGS,
            };
            let text = event.tag().to_string();
            if text.len() <= LONGEST_TAGS {
                sticky.set(key, text);
            }
        }
        _ => {}
    }
    *sticky != before
}

/// Tags as they come back from the state.
pub(crate) fn parse_tags(text: &str) -> Option<gst::TagList> {
    glib::Value::deserialize(text, gst::TagList::static_type())
        .ok()?
        .get()
        .ok()
}

/// The caps as a consumer sees them: what lies in a slot is host memory, wherever upstream had it.
pub(super) fn shareable(mut caps: gst::Caps) -> gst::Caps {
    let Some(features) = caps.features(0) else {
        return caps;
    };
    if features.iter().any(is_memory) {
        let kept: Vec<_> = features
            .iter()
            .filter(|name| !is_memory(name))
            .map(|name| name.to_owned())
            .collect();
        caps.make_mut()
            .set_features(0, Some(gst::CapsFeatures::new(kept)));
    }
    caps
}

fn is_memory(name: &glib::GStr) -> bool {
    name.starts_with("memory:")
}
