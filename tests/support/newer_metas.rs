// SPDX-License-Identifier: MPL-2.0

//! Metas that GStreamer has since 1.24, created with C functions if the installed version has them: analytics, and a meta that only
//! its own code can serialise.

#![allow(unsafe_code, unreachable_pub, clippy::undocumented_unsafe_blocks)]

use std::{
    ffi::{c_char, c_void},
    ptr,
};

use gst::glib;
use libloading::{Library, Symbol};

/// The name of the meta that this test defines.
pub const FOREIGN: &str = "XmemTestForeignMeta";
pub const ANALYTICS: &str = "GstAnalyticsRelationMeta";

#[repr(C)]
struct ForeignMeta {
    meta: gst::ffi::GstMeta,
    value: u32,
}

unsafe extern "C" fn init(
    meta: *mut gst::ffi::GstMeta,
    _params: *mut c_void,
    _buffer: *mut gst::ffi::GstBuffer,
) -> glib::ffi::gboolean {
    unsafe { (*meta.cast::<ForeignMeta>()).value = 0 };
    glib::ffi::GTRUE
}

unsafe extern "C" fn serialize(
    meta: *const gst::ffi::GstMeta,
    data: *mut gst::ffi::GstByteArrayInterface,
    version: *mut u8,
) -> glib::ffi::gboolean {
    unsafe {
        let value = (*meta.cast::<ForeignMeta>()).value;
        *version = 7;
        let len = (*data).len;
        (*data).resize.unwrap()(data, len + 4);
        (*data).len = len + 4;
        (*data)
            .data
            .add(len)
            .cast::<[u8; 4]>()
            .write(value.to_le_bytes());
    }
    glib::ffi::GTRUE
}

unsafe extern "C" fn deserialize(
    info: *const gst::ffi::GstMetaInfo,
    buffer: *mut gst::ffi::GstBuffer,
    data: *const u8,
    size: usize,
    version: u8,
) -> *mut gst::ffi::GstMeta {
    unsafe {
        assert_eq!((size, version), (4, 7));
        let meta = gst::ffi::gst_buffer_add_meta(buffer, info, ptr::null_mut());
        (*meta.cast::<ForeignMeta>()).value = u32::from_le_bytes(data.cast::<[u8; 4]>().read());
        meta
    }
}

/// Registers that meta. Returns `false` if GStreamer is older than 1.24.
pub fn register_foreign() -> bool {
    type New =
        unsafe extern "C" fn(glib::ffi::GType, *const c_char, usize) -> *mut gst::ffi::GstMetaInfo;
    type Register =
        unsafe extern "C" fn(*mut gst::ffi::GstMetaInfo) -> *const gst::ffi::GstMetaInfo;
    unsafe {
        let library = Library::new("libgstreamer-1.0.so.0").unwrap();
        let (Ok(new), Ok(register)) = (
            library.get::<New>("gst_meta_info_new"),
            library.get::<Register>("gst_meta_info_register"),
        ) else {
            return false;
        };
        if gst::ffi::gst_meta_get_info(c"XmemTestForeignMeta".as_ptr()).is_null() {
            let mut tags: [*const c_char; 1] = [ptr::null()];
            let api = gst::ffi::gst_meta_api_type_register(
                c"XmemTestForeignMetaAPI".as_ptr(),
                tags.as_mut_ptr(),
            );
            let info = new(
                api,
                c"XmemTestForeignMeta".as_ptr(),
                size_of::<ForeignMeta>(),
            );
            (*info).init_func = Some(init);
            (*info).serialize_func = Some(serialize);
            (*info).deserialize_func = Some(deserialize);
            register(info);
        }
        true
    }
}

pub fn add_foreign(buffer: &mut gst::BufferRef, value: u32) {
    unsafe {
        let info = gst::ffi::gst_meta_get_info(c"XmemTestForeignMeta".as_ptr());
        let meta = gst::ffi::gst_buffer_add_meta(buffer.as_mut_ptr(), info, ptr::null_mut());
        (*meta.cast::<ForeignMeta>()).value = value;
    }
}

pub fn foreign_of(buffer: &gst::BufferRef) -> Option<u32> {
    let meta = buffer
        .iter_meta::<gst::Meta>()
        .find(|meta| meta.type_().name() == FOREIGN)?;
    Some(unsafe { (*meta.as_ptr().cast::<ForeignMeta>()).value })
}

#[repr(C)]
struct Mtd {
    id: u32,
    meta: *mut c_void,
}

const NO_MTD: Mtd = Mtd {
    id: 0,
    meta: ptr::null_mut(),
};

pub struct Analytics(Library);

impl Analytics {
    /// `None` if the library is not installed.
    pub fn load() -> Option<Self> {
        unsafe { Library::new("libgstanalytics-1.0.so.0") }
            .ok()
            .map(Self)
    }

