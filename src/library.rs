// SPDX-License-Identifier: MPL-2.0

//! Functions of later versions of GStreamer's libraries. The build cannot link them, so they are looked up at run time.

/// Declares a struct of a library's functions, by their names without `gst_`. Those after `optional` may be missing.
macro_rules! functions {
    ($library:ident {
        $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*
    } optional {
        $($later:ident: fn($($arg:ty),*) -> $res:ty;)*
    }) => {
        #[derive(Debug)]
        pub(super) struct $library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub(super) $later: Option<unsafe extern "C" fn($($arg),*) -> $res>,)*
            /// Keeps the functions loaded.
            _library: libloading::Library,
        }

        impl $library {
            /// `Err`: the name of a function that is missing.
            ///
            /// # Safety
            ///
            /// The types are those of the library's headers.
            unsafe fn of(library: libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: by the caller.
                unsafe {
                    Ok(Self {
                        $($name: {
                            let name = concat!("gst_", stringify!($name));
                            *library.get(name).map_err(|_| name)?
                        },)*
                        $($later: library
                            .get(concat!("gst_", stringify!($later)))
                            .ok()
                            .map(|function| *function),)*
                        _library: library,
                    })
                }
            }
        }
    };
}

pub(crate) use functions;
