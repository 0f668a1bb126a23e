// SPDX-License-Identifier: MPL-2.0

//! An array over the bytes of a frame, and what keeps them there.
#![allow(unsafe_code)] // addresses in shared memory

use std::alloc::{Layout, alloc, dealloc};
use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::{DType, ProcessId, ReadLease};

use crate::base::{self, Base};
use crate::device::{DeviceCopy, DeviceFrame};
use crate::dtype;
use crate::errors::{IntoPyErr, Kind};
use crate::layout::Arrays;
use crate::slot::WriteSlot;

/// What keeps bytes where they are, until the last view of them is gone. Dropping it needs no interpreter.
#[derive(Debug, Clone)]
pub(crate) enum Keeper {
    /// A frame that was received, or the producer's own reference to one that it published.
    Lease(Held),
    /// A slot that is being written, or was.
    Slot(Arc<WriteSlot>),
    /// A copy.
    Private(#[expect(dead_code, reason = "kept, not read")] Arc<PrivateBytes>),
    /// A frame that was received, and lies on a device.
    Device(Arc<DeviceFrame>),
    /// A copy on a device.
    PrivateDevice(Arc<DeviceCopy>),
}

/// A lease, and the process that holds the frame by it. In a forked child it holds nothing.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) lease: Arc<ReadLease>,
    process: ProcessId,
}

impl Held {
    pub(crate) fn new(lease: Arc<ReadLease>) -> Self {
        Self {
            lease,
            process: ProcessId::current(),
        }
    }
}

/// Memory that only this process has.
#[derive(Debug)]
pub(crate) struct PrivateBytes {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory of its own; what is written there is the affair of whoever has the views, as in NumPy.
unsafe impl Send for PrivateBytes {}
// SAFETY: as above.
unsafe impl Sync for PrivateBytes {}

impl PrivateBytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let layout = Layout::for_value(&*bytes);
        Self {
            ptr: Box::into_raw(bytes.into_boxed_slice()).cast(),
            layout,
        }
    }

    /// A copy that begins at a multiple of a power of two. `None`: there is no room for it.
    pub(crate) fn aligned(bytes: &[u8], align: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.len().max(1), align).ok()?;
        // SAFETY: the layout has at least one byte.
        let ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            return None;
        }
        // SAFETY: as many bytes are there, and they are new.
        unsafe { ptr.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Some(Self { ptr, layout })
    }

    pub(crate) fn ptr(&self) -> *const u8 {
        self.ptr.cast_const()
    }
}

impl Drop for PrivateBytes {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: made with this layout, by `aligned` or as the box in `new`, and dropped once.
            unsafe { dealloc(self.ptr, self.layout) };
        }
    }
}

impl Keeper {
    /// Whether views that are made now may write.
    pub(crate) fn is_writable(&self) -> bool {
        match self {
            Self::Lease(_) | Self::Device(_) => false,
            Self::Slot(slot) => slot.is_writing(),
            Self::Private(_) | Self::PrivateDevice(_) => true,
        }
    }

    /// Whether the bytes stay what they are as long as this process wants that. An error in a forked child, whose parent
    /// alone decides when they are written again. Devices say so themselves.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        let process = match self {
            Self::Lease(held) => held.process,
            Self::Slot(slot) => slot.process(),
            Self::Private(_) | Self::Device(_) | Self::PrivateDevice(_) => return Ok(()),
        };
        check_process(process)
    }

    /// The number of the device that the bytes lie on. `None`: in host memory.
    pub(crate) fn device(&self) -> Option<u32> {
        match self {
            Self::Lease(_) | Self::Private(_) => None,
            Self::Slot(slot) => slot.device(),
            Self::Device(frame) => Some(frame.ordinal()),
            Self::PrivateDevice(memory) => Some(memory.device().ordinal()),
        }
    }
}

