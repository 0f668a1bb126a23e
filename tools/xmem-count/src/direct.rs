// SPDX-License-Identifier: MPL-2.0

//! One side of a pool without GStreamer, which runs under Valgrind: by xmem-core, or by libxmem as from C.
#![allow(unsafe_code)] // functions of C

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;

use libloading::{Library, Symbol};
use xmem_core::{Consumer, FrameMeta, Producer, VideoLayout};

use crate::Error;
use crate::mark::Mark;
use crate::side::announce;

const FORMAT: &str = "NV12";
const WIDTH: u32 = 1920;
const HEIGHT: u32 = 1080;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The code that is counted: libxmem, or this program for xmem-core. The last one is it
    #[arg(long)]
    plugin: Vec<PathBuf>,
    /// The path of the pool's socket
    pool: String,
}

impl Args {
    /// `None`: by xmem-core.
    fn library(&self) -> Result<Option<Library>, Error> {
        let counted = self.plugin.last().ok_or("nothing is counted")?;
        if *counted == std::env::current_exe()? {
            return Ok(None);
        }
        // SAFETY: libxmem's initialisation does nothing.
        Ok(Some(unsafe { Library::new(counted) }?))
    }
}

/// Does one frame for each line of standard input.
pub(crate) fn each_line(mut work: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    std::io::stdin().lines().try_for_each(|line| {
        line?;
        work()
    })
}

/// What a program of C does with the result of a function.
fn ok(code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        code => Err(format!("libxmem returned {code}").into()),
    }
}

pub(crate) fn publish(args: &Args) -> Result<(), Error> {
    let Some(library) = args.library()? else {
        return publish_by_rust(&args.pool);
    };
    type Create = unsafe extern "C" fn(*const c_char, *const c_void, *mut u64) -> c_int;
    type Acquire = unsafe extern "C" fn(u64, *const c_char, u32, u32, i64, *mut u64) -> c_int;
    type Get = unsafe extern "C" fn(u64, *mut Structure) -> c_int;
    type Publish = unsafe extern "C" fn(u64, *const c_void, i64, *mut u64) -> c_int;
    // SAFETY: the types are those of xmem.h.
    let (create, acquire, get, publish) = unsafe {
        let create: Symbol<'_, Create> = library.get("xmem_producer_create")?;
        let acquire: Symbol<'_, Acquire> = library.get("xmem_producer_acquire_video")?;
        let get: Symbol<'_, Get> = library.get("xmem_slot_get")?;
        let publish: Symbol<'_, Publish> = library.get("xmem_slot_publish")?;
        (create, acquire, get, publish)
    };
    let (pool, format) = (CString::new(args.pool.as_str())?, CString::new(FORMAT)?);
    let (mut producer, mut slot, mut info) = (0, 0, Structure::new());
    let null = std::ptr::null;
    // SAFETY: the texts and the variables live, as in the calls below.
    ok(unsafe { create(pool.as_ptr(), null(), &mut producer) })?;
    announce();
    each_line(|| {
        Mark::Acquire.set();
        // SAFETY: as above.
        let acquired = unsafe { acquire(producer, format.as_ptr(), WIDTH, HEIGHT, 0, &mut slot) };
        // SAFETY: as above.
        let got = unsafe { get(slot, &mut info) };
        Mark::Rest.set();
        ok(acquired)?;
        ok(got)?;
        Mark::Push.set();
        // SAFETY: as above.
        let published = unsafe { publish(slot, null(), -1, std::ptr::null_mut()) };
        Mark::Rest.set();
        ok(published)
    })
}

fn publish_by_rust(pool: &str) -> Result<(), Error> {
    let producer = Producer::builder(pool).build()?;
    let layout = VideoLayout::new(FORMAT, WIDTH, HEIGHT)?;
    let size = layout.size()?;
    let mut first = FrameMeta::new(size);
    first.layout_mut().video = Some(layout);
    producer.set_caps("video/x-raw, format=NV12")?;
    announce();
    each_line(|| {
        Mark::Acquire.set();
        let acquired = producer.acquire(size);
        let data = acquired.as_ref().map(|slot| slot.as_ptr());
        std::hint::black_box(data.is_ok());
        Mark::Rest.set();
        let slot = acquired?;
        Mark::Push.set();
        let published = slot.publish(FrameMeta::with_layout(size, first.layout.clone()));
        Mark::Rest.set();
        drop(published?);
        Ok(())
    })
}

/// A structure of xmem.h, which begins with its size.
#[repr(C, align(8))]
struct Structure {
    size: usize,
    rest: [u64; 63],
}

impl Structure {
    fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            rest: [0; 63],
        }
    }
}

pub(crate) fn read(args: &Args) -> Result<(), Error> {
    let library = args.library()?;
    announce();
    // The first line: the producer is ready.
    std::io::stdin().lines().next().transpose()?;
    std::thread::spawn(|| {
        // The next line, or the end: no more frames come.
        let _ = std::io::stdin().lines().next();
        Mark::Rest.set();
        std::process::exit(0);
    });
    let Some(library) = library else {
        return read_by_rust(&args.pool);
    };
    type Open = unsafe extern "C" fn(*const c_char, *const c_void, *mut u64) -> c_int;
    type Next = unsafe extern "C" fn(u64, i64, *mut u64) -> c_int;
    type Get = unsafe extern "C" fn(u64, *mut Structure) -> c_int;
    type Release = unsafe extern "C" fn(u64) -> c_int;
    // SAFETY: the types are those of xmem.h.
    let (open, next, get, release) = unsafe {
        let open: Symbol<'_, Open> = library.get("xmem_consumer_open")?;
        let next: Symbol<'_, Next> = library.get("xmem_consumer_next")?;
        let get: Symbol<'_, Get> = library.get("xmem_frame_get")?;
        let release: Symbol<'_, Release> = library.get("xmem_frame_release")?;
        (open, next, get, release)
    };
    let pool = CString::new(args.pool.as_str())?;
    let (mut consumer, mut frame, mut info) = (0, 0, Structure::new());
    // SAFETY: the text and the variables live, as in the calls below.
    ok(unsafe { open(pool.as_ptr(), std::ptr::null(), &mut consumer) })?;
    loop {
        // SAFETY: as above.
        ok(unsafe { next(consumer, -1, &mut frame) })?;
        Mark::Loop.set();
        // SAFETY: as above.
        ok(unsafe { get(frame, &mut info) })?;
        std::hint::black_box(&info.rest);
        // SAFETY: as above.
        ok(unsafe { release(frame) })?;
    }
}

fn read_by_rust(pool: &str) -> Result<(), Error> {
    for frame in Consumer::builder(pool).follow() {
        Mark::Loop.set();
        let frame = frame?;
        let video = frame.meta().layout.video.ok_or("no video")?;
        std::hint::black_box((video.planes()?.len(), frame.bytes()?.as_ptr()));
    }
    Ok(())
}
