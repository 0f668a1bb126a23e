// SPDX-License-Identifier: MPL-2.0

//! Functions of GStreamer's libraries that the build cannot ask for, because they are of later versions. They are looked up at run
//! time.

/// Makes a struct of a library's functions, by their names without `gst_`. Those behind `optional` may be missing.
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
            /// Keeps the functions.
            _library: libloading::Library,
        }

        impl $library {
            /// `Err`: the name of a function that is missing.
            ///
            /// # Safety
            ///
            /// `library` is the one whose headers have these types.
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