    unsafe fn get<T>(&self, name: &str) -> Symbol<'_, T> {
        unsafe { self.0.get(name) }.unwrap()
    }

    /// Adds an object at `x` with its classification and tracking.
    pub fn add(&self, buffer: &mut gst::BufferRef, x: i32) {
        type New = unsafe extern "C" fn(*mut gst::ffi::GstBuffer) -> *mut c_void;
        type Object =
            unsafe extern "C" fn(*mut c_void, u32, i32, i32, i32, i32, f32, *mut Mtd) -> i32;
        type Classes =
            unsafe extern "C" fn(*mut c_void, usize, *mut f32, *mut u32, *mut Mtd) -> i32;
        type Track = unsafe extern "C" fn(*mut c_void, u64, u64, *mut Mtd) -> i32;
        type Relate = unsafe extern "C" fn(*mut c_void, i32, u32, u32) -> i32;
        unsafe {
            let quark = |text: &std::ffi::CStr| glib::ffi::g_quark_from_string(text.as_ptr());
            let meta =
                self.get::<New>("gst_buffer_add_analytics_relation_meta")(buffer.as_mut_ptr());
            let (mut object, mut classes, mut track) = (NO_MTD, NO_MTD, NO_MTD);
            let add = self.get::<Object>("gst_analytics_relation_meta_add_od_mtd");
            assert_ne!(add(meta, quark(c"dog"), x, 2, 3, 4, 0.5, &mut object), 0);
            let mut kinds = [quark(c"poodle"), quark(c"beagle")];
            let add = self.get::<Classes>("gst_analytics_relation_meta_add_cls_mtd");
            let mut levels = [0.25, 0.75];
            assert_ne!(
                add(
                    meta,
                    2,
                    levels.as_mut_ptr(),
                    kinds.as_mut_ptr(),
                    &mut classes
                ),
                0
            );
            let add = self.get::<Track>("gst_analytics_relation_meta_add_tracking_mtd");
            assert_ne!(add(meta, 99, 5, &mut track), 0);
            let relate = self.get::<Relate>("gst_analytics_relation_meta_set_relation");
            assert_ne!(relate(meta, 1 << 3, object.id, classes.id), 0);
            assert_ne!(relate(meta, 1 << 2, track.id, object.id), 0);
        }
    }

    /// Whether the buffer has this object.
    pub fn check(&self, buffer: &gst::BufferRef, x: i32) {
        type Get = unsafe extern "C" fn(*const gst::ffi::GstBuffer) -> *mut c_void;
        type Length = unsafe extern "C" fn(*const c_void) -> usize;
        type Mtds = unsafe extern "C" fn(*mut c_void, u32, *mut Mtd) -> i32;
        type Location = unsafe extern "C" fn(
            *const Mtd,
            *mut i32,
            *mut i32,
            *mut i32,
            *mut i32,
            *mut f32,
        ) -> i32;
        type Kind = unsafe extern "C" fn(*const Mtd) -> u32;
        type Class = unsafe extern "C" fn(*const Mtd, usize) -> u32;
        type Level = unsafe extern "C" fn(*const Mtd, usize) -> f32;
        type Track =
            unsafe extern "C" fn(*const Mtd, *mut u64, *mut u64, *mut u64, *mut i32) -> i32;
        type Relation = unsafe extern "C" fn(*const c_void, u32, u32) -> i32;
        unsafe {
            let text = |quark| {
                std::ffi::CStr::from_ptr(glib::ffi::g_quark_to_string(quark))
                    .to_str()
                    .unwrap()
            };
            let meta = self.get::<Get>("gst_buffer_get_analytics_relation_meta")(buffer.as_ptr());
            assert!(!meta.is_null(), "the frame has no analytics");
            assert_eq!(
                self.get::<Length>("gst_analytics_relation_get_length")(meta),
                3
            );
            let (mut object, mut classes, mut track) = (NO_MTD, NO_MTD, NO_MTD);
            for (kind, id, mtd) in [
                ("od", 0, &mut object),
                ("cls", 1, &mut classes),
                ("tracking", 2, &mut track),
            ] {
                let get = self.get::<Mtds>(&format!("gst_analytics_relation_meta_get_{kind}_mtd"));
                assert_ne!(get(meta, id, mtd), 0, "{kind}");
            }
            let (mut place, mut level) = ([0; 4], 0.);
            let [a, b, c, d] = &mut place;
            self.get::<Location>("gst_analytics_od_mtd_get_location")(
                &object, a, b, c, d, &mut level,
            );
            assert_eq!((place, level), ([x, 2, 3, 4], 0.5));
            let kind = self.get::<Kind>("gst_analytics_od_mtd_get_obj_type")(&object);
            assert_eq!(text(kind), "dog");
            let class = self.get::<Class>("gst_analytics_cls_mtd_get_quark")(&classes, 1);
            assert_eq!(text(class), "beagle");
            let level = self.get::<Level>("gst_analytics_cls_mtd_get_level")(&classes, 1);
            assert_eq!(level, 0.75);
            let (mut id, mut first, mut last, mut lost) = (0, 0, 0, 0);
            let info = self.get::<Track>("gst_analytics_tracking_mtd_get_info");
            info(&track, &mut id, &mut first, &mut last, &mut lost);
            assert_eq!((id, first, lost), (99, 5, 0));
            let relation = self.get::<Relation>("gst_analytics_relation_meta_get_relation");
            assert_eq!(relation(meta, 0, 1), 1 << 3);
            assert_eq!(relation(meta, 2, 0), 1 << 2);
            assert_eq!(relation(meta, 0, 2), 0);
        }
    }
}