/// `Forked`, unless this is that process.
pub(crate) fn check_process(process: ProcessId) -> PyResult<()> {
    if process.is_current() {
        return Ok(());
    }
    Err(Kind::Forked.error(
        "this memory is held by the process that this one was forked from, which writes it again when it likes: make a \
         consumer or producer after fork, or copy the frame before",
    ))
}

/// A view that another library has. While one that may write exists, its slot is not published.
#[derive(Debug)]
pub(crate) struct Export {
    keeper: Keeper,
    writable: bool,
}

impl Export {
    /// A view that may write, if its memory may be written now.
    pub(crate) fn new(keeper: &Keeper) -> PyResult<Self> {
        keeper.check_process()?;
        let writable = match keeper {
            Keeper::Slot(slot) => slot.begin_export()?,
            keeper => keeper.is_writable(),
        };
        Ok(Self {
            keeper: keeper.clone(),
            writable,
        })
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the memory could be written by whoever does not care that it may not.
    pub(crate) fn is_mapped_writable(&self) -> bool {
        match &self.keeper {
            Keeper::Lease(held) => held.lease.is_local(),
            Keeper::Device(frame) => frame.is_local(),
            Keeper::Slot(_) | Keeper::Private(_) | Keeper::PrivateDevice(_) => true,
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Keeper::Slot(slot) = &self.keeper {
            slot.end_export();
        }
    }
}

/// Where the elements of an array are.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    pub(crate) keeper: Keeper,
    ptr: *const u8,
    pub(crate) shape: Vec<isize>,
    /// In bytes.
    pub(crate) strides: Vec<isize>,
    pub(crate) dtype: DType,
}

// SAFETY: the pointer is to memory that `keeper` keeps, and that any thread may read.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Array {
    /// An array whose first element is `offset` bytes into `bytes`. `None`: it does not lie inside, or its elements overlap,
    /// so that a copy could need more memory than there is.
    pub(crate) fn new(
        keeper: Keeper,
        (bytes, len): (*const u8, usize),
        offset: usize,
        shape: &[isize],
        strides: &[isize],
        dtype: DType,
    ) -> Option<Self> {
        if shape.len() != strides.len() || shape.iter().any(|size| *size < 0) {
            return None;
        }
        let itemsize = isize::try_from(dtype.size()).ok()?;
        let offset_ = isize::try_from(offset).ok()?;
        let len_ = isize::try_from(len).ok()?;
        // The lowest and the highest byte that an element may have.
        let (mut low, mut high) = (offset_, offset_.checked_add(itemsize)?);
        let mut nbytes = itemsize;
        let is_empty = shape.contains(&0);
        for (size, stride) in shape.iter().zip(strides) {
            // Also what is empty has to have a size that can be told.
            nbytes = nbytes.checked_mul((*size).max(1))?;
            let way = stride.checked_mul((*size - 1).max(0))?;
            if way < 0 {
                low = low.checked_add(way)?;
            } else {
                high = high.checked_add(way)?;
            }
            // An element that is not where its type has to be would be undefined behaviour for others.
            if stride % itemsize != 0 && *size > 1 {
                return None;
            }
        }
        if !is_empty && (low < 0 || high > len_ || nbytes > len_) {
            return None;
        }
        let ptr = bytes.wrapping_add(offset.min(len));
        if !is_empty && ptr.addr() % dtype.size() != 0 {
            return None;
        }
        Some(Self {
            keeper,
            ptr,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            dtype,
        })
    }

    pub(crate) fn ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The number of the device that it lies on. `None`: in host memory.
    pub(crate) fn device(&self) -> Option<u32> {
        self.keeper.device()
    }

    /// What to say to who wants to read bytes on a device with the CPU.
    pub(crate) fn on_device(&self) -> Option<String> {
        self.device().map(|ordinal| {
            format!(
                "this frame lies on the CUDA device {ordinal}, where the CPU cannot read it: use it there \
                 (torch.from_dlpack(frame), cupy.from_dlpack(frame)), or frame.cpu(), a copy in host memory"
            )
        })
    }

