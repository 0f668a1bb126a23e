// SPDX-License-Identifier: MPL-2.0

//! Buffers by number on devices.

use crate::lab::{Lab, run};

#[test]
fn buffers_go_from_host_to_device_to_device_and_back() {
    for quirk in ["", "no-host-register", "no-read-only-register", "peers"] {
        let lab = Lab::new().with("QUIRKS", quirk);
        let mut owner = lab.start("own-buffers");
        let index = owner.reply();
        let mut readers = [lab.start("read-buffers"), lab.start("edit-buffers")];
        for reader in &mut readers {
            assert_eq!(reader.reply(), "ready");
            run(reader, &index, "0");
        }
        if quirk.is_empty() {
            // Four copies, from and to buffers in two regions.
            lab.assert_calls(&owner, &["cuMemHostRegister_v2"], 2);
        }
        run(&mut owner, "end", "ends");
        lab.assert_allowed();
    }
}
