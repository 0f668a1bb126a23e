// SPDX-License-Identifier: MPL-2.0

//! A short soak test. It is too short to find growth; it finds resources that are left at the end.

use std::process::Command;

#[test]
fn a_short_soak_leaves_nothing_behind() {
    let output = Command::new(env!("CARGO_BIN_EXE_xmem-faults"))
        .args(["soak", "--seconds", "15", "--every", "1"])
        .args(["--frame-bytes", "20000"])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{complained}");
}
