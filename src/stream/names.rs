// SPDX-License-Identifier: MPL-2.0

//! The limit for names of other processes that GLib keeps.

use std::sync::atomic::{AtomicU32, Ordering};

use gst::glib;

/// A quark for a string of another process. GLib keeps it until the process ends, so the number is limited. `None`: it is not
/// valid, or the limit is reached.
pub(crate) fn to_quark(text: &str) -> Option<glib::Quark> {
    const MAX_LEN: usize = 256;
    const MAX_NEW: u32 = 10_000;
    static NEW: AtomicU32 = AtomicU32::new(0);
    if text.is_empty() || text.len() > MAX_LEN || text.contains('\0') {
        return None;
    }
    glib::Quark::try_from_str(text).or_else(|| {
        let may = NEW.fetch_add(1, Ordering::Relaxed) < MAX_NEW;
        may.then(|| glib::Quark::from_str(text))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Runs an ignored test in a process of its own. With `cargo test`, all tests are threads of one process, and the others would
    /// count too and fail after the limit.
    pub(in crate::stream) fn assert_passes_alone(module: &str, test: &str) {
        let (_, module) = module.split_once("::").unwrap();
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", &format!("{module}::{test}")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}{errors}"
        );
    }

    #[test]
    fn strings_that_are_kept_for_good_are_counted() {
        assert_passes_alone(module_path!(), "all_strings_that_may_be_kept_are_used_up");
    }

    #[test]
    #[ignore = "started by the one above"]
    fn all_strings_that_may_be_kept_are_used_up() {
        gst::init().unwrap();
        let quarks = (0..20_000)
            .filter_map(|n| to_quark(&format!("made up {n}")))
            .count();
        assert_eq!(quarks, 10_000);
        assert_eq!(to_quark("made up 5").unwrap().as_str(), "made up 5");
        for bad in ["", "a\0b", &"x".repeat(257)] {
            assert_eq!(to_quark(bad), None);
        }
    }
}
