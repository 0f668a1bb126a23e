// SPDX-License-Identifier: MPL-2.0

//! What each function does at the border to C: arguments in, results out.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::{self, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Duration;

use xmem_core::ProcessId;

use crate::error::{Code, Failure, report};

/// Runs a function of the library. In a forked child it is an error, because the locks and threads are the parent's.
pub(crate) fn call(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    static PROCESS: OnceLock<ProcessId> = OnceLock::new();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        if !PROCESS.get_or_init(ProcessId::current).is_current() {
            let text =
                "handles can't be used after a fork: start libxmem in the child only, or call exec";
            return Err(Failure::new(Code::Forked, text));
        }
        work()
    }));
    match ran {
        Ok(Ok(())) => Code::Ok as c_int,
        Ok(Err(failure)) => report(failure),
        Err(_) => report(Failure::new(
            Code::Internal,
            "this is a bug in libxmem: report it with the text on standard error",
        )),
    }
}

#[cold]
fn no_size(what: &str, size: usize) -> Failure {
    let text = format!("struct_size of {what} is {size}: set it to sizeof");
    Failure::new(Code::Argument, text)
}

#[cold]
pub(crate) fn null(what: &str) -> Failure {
    Failure::new(Code::Argument, format!("{what} is NULL"))
}

/// A text of C. `None`: it is NULL.
pub(crate) unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: xmem.h asks for a text that ends with a zero byte, which the caller keeps during the call.
    (!text.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

/// A text that may have any bytes, such as a path.
pub(crate) unsafe fn given<'a>(text: *const c_char, what: &str) -> Result<&'a OsStr, Failure> {
    // SAFETY: as the caller's.
    unsafe { bytes(text) }.ok_or_else(|| null(what))
}

pub(crate) fn utf8<'a>(text: &'a OsStr, what: &str) -> Result<&'a str, Failure> {
    text.to_str()
        .ok_or_else(|| Failure::new(Code::Argument, format!("{what} is not UTF-8")))
}

/// `Ok(None)`: it is NULL.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    // SAFETY: as the caller's.
    let text = unsafe { bytes(text) };
    text.map(|text| utf8(text, what)).transpose()
}

pub(crate) unsafe fn needed<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: as the caller's.
    utf8(unsafe { given(text, what) }?, what)
}

/// Where a result is written. Functions make it first, so that nothing has happened yet if the pointer is NULL.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn new(pointer: *mut T, what: &str) -> Result<Self, Failure> {
        Self::optional(pointer).ok_or_else(|| null(what))
    }

    /// `None`: the pointer is NULL.
    pub(crate) fn optional(pointer: *mut T) -> Option<Self> {
        (!pointer.is_null()).then_some(Self(pointer))
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: xmem.h asks for a pointer to a variable of this type, and it is not NULL.
        unsafe { self.0.write(value) };
    }
}

/// A structure of C that begins with its size. All of its fields may be 0.
pub(crate) unsafe trait Sized0: Copy {
    /// What a caller means who passes no structure.
    fn defaults() -> Self {
        // SAFETY: the trait says so.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// The size of the caller's structure.
    unsafe fn size(callers: *const Self, what: &str) -> Result<usize, Failure> {
        // SAFETY: xmem.h asks for a structure that begins with its size.
        let size = unsafe { callers.cast::<usize>().read_unaligned() };
        if size < mem::size_of::<usize>() {
            return Err(no_size(what, size));
        }
        Ok(size)
    }

    /// A copy of the caller's, which may be of an older or a newer version. Without one, the defaults.
    unsafe fn read(from: *const Self, what: &str) -> Result<Self, Failure> {
        let mut value = Self::defaults();
        if from.is_null() {
            return Ok(value);
        }
        // SAFETY: it is not NULL.
        let size = unsafe { Self::size(from, what) }?;
        let common = size.min(mem::size_of::<Self>());
        // SAFETY: both have these bytes.
        unsafe {
            from.cast::<u8>()
                .copy_to_nonoverlapping((&raw mut value).cast(), common)
        };
        Ok(value)
    }

    /// Fills the caller's, whose fields are 0 before. One of an older version gets the fields that it has. Whatever can fail comes
    /// before, because the fields stay after a failure.
    #[inline(always)]
    unsafe fn fill(
        to: *mut Self,
        what: &str,
        describe: impl FnOnce(&mut Self),
    ) -> Result<(), Failure> {
        if to.is_null() {
            return Err(null(what));
        }
        // SAFETY: it is not NULL.
        let size = unsafe { Self::size(to, what) }?;
        let has_all = size >= mem::size_of::<Self>() && to.is_aligned();
        let mut own = MaybeUninit::uninit();
        let out = if has_all { to } else { own.as_mut_ptr() };
        // SAFETY: it has room for all fields, which may be 0. The size stays the caller's.
        let out = unsafe {
            out.write_bytes(0, 1);
            out.cast::<usize>().write(size);
            &mut *out
        };
        describe(out);
        if !has_all {
            let common = size.min(mem::size_of::<Self>());
            // SAFETY: both have these bytes.
            unsafe {
                (&raw const *out)
                    .cast::<u8>()
                    .copy_to_nonoverlapping(to.cast(), common)
            };
        }
        Ok(())
    }
}

/// A time limit in nanoseconds; below 0: none.
pub(crate) fn limit(nanoseconds: i64) -> Option<Duration> {
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}

/// A time limit of which 0 is the default: none.
pub(crate) fn limit_or_none(nanoseconds: i64) -> Option<Duration> {
    limit(nanoseconds).filter(|it| !it.is_zero())
}
