// SPDX-License-Identifier: MPL-2.0

//! Checks what `xmem camera` needs. A host without a desktop has neither, and needs neither.

use std::env;
use std::path::{Path, PathBuf};

use super::finding::Finding;
use super::gstreamer;

pub(super) fn check() -> Vec<Finding> {
    vec![pipewire(), loopback()]
}

fn pipewire() -> Finding {
    const CHECK: &str = "PipeWire";
    let dir = env::var_os("PIPEWIRE_RUNTIME_DIR").or(env::var_os("XDG_RUNTIME_DIR"));
    let runs = dir.is_some_and(|dir| PathBuf::from(dir).join("pipewire-0").exists());
    if !runs {
        let what = "does not run in this session; only `xmem camera` needs it (packages pipewire and wireplumber)";
        return Finding::ok(CHECK, what);
    }
    if gstreamer::output(&["pipewiresink"]).is_none() {
        let advice =
            "For `xmem camera`, install GStreamer's plugin (package gstreamer1.0-pipewire)";
        return Finding::warning(
            CHECK,
            "runs, but GStreamer has no element pipewiresink",
            advice,
        );
    }
    Finding::ok(CHECK, "runs, so `xmem camera` can show pools as cameras")
}

fn loopback() -> Finding {
    const CHECK: &str = "v4l2loopback";
    if Path::new("/sys/module/v4l2loopback").exists() {
        return Finding::ok(CHECK, "is loaded, for `xmem camera --v4l2`");
    }
    let what = "is not loaded; only `xmem camera --v4l2` needs it (package v4l2loopback-dkms)";
    Finding::ok(CHECK, what)
}
