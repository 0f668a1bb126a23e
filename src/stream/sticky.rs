// SPDX-License-Identifier: MPL-2.0

//! The sticky events of a stream as named text, for consumers that join later.

use gst::{
    glib::{self, translate::IntoGlib},
    prelude::*,
};
use xmem_core::Sticky;

use crate::stream::{caps::CUDA_MEMORY, meta, start::Description, text, untrusted::is_parseable};

pub(crate) const CAPS: &str = "caps";
pub(crate) const SEGMENT: &str = "segment";
/// The number of the segment event, if the segment is in bytes. A repeated segment in bytes means that the file is written
/// again from its beginning; muxers do that to complete their header.
pub(crate) const SEGMENT_EVENT: &str = "segment-event";
pub(crate) const STREAM_ID: &str = "stream-start";
/// Other properties of the start of the stream; see start.rs.
pub(crate) const STREAM: &str = "stream";
pub(crate) const TAGS: &str = "tags";
pub(crate) const GLOBAL_TAGS: &str = "tags-global";
/// Custom events, each under the name of its structure.
pub(crate) const CUSTOM: &str = "custom/";
/// The version of GStreamer in the producer's process.
pub(crate) const GSTREAMER: &str = "gstreamer";
/// The conversion of the frames' times to CLOCK_MONOTONIC; see timeline.rs.
pub(crate) const TIMELINE: &str = "timeline";

/// Longer tags are shared without images and similar data.
const MAX_TAGS_LEN: usize = 1 << 20;
/// Consumers accept only a limited number of entries.
const MAX_CUSTOM: usize = 64;

/// Applies an event to the state, except caps. `Err`: why that is impossible.
pub(crate) fn update(sticky: &mut Sticky, event: &gst::EventRef) -> Result<(), String> {
    match event.view() {
        gst::EventView::StreamStart(event) => {
            let stream_id = event.stream_id();
            sticky.set(STREAM, Description::of(event).to_text());
            sticky.set(GSTREAMER, gstreamer());
            if sticky.text(STREAM_ID) == Some(stream_id) {
                return Ok(());
            }
            // Another stream. As on pads, caps and segment apply until there are others, and custom events stay.
            let kept = [STREAM, GSTREAMER, CAPS, SEGMENT, SEGMENT_EVENT];
            let kept = |key: &str| kept.contains(&key) || is_custom(key);
            let kept: Vec<_> = sticky.iter().filter(|(key, _)| kept(key)).collect();
            let mut new = Sticky::new();
            new.set(STREAM_ID, stream_id);
            for (key, value) in kept {
                new.set(key, value);
            }
            *sticky = new;
        }
        gst::EventView::Segment(event) => {
            if let Ok(text) = event.segment().to_value().serialize() {
                sticky.set(SEGMENT, text.as_str());
            }
            if event.segment().format() == gst::Format::Bytes {
                sticky.set(SEGMENT_EVENT, event.seqnum().into_glib().to_string());
            } else {
                sticky.remove(SEGMENT_EVENT);
            }
        }
        // The next buffers have their own segment.
        gst::EventView::FlushStop(_) => {
            sticky.remove(SEGMENT);
            sticky.remove(SEGMENT_EVENT);
        }
        gst::EventView::Tag(event) => {
            let key = match event.tag().scope() {
                gst::TagScope::Global => GLOBAL_TAGS,
                _ => TAGS,
            };
            let mut text = event.tag().to_string();
            if text.len() > MAX_TAGS_LEN {
                text = without_pictures(event.tag_owned()).to_string();
            }
            if text.len() > MAX_TAGS_LEN {
                return Err("the tags are too long".to_owned());
            }
            sticky.set(key, text);
        }
        gst::EventView::CustomDownstreamSticky(event) => {
            let structure = event.structure().ok_or("it has no structure")?;
            let key = format!("{CUSTOM}{}", structure.name());
            let others = sticky
                .iter()
                .filter(|(other, _)| is_custom(other) && *other != key);
            if others.count() >= MAX_CUSTOM {
                return Err("there are too many of them".to_owned());
            }
            sticky.set(&key, text::of_whole_structure(structure)?);
        }
        _ => {}
    }
    Ok(())
}

