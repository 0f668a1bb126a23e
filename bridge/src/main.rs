// SPDX-License-Identifier: MPL-2.0

//! `xmem-bridge`: pools of frames on other hosts.

use std::process::ExitCode;

fn main() -> ExitCode {
    xmem_bridge::main()
}
