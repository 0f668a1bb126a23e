// SPDX-License-Identifier: MPL-2.0

//! Objects found in a frame: GstAnalyticsRelationMeta. Its library exists since GStreamer 1.24, and is loaded at run time.

// Calls a library that the bindings for 1.22 do not have.
#![allow(unsafe_code)]

use std::{
    ffi::{c_char, c_float, c_int, c_uint, c_void},
    mem::MaybeUninit,
    ptr,
    sync::LazyLock,
};

use gst::{MetaRef, glib};
use libloading::Library;
use minicbor::{Decode, Decoder, Encode};

use super::kind::{Encoded, Why, append, read};
use crate::{library::functions, stream::untrusted};

/// Key of these metas.
pub(super) const KEY: &str = "meta:GstAnalyticsRelationMeta/1";
pub(super) const NAME: &str = "GstAnalyticsRelationMeta";

/// The maximum number of entries. The number of relations grows with its square.
const MAX_ENTRIES: usize = 1024;

#[derive(Debug, Encode, Decode)]
struct RelationRecord<'a> {
    #[b(0)]
    found: Vec<Found<'a>>,
    /// Two indices in `found`, and how the first is related to the second (GstAnalyticsRelTypes).
    #[n(1)]
    relations: Vec<(u32, u32, i32)>,
}

/// One of these. None is set if the kind is of a later version.
#[derive(Debug, Default, Encode, Decode)]
struct Found<'a> {
    #[b(0)]
    object: Option<Object<'a>>,
    #[b(1)]
    classes: Option<Vec<Class<'a>>>,
    #[n(2)]
    track: Option<Track>,
}

/// The position of an object.
#[derive(Debug, Encode, Decode)]
struct Object<'a> {
    /// Empty: unknown.
    #[b(0)]
    kind: &'a str,
    #[n(1)]
    x: i32,
    #[n(2)]
    y: i32,
    #[n(3)]
    width: i32,
    #[n(4)]
    height: i32,
    /// From 0 to 1.
    #[n(5)]
    confidence: f32,
    /// In radians, clockwise.
    #[n(6)]
    rotation: Option<f32>,
}

/// One possible class of the object.
#[derive(Debug, Encode, Decode)]
struct Class<'a> {
    #[b(0)]
    kind: &'a str,
    /// From 0 to 1.
    #[n(1)]
    confidence: f32,
}

/// The identity of an object over several frames. Its times are in the units of the program that tracks it.
#[derive(Debug, Encode, Decode)]
struct Track {
    #[n(0)]
    id: u64,
    #[n(1)]
    first_seen: u64,
    #[n(2)]
    last_seen: u64,
    #[n(3)]
    lost: bool,
}

/// GstAnalyticsMtd.
#[repr(C)]
pub(super) struct Mtd {
    id: c_uint,
    meta: *mut c_void,
}

type Type = usize;
type Bool = glib::ffi::gboolean;

functions! { Api {
    buffer_add_analytics_relation_meta: fn(*mut gst::ffi::GstBuffer) -> *mut c_void;
    analytics_relation_get_length: fn(*const c_void) -> usize;
    analytics_relation_meta_get_mtd: fn(*mut c_void, c_uint, Type, *mut Mtd) -> Bool;
    analytics_relation_meta_get_relation: fn(*const c_void, c_uint, c_uint) -> c_int;
    analytics_relation_meta_set_relation: fn(*mut c_void, c_int, c_uint, c_uint) -> Bool;
    analytics_mtd_get_mtd_type: fn(*const Mtd) -> Type;
    analytics_mtd_type_get_name: fn(Type) -> *const c_char;
    analytics_od_mtd_get_mtd_type: fn() -> Type;
    analytics_od_mtd_get_location: fn(*const Mtd, *mut c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_float) -> Bool;
    analytics_od_mtd_get_obj_type: fn(*const Mtd) -> glib::ffi::GQuark;
    analytics_relation_meta_add_od_mtd: fn(*mut c_void, glib::ffi::GQuark, c_int, c_int, c_int, c_int, c_float, *mut Mtd) -> Bool;
    analytics_cls_mtd_get_mtd_type: fn() -> Type;
    analytics_cls_mtd_get_length: fn(*const Mtd) -> usize;
    analytics_cls_mtd_get_level: fn(*const Mtd, usize) -> c_float;
    analytics_cls_mtd_get_quark: fn(*const Mtd, usize) -> glib::ffi::GQuark;
    analytics_relation_meta_add_cls_mtd: fn(*mut c_void, usize, *mut c_float, *mut glib::ffi::GQuark, *mut Mtd) -> Bool;
    analytics_tracking_mtd_get_mtd_type: fn() -> Type;
    analytics_tracking_mtd_get_info: fn(*const Mtd, *mut u64, *mut u64, *mut u64, *mut Bool) -> Bool;
    analytics_relation_meta_add_tracking_mtd: fn(*mut c_void, u64, u64, *mut Mtd) -> Bool;
    analytics_tracking_mtd_update_last_seen: fn(*mut Mtd, u64) -> Bool;
    analytics_tracking_mtd_set_lost: fn(*mut Mtd) -> Bool;
} optional {
    // Since 1.26.
    analytics_od_mtd_get_oriented_location: fn(*const Mtd, *mut c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_float, *mut c_float) -> Bool;
    analytics_relation_meta_add_oriented_od_mtd: fn(*mut c_void, glib::ffi::GQuark, c_int, c_int, c_int, c_int, c_float, c_float, *mut Mtd) -> Bool;
}}

