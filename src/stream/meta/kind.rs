// SPDX-License-Identifier: MPL-2.0

//! The format of a kind of meta: a CBOR record with numbered fields. A later version may add fields at the end, which earlier
//! versions skip. Any other change needs a new key.

use std::borrow::Cow;

use gst::{MetaRef, glib, meta::MetaAPI};
use minicbor::{Decode, Decoder, Encode};

use crate::stream::frame::Format;

/// The prefix of the keys of attachments that hold metas.
pub(super) const PREFIX: &str = "meta:";

/// The reason why a meta cannot be shared.
pub(super) type Why = Cow<'static, str>;

/// The shared content of a kind of meta with a format of this plugin.
pub(super) trait Kind {
    /// Name of the attachment: [`PREFIX`], GStreamer's name of the meta, a slash and a version.
    const KEY: &'static str;
    type Meta: MetaAPI;
    /// This type, for as long as what it refers to.
    type Record<'a>: Encode<()> + Decode<'a, ()>;

    /// The record of a meta. `None`: it has nothing to share.
    fn describe<'a>(meta: &'a MetaRef<'_, Self::Meta>) -> Result<Option<Self::Record<'a>>, Why>;

    /// The names of the fields that are missing in the record.
    fn lost<'a>(_record: &'a Self::Record<'_>) -> &'a [String] {
        &[]
    }

    /// Adds a meta to a buffer that has its memory and its GstVideoMeta. Another process wrote the record.
    fn add(
        record: Self::Record<'_>,
        buffer: &mut gst::BufferRef,
        format: &Format,
    ) -> Result<(), Why>;
}

/// The result of writing a record: the names of the fields that cannot be shared.
pub(super) type Encoded = Result<Vec<String>, Why>;

/// The functions of a [`Kind`].
pub(super) struct Codec {
    pub(super) key: &'static str,
    pub(super) api: fn() -> glib::Type,
    /// Appends the record of a meta.
    pub(super) encode: fn(&MetaRef<'_, gst::Meta>, &mut Vec<u8>) -> Encoded,
    /// Reads one record.
    pub(super) decode: fn(&mut Decoder<'_>, &mut gst::BufferRef, &Format) -> Result<(), Why>,
}

impl Codec {
    pub(super) const fn of<K: Kind>() -> Self {
        Self {
            key: K::KEY,
            api: K::Meta::meta_api,
            encode: encode::<K>,
            decode: decode::<K>,
        }
    }
}

fn encode<K: Kind>(meta: &MetaRef<'_, gst::Meta>, out: &mut Vec<u8>) -> Encoded {
    let Some(meta) = meta.downcast_ref::<K::Meta>() else {
        return Err("it is of another type than its API".into());
    };
    let Some(record) = K::describe(meta)? else {
        return Ok(Vec::new());
    };
    append(&record, out)?;
    Ok(K::lost(&record).to_vec())
}

fn decode<K: Kind>(
    decoder: &mut Decoder<'_>,
    buffer: &mut gst::BufferRef,
    format: &Format,
) -> Result<(), Why> {
    K::add(read(decoder)?, buffer, format)
}

/// Appends a record.
pub(super) fn append(record: &impl Encode<()>, out: &mut Vec<u8>) -> Result<(), Why> {
    let before = out.len();
    minicbor::encode(record, &mut *out).map_err(|error| {
        out.truncate(before);
        error.to_string().into()
    })
}

/// Reads a record that another process wrote.
pub(super) fn read<'a, R: Decode<'a, ()>>(decoder: &mut Decoder<'a>) -> Result<R, Why> {
    decoder.decode().map_err(|error| error.to_string().into())
}

/// A meta that the bindings do not export, with its structure and the function that returns its type.
macro_rules! meta {
    ($name:ident, $structure:ty, $api:path) => {
        #[repr(transparent)]
        pub(super) struct $name($structure);

        // SAFETY: metas change only while their buffer is borrowed for writing.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        // SAFETY: the structure belongs to the type that the function returns.
        unsafe impl gst::meta::MetaAPI for $name {
            type GstType = $structure;

            fn meta_api() -> gst::glib::Type {
                // SAFETY: takes no arguments, and returns a registered type.
                unsafe { gst::glib::translate::from_glib($api()) }
            }
        }
    };
}

pub(super) use meta;