    pub(crate) fn itemsize(&self) -> isize {
        self.dtype.size().cast_signed()
    }

    /// Elements of the first dimension, as Python's `len` has it.
    pub(crate) fn len(&self) -> usize {
        self.shape.first().map_or(0, |size| size.cast_unsigned())
    }

    /// Size of the elements in bytes, without what lies between them.
    pub(crate) fn nbytes(&self) -> isize {
        self.shape.iter().product::<isize>() * self.itemsize()
    }

    /// From its lowest byte on how many bytes the elements take, with what lies between them.
    pub(crate) fn span(&self) -> (*const u8, usize) {
        // Strides of nothing were not looked at.
        if self.nbytes() == 0 {
            return (self.ptr, 0);
        }
        let (mut below, mut len) = (0, self.itemsize());
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            let way = stride * (size - 1);
            below += way.min(0);
            len += way.abs();
        }
        (self.ptr.wrapping_offset(below), len.cast_unsigned())
    }

    /// The bytes of that span, in host memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        let (start, len) = self.span();
        // SAFETY: `new` checked that the elements lie inside their memory, which `keeper` keeps.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    fn is_contiguous_in(&self, dims: impl Iterator<Item = usize>) -> bool {
        let mut expected = self.itemsize();
        for dim in dims {
            let (size, stride) = (self.shape[dim], self.strides[dim]);
            if size != 1 && stride != expected {
                return self.nbytes() == 0;
            }
            expected *= size;
        }
        true
    }

    pub(crate) fn is_c_contiguous(&self) -> bool {
        self.is_contiguous_in((0..self.shape.len()).rev())
    }

    pub(crate) fn is_f_contiguous(&self) -> bool {
        self.is_contiguous_in(0..self.shape.len())
    }

    /// Waits until it is written, for who reads it otherwise than in the order of a stream.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        match &self.keeper {
            Keeper::Device(frame) => frame.wait(py),
            Keeper::Slot(slot) => slot.wait(py),
            Keeper::Lease(_) | Keeper::Private(_) | Keeper::PrivateDevice(_) => Ok(()),
        }
    }

    /// The same, and until those views are done that write it, for who copies it.
    pub(crate) fn settle(&self, py: Python<'_>) -> PyResult<()> {
        match &self.keeper {
            Keeper::PrivateDevice(copy) => copy.wait(py),
            _ => self.wait(py),
        }
    }

    /// The same elements in a copy of the span.
    fn over(&self, keeper: Keeper, span: *const u8) -> Self {
        let below = self.ptr.addr() - self.span().0.addr();
        Self {
            keeper,
            ptr: span.wrapping_add(below),
            ..self.clone()
        }
    }

    /// A copy in memory of this process's own, of what is [settled](Self::settle): in host memory without gaps, on a device with them.
    pub(crate) fn to_private(&self) -> PyResult<Self> {
        let (start, len) = (self.span().0.addr() as u64, self.span().1);
        let copy = match &self.keeper {
            Keeper::Device(frame) => frame.copy(start, len),
            Keeper::PrivateDevice(memory) => memory.copy(start, len),
            Keeper::Slot(slot) if slot.device().is_some() => return Err(not_copied()),
            Keeper::Lease(_) | Keeper::Slot(_) | Keeper::Private(_) => {
                return self.to_private_host();
            }
        };
        let copy = Arc::new(DeviceCopy::new(copy.map_err(IntoPyErr::into_py_err)?));
        let span = std::ptr::without_provenance(copy.ptr() as usize);
        Ok(self.over(Keeper::PrivateDevice(copy), span))
    }

    /// In host memory: itself, or a copy without gaps of what is [settled](Self::settle).
    pub(crate) fn to_host(&self) -> PyResult<Self> {
        let (start, len) = (self.span().0.addr() as u64, self.span().1);
        let mut bytes = Vec::new();
        match &self.keeper {
            Keeper::Device(frame) => {
                bytes.resize(len, 0);
                frame.copy_to_host(start, &mut bytes)
            }
            Keeper::PrivateDevice(memory) => {
                bytes.resize(len, 0);
                memory.copy_to_host(start, &mut bytes)
            }
            Keeper::Slot(slot) if slot.device().is_some() => return Err(not_copied()),
            Keeper::Lease(_) | Keeper::Slot(_) | Keeper::Private(_) => return Ok(self.clone()),
        }
        .map_err(IntoPyErr::into_py_err)?;
        let bytes = Arc::new(PrivateBytes::new(bytes));
        let span = bytes.ptr();
        let copy = self.over(Keeper::Private(bytes), span);
        if copy.is_c_contiguous() {
            Ok(copy)
        } else {
            copy.to_private_host()
        }
    }

    fn to_private_host(&self) -> PyResult<Self> {
        let _keeps_the_slot = Export::new(&self.keeper)?;
        let mut bytes = Vec::with_capacity(self.nbytes().cast_unsigned());
        self.append_to(0, self.ptr, &mut bytes);
        let mut strides = vec![0; self.shape.len()];
        let mut stride = self.itemsize();
        for (to, size) in strides.iter_mut().zip(&self.shape).rev() {
            *to = stride;
            stride *= (*size).max(1);
        }
        let bytes = Arc::new(PrivateBytes::new(bytes));
        Ok(Self {
            ptr: bytes.ptr(),
            keeper: Keeper::Private(bytes),
            shape: self.shape.clone(),
            strides,
            dtype: self.dtype,
        })
    }

    fn append_to(&self, dim: usize, at: *const u8, bytes: &mut Vec<u8>) {
        let rest = dim..self.shape.len();
        if self.nbytes() == 0 {
            return;
        }
        if self.is_contiguous_from(dim) {
            let len = rest.map(|dim| self.shape[dim]).product::<isize>() * self.itemsize();
            // SAFETY: inside the array, which `new` checked to lie inside its memory, which `keeper` keeps.
            let row = unsafe { std::slice::from_raw_parts(at, len.cast_unsigned()) };
            bytes.extend_from_slice(row);
            return;
        }
        for index in 0..self.shape[dim] {
            self.append_to(
                dim + 1,
                at.wrapping_offset(self.strides[dim] * index),
                bytes,
            );
        }
    }

    fn is_contiguous_from(&self, dim: usize) -> bool {
        self.is_contiguous_in((dim..self.shape.len()).rev())
    }
}

