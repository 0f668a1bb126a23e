// SPDX-License-Identifier: MPL-2.0

fn main() {
    // A debug build does not tell its commit. Otherwise each commit, and each change of a file of the repository, would build the
    // plugin and all its tests again.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        println!("cargo:rerun-if-changed=build.rs");
        println!("cargo:rustc-env=COMMIT_ID=debug");
        println!("cargo:rustc-env=BUILD_REL_DATE=2000-01-01");
    } else {
        gst_plugin_version_helper::info();
    }
}
