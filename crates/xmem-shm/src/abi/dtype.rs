// SPDX-License-Identifier: MPL-2.0

//! The types of the elements of a frame.

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $size:literal;)*) => {
        /// The type of one element.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DType { $($(#[$doc])* $name = $code,)* }

        impl DType {
            /// Size of one element in bytes.
            pub fn size(self) -> usize { match self { $(Self::$name => $size,)* } }
            pub(super) fn from_code(code: u8) -> Option<Self> { match code { $($code => Some(Self::$name),)* _ => None } }
        }
    };
}

dtypes! {
    /// 8-bit unsigned integer.
    #[default] U8 = 0, 1;
    /// 8-bit signed integer.
    I8 = 1, 1;
    /// 16-bit unsigned integer.
    U16 = 2, 2;
    /// 16-bit signed integer.
    I16 = 3, 2;
    /// 32-bit unsigned integer.
    U32 = 4, 4;
    /// 32-bit signed integer.
    I32 = 5, 4;
    /// 64-bit unsigned integer.
    U64 = 6, 8;
    /// 64-bit signed integer.
    I64 = 7, 8;
    /// IEEE 754 binary16.
    F16 = 8, 2;
    /// bfloat16.
    Bf16 = 9, 2;
    /// IEEE 754 binary32.
    F32 = 10, 4;
    /// IEEE 754 binary64.
    F64 = 11, 8;
    /// A boolean in one byte.
    Bool = 12, 1;
}
