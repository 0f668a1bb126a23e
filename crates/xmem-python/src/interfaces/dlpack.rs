// SPDX-License-Identifier: MPL-2.0

//! DLPack: arrays for PyTorch, CuPy, JAX and others. <https://dmlc.github.io/dlpack>, version 1.1.
#![allow(unsafe_code)] // its C structures

use std::ffi::{CStr, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::array::Array;
use crate::device::Use;
use crate::errors::IntoPyResult;
use crate::keeper::Export;
use crate::{device as devices, dtype};

/// The newest supported version.
const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };
const CPU: i32 = 1;
const CUDA: i32 = 2;
const FLAG_READ_ONLY: u64 = 1 << 0;
const FLAG_IS_COPIED: u64 = 1 << 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct DLPackVersion {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct DLDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
struct DLDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: DLDevice,
    ndim: i32,
    dtype: DLDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

type Deleter<T> = Option<unsafe extern "C" fn(*mut T)>;

/// DLManagedTensor, from before version 1.
#[repr(C)]
struct Legacy {
    dl_tensor: DLTensor,
    manager_ctx: *mut c_void,
    deleter: Deleter<Self>,
}

/// DLManagedTensorVersioned.
#[repr(C)]
struct Versioned {
    version: DLPackVersion,
    manager_ctx: *mut c_void,
    deleter: Deleter<Self>,
    flags: u64,
    dl_tensor: DLTensor,
}

/// The memory that a tensor refers to, and the view that keeps its bytes.
struct Context {
    shape: Vec<i64>,
    /// In elements.
    strides: Vec<i64>,
    export: Export,
}

trait Managed: Sized {
    const NAME: &'static CStr;
    fn new(tensor: DLTensor, context: *mut c_void, flags: u64) -> Self;
    fn context(&self) -> *mut c_void;
}

impl Managed for Legacy {
    const NAME: &'static CStr = c"dltensor";

    fn new(dl_tensor: DLTensor, manager_ctx: *mut c_void, _flags: u64) -> Self {
        Self {
            dl_tensor,
            manager_ctx,
            deleter: Some(delete::<Self>),
        }
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(dl_tensor: DLTensor, manager_ctx: *mut c_void, flags: u64) -> Self {
        Self {
            version: VERSION,
            manager_ctx,
            deleter: Some(delete::<Self>),
            flags,
            dl_tensor,
        }
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }
}

/// Called by the owner of the tensor, on any thread, with or without the interpreter.
unsafe extern "C" fn delete<T: Managed>(managed: *mut T) {
    // SAFETY: `capsule` made it, and DLPack requires that the deleter is called once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context().cast::<Context>()));
    }
}

/// Called when a capsule is freed. An importer that takes the tensor renames the capsule.
unsafe extern "C" fn destroy<T: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: `capsule` made the capsule, which holds a tensor of this type while it has this name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, T::NAME.as_ptr()) == 0 {
            return;
        }
        delete(ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr()).cast::<T>());
    }
}

fn capsule<T: Managed>(
    py: Python<'_>,
    tensor: DLTensor,
    context: Box<Context>,
    flags: u64,
) -> PyResult<Py<PyAny>> {
    let context = Box::into_raw(context).cast();
    let managed = Box::into_raw(Box::new(T::new(tensor, context, flags)));
    // SAFETY: the name is static, and `destroy` has the same type.
    let capsule =
        unsafe { ffi::PyCapsule_New(managed.cast(), T::NAME.as_ptr(), Some(destroy::<T>)) };
    // SAFETY: a new reference, or null with an exception.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if capsule.is_err() {
        // SAFETY: no capsule owns it.
        unsafe { delete(managed) };
    }
    Ok(capsule?.unbind())
}

/// The DLPack type and the number of the device.
pub(crate) fn device(array: &Array) -> (i32, i32) {
    device_of(array.device())
}

pub(crate) fn device_of(ordinal: Option<u32>) -> (i32, i32) {
    match ordinal {
        Some(ordinal) => (CUDA, ordinal.cast_signed()),
        None => (CPU, 0),
    }
}

/// Makes the importer's stream wait until the bytes are written, and the end of their lease wait for that stream.
fn give(py: Python<'_>, array: &Array, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    if array.device().is_none() {
        return if stream.is_none() {
            Ok(())
        } else {
            Err(PyBufferError::new_err(
                "this frame is in host memory, which has no streams: stream must be None",
            ))
        };
    }
    let to = Use::of_dlpack(stream)?;
    let keeper = &array.keeper;
    // Without the interpreter, because the driver may wait for a thread that needs it.
    py.detach(|| keeper.give_to(to)).into_py_result()
}

/// A capsule for `from_dlpack`, with the arguments of `__dlpack__`.
pub(crate) fn export(
    py: Python<'_>,
    array: &Array,
    stream: Option<Bound<'_, PyAny>>,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Py<PyAny>> {
    let here = device(array);
    let wanted = dl_device.unwrap_or(here);
    let copied = if wanted == here && copy != Some(true) {
        None
    } else if wanted == here {
        array.keeper.settle(py)?;
        Some(py.detach(|| array.to_private()))
    } else if wanted == (CPU, 0) && copy != Some(false) {
        array.keeper.settle(py)?;
        Some(py.detach(|| array.to_host()))
    } else {
        return Err(PyBufferError::new_err(format!(
            "this frame is on {}, but you requested another device: move it afterwards, as in \
             torch.from_dlpack(frame).to(device)",
            devices::name(array.device())
        )));
    };
    let copied = copied.transpose()?;
    let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
    let array = copied.as_ref().unwrap_or(array);
    let device = device(array);
    // Before `give`: from here on the slot is not given back while the view exists.
    let export = Export::new(&array.keeper)?;
    if wanted == here {
        give(py, array, stream.as_ref())?;
    }
    let itemsize = array.itemsize();
    let context = Box::new(Context {
        shape: array.shape.iter().map(|size| *size as i64).collect(),
        strides: array
            .strides
            .iter()
            .map(|stride| (stride / itemsize) as i64)
            .collect(),
        export,
    });
    let tensor = DLTensor {
        data: array.ptr().cast_mut().cast(),
        device: DLDevice {
            device_type: device.0,
            device_id: device.1,
        },
        ndim: context.shape.len() as i32,
        dtype: DLDataType {
            code: dtype::of(array.dtype).dlpack,
            bits: (8 * array.dtype.size()) as u8,
            lanes: 1,
        },
        shape: context.shape.as_ptr().cast_mut(),
        strides: context.strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let mut flags = 0;
    if !context.export.is_writable() {
        flags |= FLAG_READ_ONLY;
    }
    if copied.is_some() {
        flags |= FLAG_IS_COPIED;
    }
    if is_versioned {
        capsule::<Versioned>(py, tensor, context, flags)
    } else if !context.export.is_writable() && context.export.is_mapped_writable() {
        Err(PyBufferError::new_err(
            "this library requests a DLPack capsule from before version 1, which cannot mark a published frame as read-only: \
             use a newer version of the library, or frame.copy()",
        ))
    } else {
        // This version cannot express "read-only". An error would exclude many libraries. Host memory is safe, because it is
        // mapped read-only. On a device that depends on the driver: if it maps the memory writable, a write changes the frame.
        capsule::<Legacy>(py, tensor, context, flags)
    }
}

const _: () = {
    // The sizes in dlpack.h on 64-bit platforms.
    assert!(size_of::<DLTensor>() == 48);
    assert!(size_of::<Legacy>() == 64);
    assert!(size_of::<Versioned>() == 80);
};
