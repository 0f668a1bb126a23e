// SPDX-License-Identifier: MPL-2.0

//! A short run of the rig with a random schedule. The output has the seed.

use std::process::Command;

#[test]
fn sixty_faults_harm_no_other_process() {
    let output = Command::new(env!("CARGO_BIN_EXE_xmem-faults"))
        .args(["--faults", "60"])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{complained}");
}