/// `None`: the library is missing or too old.
static API: LazyLock<Option<Api>> = LazyLock::new(|| {
    // SAFETY: GStreamer's libraries run no code when they are loaded. The types are those of its headers.
    unsafe { Api::of(Library::new("libgstanalytics-1.0.so.0").ok()?).ok() }
});

/// Appends a meta's record.
pub(super) fn encode(meta: &MetaRef<'_, gst::Meta>, out: &mut Vec<u8>) -> Encoded {
    let Some(api) = &*API else {
        return Err("libgstanalytics-1.0.so.0 is not the one that made it".into());
    };
    let mut lost = Vec::new();
    let raw = meta.as_ptr().cast_mut().cast::<c_void>();
    // SAFETY: a live meta of this kind, identified by its name. The functions only read it, although some take it as mutable.
    let record = unsafe {
        let count = (api.analytics_relation_get_length)(raw);
        if count > MAX_ENTRIES {
            return Err("more was found than a frame can carry".into());
        }
        let mut known = Vec::new();
        let mut found = Vec::new();
        for id in 0..count as c_uint {
            match api.found(raw, id) {
                Ok(one) => {
                    known.push(id);
                    found.push(one);
                }
                Err(name) => lost.push(name),
            }
        }
        let mut relations = Vec::new();
        for (first, first_id) in (0..).zip(&known) {
            for (second, second_id) in (0..).zip(&known) {
                let kind = (api.analytics_relation_meta_get_relation)(raw, *first_id, *second_id);
                if kind != 0 {
                    relations.push((first, second, kind));
                }
            }
        }
        RelationRecord { found, relations }
    };
    append(&record, out)?;
    Ok(lost)
}

/// Reads a meta's record.
pub(super) fn decode(decoder: &mut Decoder<'_>, buffer: &mut gst::BufferRef) -> Result<(), Why> {
    let record: RelationRecord<'_> = read(decoder)?;
    let Some(api) = &*API else {
        return Err("this process finds no libgstanalytics-1.0.so.0".into());
    };
    let count = record.found.len();
    let related = |(first, second, kind): &(u32, u32, i32)| {
        (*first as usize) < count && (*second as usize) < count && (0..256).contains(kind)
    };
    if count > MAX_ENTRIES || !record.relations.iter().all(related) {
        return Err("its relations cannot be".into());
    }
    let mut found = Vec::with_capacity(count);
    for one in &record.found {
        found.push(Addition::of(one)?);
    }
    // SAFETY: the buffer is borrowed for writing, and the meta was just added to it.
    unsafe {
        let meta = (api.buffer_add_analytics_relation_meta)(buffer.as_mut_ptr());
        if meta.is_null() {
            return Err("libgstanalytics refuses it".into());
        }
        let ids = found.iter_mut().map(|one| api.add(meta, one));
        let ids = match ids.collect::<Result<Vec<_>, _>>() {
            Ok(ids) => ids,
            Err(why) => {
                gst::ffi::gst_buffer_remove_meta(buffer.as_mut_ptr(), meta.cast());
                return Err(why);
            }
        };
        let id = |index: &u32| ids.get(*index as usize).copied();
        for (first, second, kind) in &record.relations {
            if let (Some(first), Some(second)) = (id(first), id(second)) {
                (api.analytics_relation_meta_set_relation)(meta, *kind, first, second);
            }
        }
    }
    Ok(())
}

