// SPDX-License-Identifier: MPL-2.0

//! The common part of exported functions: the compiler compares each signature with cudarc's, each call is counted, and
//! refused where CUDA refuses everything.
//!
//! The functions get raw pointers from C. As in the driver, the caller promises that a pointer is null or valid; the
//! helpers here check for null and are otherwise as safe as that promise.

use std::cell::Cell;

use cudarc::driver::sys::CUresult;

use crate::{settings, trace};

/// How an exported function ends, without CUDA_SUCCESS.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Defines exported functions of the driver. The body returns an [`Outcome`].
macro_rules! api {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> cudarc::driver::sys::CUresult {
            static COUNT: crate::trace::Count = crate::trace::Count::new(stringify!($name));
            crate::entry::call(&COUNT, || $body)
        }
        // The same parameters as in cudarc's bindings, or this does not compile.
        const _: unsafe fn($($type),*) -> cudarc::driver::sys::CUresult = cudarc::driver::sys::$name;
    )* };
}

/// Count a call, look whether calls are allowed here, and do it.
pub(crate) fn call(count: &'static trace::Count, body: impl FnOnce() -> Outcome) -> CUresult {
    let name = count.name();
    if settings::ended() {
        return CUresult::CUDA_ERROR_DEINITIALIZED;
    }
    if settings::forked() {
        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
    }
    count.add();
    if IN_HOST_FUNCTION.get() {
        trace::violation(&format!("{name} was called from a host function"));
        return CUresult::CUDA_ERROR_NOT_PERMITTED;
    }
    if name != "cuInit"
        && !name.starts_with("cuGetError")
        && name != "cuDriverGetVersion"
        && !settings::initialized()
    {
        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
    }
    if let Err(error) = crate::capture::check(name) {
        return error;
    }
    match body() {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(error) => error,
    }
}

/// Run a program's host function: it may not call the driver.
pub(crate) fn in_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

/// Write a result where the caller wants it.
pub(crate) fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, and so valid for a T, as the caller of the C function promised.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// As [`put`], for results that may be left out.
pub(crate) fn put_if_wanted<T>(to: *mut T, value: T) {
    let _ = put(to, value);
}

/// Read what the caller passes by address.
pub(crate) fn get<T: Copy>(from: *const T) -> Outcome<T> {
    if from.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, and so valid for a T, as the caller of the C function promised.
    Ok(unsafe { from.read_unaligned() })
}

/// Read a C string.
pub(crate) fn text(from: *const std::ffi::c_char) -> Outcome<String> {
    if from.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, and so a string that ends in 0, as the caller of the C function promised.
    Ok(unsafe { std::ffi::CStr::from_ptr(from) }
        .to_string_lossy()
        .into_owned())
}
