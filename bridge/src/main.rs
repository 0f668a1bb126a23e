// SPDX-License-Identifier: MPL-2.0

//! The program `xmem-bridge`.

use std::process::ExitCode;

fn main() -> ExitCode {
    xmem_bridge::main()
}