/// An entry, as the library takes it.
enum Addition<'a> {
    Object(glib::ffi::GQuark, &'a Object<'a>),
    Classes(Vec<c_float>, Vec<glib::ffi::GQuark>),
    Track(&'a Track),
}

impl<'a> Addition<'a> {
    fn of(found: &'a Found<'a>) -> Result<Self, Why> {
        use glib::translate::IntoGlib;
        let quark = |kind: &str| match kind {
            "" => Ok(0),
            kind => untrusted::to_quark(kind)
                .map(IntoGlib::into_glib)
                .ok_or_else(|| Why::from("a type in it cannot be")),
        };
        match found {
            Found {
                object: Some(object),
                ..
            } => Ok(Self::Object(quark(object.kind)?, object)),
            Found {
                classes: Some(classes),
                ..
            } => Ok(Self::Classes(
                classes.iter().map(|class| class.confidence).collect(),
                classes
                    .iter()
                    .map(|class| quark(class.kind))
                    .collect::<Result<_, _>>()?,
            )),
            Found {
                track: Some(track), ..
            } => Ok(Self::Track(track)),
            _ => Err("something in it is newer than this version of xmem".into()),
        }
    }
}

impl Api {
    /// The library's entry with this index. `Err`: the name of its unknown kind.
    ///
    /// # Safety
    ///
    /// `meta` is a live GstAnalyticsRelationMeta.
    unsafe fn found(&self, meta: *mut c_void, id: c_uint) -> Result<Found<'static>, String> {
        let mut mtd = MaybeUninit::<Mtd>::uninit();
        // SAFETY: by the caller. The handle is initialised if the function returns true. Each part is read by the function for
        // its kind.
        unsafe {
            if (self.analytics_relation_meta_get_mtd)(meta, id, 0, mtd.as_mut_ptr()) == 0 {
                return Err(NAME.to_owned());
            }
            let mtd = mtd.as_ptr();
            let kind = (self.analytics_mtd_get_mtd_type)(mtd);
            if kind == (self.analytics_od_mtd_get_mtd_type)() {
                return Ok(Found {
                    object: Some(self.object(mtd)),
                    ..Found::default()
                });
            }
            if kind == (self.analytics_cls_mtd_get_mtd_type)() {
                let classes = (0..(self.analytics_cls_mtd_get_length)(mtd)).map(|index| Class {
                    kind: name_of((self.analytics_cls_mtd_get_quark)(mtd, index)),
                    confidence: (self.analytics_cls_mtd_get_level)(mtd, index),
                });
                return Ok(Found {
                    classes: Some(classes.collect()),
                    ..Found::default()
                });
            }
            if kind == (self.analytics_tracking_mtd_get_mtd_type)() {
                return Ok(Found {
                    track: Some(self.track(mtd)),
                    ..Found::default()
                });
            }
            let name = (self.analytics_mtd_type_get_name)(kind);
            if name.is_null() {
                return Err(NAME.to_owned());
            }
            let name = std::ffi::CStr::from_ptr(name).to_string_lossy();
            Err(format!("{NAME}/{name}"))
        }
    }

    /// # Safety
    ///
    /// `mtd` is a live GstAnalyticsODMtd.
    unsafe fn object(&self, mtd: *const Mtd) -> Object<'static> {
        let (mut x, mut y, mut width, mut height) = (0, 0, 0, 0);
        let (mut rotation, mut confidence) = (0., 0.);
        // SAFETY: by the caller. The pointers are to variables for the results.
        let kind = unsafe {
            match self.analytics_od_mtd_get_oriented_location {
                Some(get) => get(
                    mtd,
                    &mut x,
                    &mut y,
                    &mut width,
                    &mut height,
                    &mut rotation,
                    &mut confidence,
                ),
                None => (self.analytics_od_mtd_get_location)(
                    mtd,
                    &mut x,
                    &mut y,
                    &mut width,
                    &mut height,
                    &mut confidence,
                ),
            };
            (self.analytics_od_mtd_get_obj_type)(mtd)
        };
        Object {
            kind: name_of(kind),
            x,
            y,
            width,
            height,
            confidence,
            rotation: (rotation != 0.).then_some(rotation),
        }
    }

    /// # Safety
    ///
    /// `mtd` is a live GstAnalyticsTrackingMtd.
    unsafe fn track(&self, mtd: *const Mtd) -> Track {
        let (mut id, mut first_seen, mut last_seen, mut lost) = (0, 0, 0, 0);
        // SAFETY: by the caller. The pointers are to variables for the results.
        unsafe {
            (self.analytics_tracking_mtd_get_info)(
                mtd,
                &mut id,
                &mut first_seen,
                &mut last_seen,
                &mut lost,
            );
        }
        Track {
            id,
            first_seen,
            last_seen,
            lost: lost != 0,
        }
    }

    /// Returns the index of the addition.
    ///
    /// # Safety
    ///
    /// `meta` is a live GstAnalyticsRelationMeta on a buffer that may be written.
    unsafe fn add(&self, meta: *mut c_void, found: &mut Addition<'_>) -> Result<c_uint, Why> {
        let mut mtd = Mtd {
            id: 0,
            meta: ptr::null_mut(),
        };
        // SAFETY: by the caller. Lists have the given length, and the library copies them.
        let added = unsafe {
            match found {
                Addition::Object(kind, object) => self.add_object(meta, *kind, object, &mut mtd),
                Addition::Classes(levels, kinds) => (self.analytics_relation_meta_add_cls_mtd)(
                    meta,
                    levels.len(),
                    levels.as_mut_ptr(),
                    kinds.as_mut_ptr(),
                    &mut mtd,
                ),
                Addition::Track(track) => {
                    let added = (self.analytics_relation_meta_add_tracking_mtd)(
                        meta,
                        track.id,
                        track.first_seen,
                        &mut mtd,
                    );
                    if added != 0 {
                        (self.analytics_tracking_mtd_update_last_seen)(&mut mtd, track.last_seen);
                        if track.lost {
                            (self.analytics_tracking_mtd_set_lost)(&mut mtd);
                        }
                    }
                    added
                }
            }
        };
        if added == 0 {
            return Err("libgstanalytics refuses a part of it".into());
        }
        Ok(mtd.id)
    }

    /// # Safety
    ///
    /// As for `add`.
    unsafe fn add_object(
        &self,
        meta: *mut c_void,
        kind: glib::ffi::GQuark,
        object: &Object<'_>,
        mtd: &mut Mtd,
    ) -> Bool {
        let Object {
            x,
            y,
            width,
            height,
            confidence,
            rotation,
            ..
        } = *object;
        // SAFETY: by the caller.
        unsafe {
            match (rotation, self.analytics_relation_meta_add_oriented_od_mtd) {
                (Some(rotation), Some(add)) => {
                    add(meta, kind, x, y, width, height, rotation, confidence, mtd)
                }
                _ => (self.analytics_relation_meta_add_od_mtd)(
                    meta, kind, x, y, width, height, confidence, mtd,
                ),
            }
        }
    }
}

