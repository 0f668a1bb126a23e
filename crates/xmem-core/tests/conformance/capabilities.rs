// SPDX-License-Identifier: MPL-2.0

//! What consumers cannot do to a region.
#![allow(unsafe_code)] // one mprotect that must fail

use xmem_core::Backing;

use super::*;

crate::conformance! {
    capabilities_hold
}

fn capabilities_hold(backing: Backing) {
    // Named segments cannot be sealed.
    let is_sealed = backing == Backing::Memfd;
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 4096);
    let frame = receive(&mut consumer);
    let map = map_of(frame.bytes().unwrap().as_ptr()).unwrap();
    assert_eq!(map.perms, "r--s", "a consumer cannot write");
    // As root, the mapped descriptor can be opened again. `hostile` takes it from the socket.
    let path = format!("/proc/self/map_files/{:x}-{:x}", map.start, map.end);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .ok();
    if is_sealed {
        // SAFETY: the range is the mapping, and the call is refused.
        let refused = unsafe {
            rustix::mm::mprotect(
                map.start as *mut _,
                map.end - map.start,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )
        };
        assert!(refused.is_err(), "a mapping can be made writable");
        if let Some(file) = &file {
            use std::os::unix::fs::FileExt;
            assert!(file.write_at(b"x", 0).is_err(), "its memory can be written");
        }
    }
    if is_sealed && let Some(file) = &file {
        assert!(file.set_len(0).is_err(), "its memory can be truncated");
        assert!(file.set_len(1 << 30).is_err(), "its memory can be extended");
    }
    assert_frame(&frame, 0, 4096);
}
