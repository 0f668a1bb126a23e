// SPDX-License-Identifier: MPL-2.0

//! Names the shared library as programs look for it, whoever builds it: cargo, cargo-c or Meson.

fn main() {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libxmem.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