/// Replaces the caps. Returns whether they differ. `Err`: why a consumer could not read them.
pub(crate) fn set_caps(sticky: &mut Sticky, caps: &gst::Caps) -> Result<bool, String> {
    let text = caps_to_text(caps)?;
    let is_new = sticky.text(CAPS) != Some(&text);
    sticky.set(CAPS, text);
    Ok(is_new)
}

/// The version of this process's GStreamer.
pub(crate) fn gstreamer() -> String {
    let (major, minor, micro, _) = gst::version();
    format!("{major}.{minor}.{micro}")
}

fn is_custom(key: &str) -> bool {
    key.starts_with(CUSTOM)
}

fn without_pictures(mut tags: gst::TagList) -> gst::TagList {
    let list = tags.make_mut();
    list.remove::<gst::tags::Image>();
    list.remove::<gst::tags::PreviewImage>();
    list.remove::<gst::tags::Attachment>();
    tags
}

/// Reads tags from the state. `key` is their key.
pub(crate) fn parse_tags(key: &str, text: &str) -> Option<gst::TagList> {
    if !is_parseable(text) {
        return None;
    }
    let value = glib::Value::deserialize(text, gst::TagList::static_type());
    let mut tags = value.ok()?.get::<gst::TagList>().ok()?;
    if key == GLOBAL_TAGS {
        // The text does not contain the scope.
        tags.make_mut().set_scope(gst::TagScope::Global);
    }
    Some(tags)
}

/// Caps as text. `Err`: why a consumer could not read them. A field is never left out, because the caps could then describe
/// another format than that of the frames.
fn caps_to_text(caps: &gst::Caps) -> Result<String, String> {
    let mut fields = caps.iter().flat_map(|structure| structure.iter());
    if let Some((name, value)) = fields.find(|(_, value)| !text::is_plain(value)) {
        return Err(format!(
            "other processes cannot read the field {name}, a {}",
            value.type_()
        ));
    }
    let text = caps.to_string();
    match parse_caps(&text) {
        Some(_) => Ok(text),
        None => Err(format!("other processes cannot read {text}")),
    }
}

/// Reads caps from the state.
pub(crate) fn parse_caps(text: &str) -> Option<gst::Caps> {
    text::to_caps(text).filter(|caps| caps.is_fixed())
}

/// Reads a segment from the state.
pub(crate) fn parse_segment(text: &str) -> Option<gst::Segment> {
    // GStreamer removes the quotes without regard to quotes inside.
    let structure = text.strip_prefix('"')?.strip_suffix('"')?;
    if !is_parseable(structure) {
        return None;
    }
    glib::Value::deserialize(text, gst::Segment::static_type())
        .ok()?
        .get::<gst::Segment>()
        .ok()
        // GStreamer sends no other rates, and aborts on some of them.
        .filter(|segment| {
            [segment.rate(), segment.applied_rate()]
                .iter()
                .all(|rate| rate.is_finite() && *rate != 0.0)
                && segment.format() != gst::Format::Undefined
        })
}

/// The caps for consumers. Bytes in a slot are in host memory, even if upstream's memory was elsewhere, and features of metas
/// that cannot be shared are removed. Features of DMA buffers stay.
pub(crate) fn shareable(mut caps: gst::Caps) -> gst::Caps {
    let Some(features) = caps.features(0) else {
        return caps;
    };
    if features.iter().any(is_process_local) {
        let kept: Vec<_> = features
            .iter()
            .filter(|name| !is_process_local(name))
            .map(|name| name.to_owned())
            .collect();
        caps.make_mut()
            .set_features(0, Some(gst::CapsFeatures::new(kept)));
    }
    caps
}

/// Whether a feature applies only to frames in the producer's process.
fn is_process_local(name: &glib::GStr) -> bool {
    if let Some(meta) = name.strip_prefix("meta:") {
        return !meta::can_be_shared(meta);
    }
    name.starts_with("memory:")
        && *name != *gst_allocators::CAPS_FEATURE_MEMORY_DMABUF
        && name.as_str() != CUDA_MEMORY
}
