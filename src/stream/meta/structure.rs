// SPDX-License-Identifier: MPL-2.0

//! Metas that consist of a GstStructure: custom metas of applications, and data for decryption.

use std::sync::Mutex;

use gst::{MetaRef, glib, meta::CustomMeta};
use minicbor::{Decode, Decoder, Encode};

use super::kind::{Encoded, Kind, Why, append, read};
use crate::lock;
use crate::stream::{frame::Format, text, untrusted};

/// Key of custom metas. The record contains the name.
pub(super) const CUSTOM_KEY: &str = "meta:custom/1";

#[derive(Debug, Encode, Decode)]
struct CustomRecord<'a> {
    #[b(0)]
    name: &'a str,
    /// The tags with which the meta was registered: the properties of the memory that it depends on.
    #[b(1)]
    tags: Vec<&'a str>,
    /// The fields, as text.
    #[n(2)]
    fields: String,
}

/// Appends a custom meta's record.
pub(super) fn encode_custom(meta: &MetaRef<'_, CustomMeta>, out: &mut Vec<u8>) -> Encoded {
    let structure = meta.structure();
    let (fields, lost) = text::of_structure(structure);
    let record = CustomRecord {
        name: structure.name(),
        tags: meta.tags().iter().map(|tag| tag.as_str()).collect(),
        fields,
    };
    append(&record, out)?;
    Ok(lost)
}

/// Reads a custom meta's record. `Err`: its name and the reason.
pub(super) fn decode_custom(
    decoder: &mut Decoder<'_>,
    buffer: &mut gst::BufferRef,
) -> Result<(), (String, Why)> {
    let record: CustomRecord<'_> = read(decoder).map_err(|why| ("custom".to_owned(), why))?;
    let name = record.name;
    let fail = |why: &'static str| (name.to_owned(), why.into());
    let fields = text::to_structure(&record.fields)
        .filter(|fields| fields.name() == name)
        .ok_or_else(|| fail("its fields are invalid"))?;
    register(name, &record.tags).map_err(fail)?;
    let mut meta = CustomMeta::add(buffer, name)
        .map_err(|_| fail("a meta of another kind has its name in this process"))?;
    let structure = meta.mut_structure();
    for (field, value) in fields.iter() {
        structure.set_value(field.as_str(), value.clone());
    }
    Ok(())
}

/// Registers a custom meta that this process does not know. A registration lasts until the process ends.
fn register(name: &str, tags: &[&str]) -> Result<(), &'static str> {
    const MAX_REGISTERED: usize = 256;
    const MAX_TAGS: usize = 16;
    /// The number of registrations. The lock prevents that two threads register the same name.
    static REGISTERED: Mutex<usize> = Mutex::new(0);
    if !is_type_name(name) || tags.len() > MAX_TAGS {
        return Err("its name or its tags cannot be");
    }
    let mut registered = lock(&REGISTERED);
    if CustomMeta::is_registered(name) {
        return Ok(());
    }
    // If a type has the name already, GStreamer would log a warning.
    let taken = |name: &str| glib::Type::from_name(name).is_some();
    if taken(name) || taken(&format!("{name}-api")) {
        return Err("something that is no meta has its name in this process");
    }
    if *registered == MAX_REGISTERED || tags.iter().any(|tag| untrusted::to_quark(tag).is_none()) {
        return Err("this process has been made to know too many already");
    }
    *registered += 1;
    CustomMeta::register(name, tags);
    gst::info!(
        gst::CAT_RUST,
        "Registered the custom meta {name}, tags {tags:?}"
    );
    Ok(())
}

/// Whether GLib accepts this as the name of a type.
fn is_type_name(name: &str) -> bool {
    (3..=128).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_+".contains(&byte))
}

/// Data that a decryptor needs for a frame.
#[derive(Debug, Encode, Decode)]
pub(super) struct Protection {
    #[n(0)]
    info: String,
}

impl Kind for Protection {
    const KEY: &'static str = "meta:GstProtectionMeta/1";
    type Meta = gst::ProtectionMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        let (info, lost) = text::of_structure(meta.info());
        if !lost.is_empty() {
            // Decryption needs all fields.
            return Err(format!("its fields {lost:?} are bound to this process").into());
        }
        Ok(Some(Self { info }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        let info = text::to_structure(&record.info);
        let info = info.ok_or(Why::Borrowed("its fields are invalid"))?;
        gst::ProtectionMeta::add(buffer, info);
        Ok(())
    }
}