fn not_copied() -> PyErr {
    Kind::Cuda.error("a frame on a device is not copied where it is written: receive it, or copy the array that writes it")
}

/// One plane of a frame.
#[pyclass(frozen, extends = Base, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Plane(Arc<Arrays>);

impl Plane {
    pub(crate) fn new(array: Array) -> Self {
        Self(Arc::new(Arrays::one(array)))
    }

    pub(crate) fn array(&self) -> &Array {
        &self.0.planes[0]
    }
}

impl<'py> IntoPyObject<'py> for Plane {
    type Target = Self;
    type Output = Bound<'py, Self>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        base::object(py, self.0.clone(), self)
    }
}

#[pymethods]
impl Plane {
    /// Bytes of one element.
    #[getter]
    fn itemsize(&self) -> isize {
        self.array().itemsize()
    }

    /// A copy in memory of this process's own that may be written to; see Frame.copy.
    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        self.array().settle(py)?;
        Ok(Self::new(py.detach(|| self.array().to_private())?))
    }

    /// The plane in host memory; see Frame.cpu.
    fn cpu(&self, py: Python<'_>) -> PyResult<Self> {
        self.array().keeper.check_process()?;
        self.array().settle(py)?;
        Ok(Self::new(py.detach(|| self.array().to_host())?))
    }

    fn __repr__(&self) -> String {
        let array = self.array();
        format!(
            "<xmem.Plane {:?} {}>",
            array.shape,
            dtype::name(array.dtype)
        )
    }
}
