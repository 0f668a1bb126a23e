// SPDX-License-Identifier: MPL-2.0

//! Converts the GstMetas of a buffer to attachments of a frame, and back. The planes of a video frame are in the frame's fixed
//! metadata instead; see planes.rs.
//!
//! Each kind of meta has an attachment of its own, with one record for each meta. The formats belong to this plugin, so that
//! processes with different versions of GStreamer can exchange them. Other metas use GStreamer's format, which exists since
//! 1.24 and for few metas.

mod analytics;
mod ancillary;
mod audio;
mod foreign;
mod kind;
mod losses;
mod structure;
#[cfg(test)]
mod tests;
mod time;
mod video;

use std::collections::BTreeMap;

use gst::{MetaRef, meta::tags};
use minicbor::Decoder;
use xmem_core::{Attachments, MAX_NAMED_SIZE};

use crate::stream::frame::Format;
use kind::{Codec, PREFIX, Why};
pub(crate) use losses::Losses;
pub(crate) use video::padding;

static CODECS: &[Codec] = &[
    Codec::of::<video::Video>(),
    Codec::of::<video::Crop>(),
    Codec::of::<video::Affine>(),
    Codec::of::<video::Region<'static>>(),
    Codec::of::<audio::Audio>(),
    Codec::of::<audio::Level>(),
    Codec::of::<audio::Clipping>(),
    Codec::of::<time::Reference>(),
    Codec::of::<time::TimeCode>(),
    Codec::of::<ancillary::Caption<'static>>(),
    Codec::of::<ancillary::Afd>(),
    Codec::of::<ancillary::Bar>(),
    Codec::of::<ancillary::Sei<'static>>(),
    Codec::of::<ancillary::Alpha>(),
    Codec::of::<structure::Protection>(),
];

/// More metas on one frame are an error.
const MAX_METAS: usize = 1 << 16;

/// The metas of a buffer as attachments.
pub(crate) fn of_buffer(buffer: &gst::BufferRef, losses: &Losses) -> Attachments {
    let mut records: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let mut has_planes = false;
    for meta in buffer.iter_meta::<gst::Meta>() {
        let api = meta.api();
        let codec = CODECS.iter().find(|codec| (codec.api)() == api);
        if let Some(codec) = codec {
            if codec.key == <video::Video as kind::Kind>::KEY
                && std::mem::replace(&mut has_planes, true)
            {
                losses.note("GstVideoMeta", "a frame has one set of planes only");
                continue;
            }
            match (codec.encode)(&meta, records.entry(codec.key).or_default()) {
                Ok(fields) => note_fields(name_of(codec.key), &fields, losses),
                Err(why) => losses.note(meta.type_().name(), &why),
            }
        } else if let Some(meta) = meta.try_as_custom_meta() {
            let record = records.entry(structure::CUSTOM_KEY).or_default();
            match structure::encode_custom(meta, record) {
                Ok(fields) => note_fields(meta.structure().name(), &fields, losses),
                Err(why) => losses.note(meta.structure().name(), &why),
            }
        } else if meta.type_().name() == analytics::NAME {
            match analytics::encode(&meta, records.entry(analytics::KEY).or_default()) {
                Ok(parts) => parts.iter().for_each(|part| {
                    losses.note(part, "xmem has no format for it");
                }),
                Err(why) => losses.note(analytics::NAME, &why),
            }
        } else if !is_about_memory(&meta) {
            let record = records.entry(foreign::KEY).or_default();
            match foreign::encode(&meta, record) {
                Ok(true) => {}
                // A pooled meta belongs to its buffer pool.
                Ok(false) if meta.flags().contains(gst::MetaFlags::POOLED) => {}
                Ok(false) => losses.note(
                    meta.type_().name(),
                    "neither xmem nor this version of GStreamer has a format for it",
                ),
                Err(why) => losses.note(meta.type_().name(), &why),
            }
        }
    }
    let mut attachments = Attachments::new();
    for (key, record) in records {
        if record.is_empty() {
            continue;
        }
        if attachments.encoded_len() + key.len() + record.len() + 64 > MAX_NAMED_SIZE {
            losses.note(
                name_of(key),
                "there are more bytes than a frame can have metas",
            );
            continue;
        }
        attachments.set(key, record);
    }
    attachments
}

fn note_fields(name: &str, fields: &[String], losses: &Losses) {
    for field in fields {
        losses.note(
            &format!("{name}/{field}"),
            "its value is bound to this process",
        );
    }
}

/// Whether a meta describes the memory, such as a reference that keeps it alive. A frame in other memory does not need it.
pub(crate) fn is_about_memory(meta: &MetaRef<'_, gst::Meta>) -> bool {
    meta.has_tag::<tags::Memory>() || meta.has_tag::<tags::MemoryReference>()
}

/// Adds the metas in a frame's attachments to a buffer that has its memory and its planes. Leaves out invalid ones.
pub(crate) fn onto_buffer(
    attachments: &Attachments,
    buffer: &mut gst::BufferRef,
    format: &Format,
    losses: &Losses,
) {
    let mut left = MAX_METAS;
    for (key, records) in attachments.iter() {
        if !key.starts_with(PREFIX) {
            // An attachment of another program.
            continue;
        }
        let name = name_of(key);
        let mut decoder = Decoder::new(records);
        while decoder.position() < records.len() {
            if left == 0 {
                losses.note(name, "the frame has too many metas");
                return;
            }
            left -= 1;
            let start = decoder.position();
            if let Err((name, why)) = decode(key, name, &mut decoder, buffer, format) {
                losses.note(&name, &why);
                // If this is a CBOR record, the next one begins after it.
                decoder.set_position(start);
                if decoder.skip().is_err() {
                    break;
                }
            }
        }
    }
}

/// Reads one record. `Err`: its name and the reason.
fn decode(
    key: &str,
    name: &str,
    decoder: &mut Decoder<'_>,
    buffer: &mut gst::BufferRef,
    format: &Format,
) -> Result<(), (String, Why)> {
    match key {
        structure::CUSTOM_KEY => return structure::decode_custom(decoder, buffer),
        foreign::KEY => return foreign::decode(decoder, buffer, is_ours),
        analytics::KEY => {
            let result = analytics::decode(decoder, buffer);
            return result.map_err(|why| (name.to_owned(), why));
        }
        _ => {}
    }
    let Some(codec) = CODECS.iter().find(|codec| codec.key == key) else {
        let why = "its format is newer than this version of xmem";
        return Err((name.to_owned(), why.into()));
    };
    (codec.decode)(decoder, buffer, format).map_err(|why| (name.to_owned(), why))
}

/// Whether this plugin has a format for metas with this name.
fn is_ours(name: &str) -> bool {
    name == analytics::NAME || CODECS.iter().any(|codec| name_of(codec.key) == name)
}

/// Whether metas of a caps feature can be shared. A feature has the meta's name, usually without `Meta`.
pub(crate) fn can_be_shared(feature: &str) -> bool {
    is_ours(feature) || is_ours(&format!("{feature}Meta"))
}

/// The name of the metas with this key, without the version.
fn name_of(key: &str) -> &str {
    let kind = key.strip_prefix(PREFIX).unwrap_or(key);
    kind.rsplit_once('/').map_or(kind, |(name, _)| name)
}
