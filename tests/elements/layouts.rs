// SPDX-License-Identifier: MPL-2.0

//! Compares the structures of `src/cuda/ffi.rs` with libgstcuda: its headers as the C compiler reads them, and the type information
//! of the library.
#![allow(unsafe_code)] // libgstcuda has no bindings, so it is loaded and queried

#[allow(dead_code)]
#[path = "../../src/cuda/ffi.rs"]
mod ffi;

use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use crate::support::not_run;
use gst::glib;

/// The folder of the headers if they are not installed. Their Debian package has many dependencies.
const HEADERS: &str = "XMEM_GST_CUDA_HEADERS";

/// The types of CUDA's headers that the headers need. Debian has no package for them.
const CUDA_H: &str = "
#pragma once
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUtexObject;
typedef int CUresult;
typedef int CUfilter_mode;
typedef int CUmemAllocationProp;
typedef int CUmemAllocationGranularity_flags;
typedef int CUmemPoolProps;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
";

/// Compile-time assertions about C structures and constants.
#[derive(Default)]
struct Claims(String);

impl Claims {
    fn claim(&mut self, expression: &str, value: usize) {
        writeln!(
            self.0,
            "_Static_assert(({expression}) == {value}, \"{value}: {}\");",
            expression.replace('"', "'")
        )
        .unwrap();
    }

    fn sizes<T>(&mut self, name: &str) {
        self.claim(&format!("sizeof({name})"), size_of::<T>());
        self.claim(&format!("_Alignof({name})"), align_of::<T>());
    }

    fn text(&mut self, expression: &str, value: &str) {
        self.claim(&format!("sizeof({expression})"), value.len() + 1);
        self.claim(&format!("__builtin_strcmp({expression}, \"{value}\")"), 0);
    }
}

fn claims() -> String {
    let mut claims = Claims::default();
    claims.sizes::<ffi::GstCudaMemory>("GstCudaMemory");
    for (field, offset) in [
        ("mem", offset_of!(ffi::GstCudaMemory, mem)),
        ("context", offset_of!(ffi::GstCudaMemory, context)),
        ("info", offset_of!(ffi::GstCudaMemory, info)),
    ] {
        claims.claim(&format!("offsetof(GstCudaMemory, {field})"), offset);
    }
    claims.sizes::<ffi::GstCudaBufferPool>("GstCudaBufferPool");
    for (field, offset) in [
        ("parent", offset_of!(ffi::GstCudaBufferPool, parent)),
        ("context", offset_of!(ffi::GstCudaBufferPool, context)),
    ] {
        claims.claim(&format!("offsetof(GstCudaBufferPool, {field})"), offset);
    }
    claims.sizes::<ffi::GstCudaBufferPoolClass>("GstCudaBufferPoolClass");
    claims.sizes::<ffi::CuDevicePtr>("CUdeviceptr");
    claims.sizes::<ffi::CuDevice>("CUdevice");
    claims.claim("GST_MAP_CUDA", ffi::GST_MAP_CUDA as usize);
    for (name, value) in [
        (
            "GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD",
            ffi::GST_CUDA_MEMORY_TRANSFER_NEED_DOWNLOAD,
        ),
        (
            "GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD",
            ffi::GST_CUDA_MEMORY_TRANSFER_NEED_UPLOAD,
        ),
    ] {
        claims.claim(name, value as usize);
    }
    claims.text("GST_CAPS_FEATURE_MEMORY_CUDA_MEMORY", "memory:CUDAMemory");
    claims.text("GST_CUDA_CONTEXT_TYPE", ffi::CONTEXT_TYPE);
    // Fields that were added in 1.24.
    let mut newer = Claims::default();
    newer.claim(
        "GST_CUDA_MEMORY_TRANSFER_NEED_SYNC",
        ffi::GST_CUDA_MEMORY_TRANSFER_NEED_SYNC as usize,
    );
    newer.claim(
        "GST_CUDA_MEMORY_ALLOC_MALLOC",
        usize::try_from(ffi::GST_CUDA_MEMORY_ALLOC_MALLOC).unwrap(),
    );
    newer.sizes::<ffi::GstCudaMemoryAllocMethod>("GstCudaMemoryAllocMethod");
    newer.sizes::<ffi::GstCudaStream>("GstCudaStream");
    let context = std::mem::offset_of!(ffi::GstCudaStream, context);
    newer.claim("offsetof(GstCudaStream, context)", context);
    format!("{}#ifdef XMEM_1_24\n{}#endif\n", claims.0, newer.0)
}

