// SPDX-License-Identifier: MPL-2.0

//! Common code of exported functions. The compiler compares each signature with cudarc's. Each call is counted, and fails where
//! CUDA allows no calls.
//!
//! The functions get raw pointers from C. As in the driver, the caller promises that a pointer is null or valid. The helpers check
//! for null and rely on this promise.

use std::cell::Cell;

use cudarc::driver::sys::CUresult;

use crate::{settings, trace};

/// The result of an exported function: `Ok` is CUDA_SUCCESS.
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
        // Compile-time check: the parameters are those of cudarc's bindings.
        const _: unsafe fn($($type),*) -> cudarc::driver::sys::CUresult = cudarc::driver::sys::$name;
    )* };
}

/// Counts a call, checks whether calls are allowed at present, and executes it.
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

/// Runs a program's host function, which must not call the driver.
pub(crate) fn in_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

/// Writes a result to the caller's pointer.
pub(crate) fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the pointer is not null, so it is valid for a T, as the caller of the C function promised.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// As [`put`], for optional results.
pub(crate) fn put_if_wanted<T>(to: *mut T, value: T) {
    let _ = put(to, value);
}

/// Reads a value that the caller passes by pointer.
pub(crate) fn get<T: Copy>(from: *const T) -> Outcome<T> {
    if from.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the pointer is not null, so it is valid for a T, as the caller of the C function promised.
    Ok(unsafe { from.read_unaligned() })
}

/// Reads a C string.
pub(crate) fn text(from: *const std::ffi::c_char) -> Outcome<String> {
    if from.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the pointer is not null, so it is a string that ends in 0, as the caller of the C function promised.
    Ok(unsafe { std::ffi::CStr::from_ptr(from) }
        .to_string_lossy()
        .into_owned())
}