/// The string of a quark. Empty if it has none.
fn name_of(quark: glib::ffi::GQuark) -> &'static str {
    use glib::translate::TryFromGlib;
    // SAFETY: a quark is 0 or stands for a string that lives until the process ends.
    let quark = unsafe { glib::Quark::try_from_glib(quark) };
    quark.map_or("", |quark| quark.as_str().as_str())
}

/// A record with an entry of each kind.
#[cfg(test)]
pub(super) fn sample() -> Vec<u8> {
    let object = Object {
        kind: "dog",
        x: -1,
        y: 2,
        width: 3,
        height: 4,
        confidence: 0.5,
        rotation: Some(0.1),
    };
    let classes =
        [("poodle", 0.25), ("", 0.75)].map(|(kind, confidence)| Class { kind, confidence });
    let track = Track {
        id: 1,
        first_seen: 2,
        last_seen: u64::MAX,
        lost: true,
    };
    let record = RelationRecord {
        found: vec![
            Found {
                object: Some(object),
                ..Found::default()
            },
            Found {
                classes: Some(classes.into()),
                ..Found::default()
            },
            Found {
                track: Some(track),
                ..Found::default()
            },
        ],
        relations: vec![(0, 1, 8), (2, 0, 4)],
    };
    minicbor::to_vec(&record).unwrap()
}