fn pkg_config(args: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("pkg-config").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let words = text.split_ascii_whitespace().map(str::to_owned);
    output.status.success().then(|| words.collect())
}

#[test]
fn c_has_the_same_structures() {
    let Some(mut flags) = pkg_config(&["--cflags", "gstreamer-video-1.0"]) else {
        return not_run("pkg-config does not find gstreamer-video-1.0");
    };
    if let Some(dir) = std::env::var_os(HEADERS) {
        flags.push(format!("-I{}", PathBuf::from(dir).display()));
    } else if let Some(more) = pkg_config(&["--cflags", "gstreamer-cuda-1.0"]) {
        flags.extend(more);
    } else {
        return not_run("the headers of gstreamer-cuda-1.0 are not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("gst/cuda")).unwrap();
    // The last one, of GStreamer, has only functions of CUDA, with many more types.
    for name in ["cuda.h", "cudaGL.h", "gst/cuda/cuda-gst.h"] {
        std::fs::write(dir.path().join(name), CUDA_H).unwrap();
    }
    let source = dir.path().join("layouts.c");
    let text = format!(
        "#include <stddef.h>\n{}{}",
        ["context", "memory", "bufferpool"]
            .map(|part| format!("#include <gst/cuda/gstcuda{part}.h>\n"))
            .concat(),
        claims()
    );
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-fsyntax-only", "-DGST_USE_UNSTABLE_API"]);
    if flags_have_1_24(&flags) {
        command.arg("-DXMEM_1_24");
    }
    let output = command
        .arg("-I")
        .arg(dir.path())
        .args(&flags)
        .arg(&source)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return not_run(&format!("no C compiler: {error}")),
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

/// The headers of 1.24 have one more flag.
fn flags_have_1_24(flags: &[String]) -> bool {
    let dirs = flags.iter().filter_map(|flag| flag.strip_prefix("-I"));
    dirs.into_iter()
        .any(|dir| PathBuf::from(dir).join("gst/cuda/gstcudastream.h").exists())
}

/// This does not need a driver.
#[test]
fn the_library_has_types_of_these_sizes() {
    crate::support::init();
    // SAFETY: GStreamer loads the same library with the plugin nvcodec; its initialisers do nothing but set up statics.
    let library = match unsafe { libloading::Library::new("libgstcuda-1.0.so.0") } {
        // The library must stay loaded, because its types are never unregistered.
        Ok(library) => std::mem::ManuallyDrop::new(library),
        Err(error) => return not_run(&format!("there is no libgstcuda: {error}")),
    };
    // SAFETY: the function is declared as `GType gst_cuda_buffer_pool_get_type (void)`, and GObject is initialised.
    let query = unsafe {
        let get_type: libloading::Symbol<'_, extern "C" fn() -> glib::ffi::GType> =
            library.get(b"gst_cuda_buffer_pool_get_type\0").unwrap();
        let mut query = std::mem::zeroed();
        glib::gobject_ffi::g_type_query(get_type(), &mut query);
        query
    };
    assert_eq!(
        query.instance_size as usize,
        size_of::<ffi::GstCudaBufferPool>()
    );
    assert_eq!(
        query.class_size as usize,
        size_of::<ffi::GstCudaBufferPoolClass>()
    );
}
