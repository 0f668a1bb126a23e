// SPDX-License-Identifier: MPL-2.0

//! One pool between processes with different versions of GStreamer: this machine's, and that of another Debian, which `cargo xtask
//! test --compat` installs. `XMEM_COMPAT_ROOT` is its path.

mod support;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use support::{process::*, *};

/// The system in which a process runs.
#[derive(Debug, Clone, Copy)]
enum Place {
    Here,
    There,
}

impl Place {
    /// `gst-launch-1.0` with the same plugin in both systems. They share the test's directory.
    fn launch(self, pools: &Pools, name: &str, pipeline: &str) -> Launch {
        let mut command = self.command(pools, "gst-launch-1.0");
        command.args(pipeline.split_ascii_whitespace());
        Launch::start(pools, name, &mut command)
    }

    fn command(self, pools: &Pools, program: &str) -> Command {
        let Self::There = self else {
            return command(pools, program);
        };
        let root = std::env::var_os("XMEM_COMPAT_ROOT")
            .expect("no XMEM_COMPAT_ROOT: `cargo xtask test --compat` runs this test");
        let enter = Path::new(env!("CARGO_MANIFEST_DIR")).join("xtask/src/compat/enter.sh");
        let mut command = Command::new("sh");
        command
            .arg(enter)
            .arg("ro")
            .arg(root)
            .arg(pools.path())
            .args(["--", program])
            .env("GST_PLUGIN_PATH_1_0", pools.path())
            .stdin(Stdio::null());
        command
    }

    fn version(self, pools: &Pools) -> String {
        let output = self
            .command(pools, "gst-launch-1.0")
            .arg("--version")
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

/// Both sides write the frames of the pool to a file.
fn goes_through(from: Place, to: Place) {
    let pools = prepared();
    let library = "libgstxmem.so";
    fs::copy(target_dir().join(library), pools.file(library)).unwrap();
    assert_ne!(
        from.version(&pools),
        to.version(&pools),
        "two versions of GStreamer"
    );
    for (name, source) in [
        (
            "planes",
            "videotestsrc num-buffers=60 pattern=ball \
             ! video/x-raw,format=I420,width=322,height=242,framerate=30/1",
        ),
        (
            "large",
            "videotestsrc num-buffers=30 pattern=smpte \
             ! video/x-raw,format=NV12,width=1920,height=1080,framerate=30/1",
        ),
        (
            "sound",
            "audiotestsrc num-buffers=60 wave=white-noise \
             ! audio/x-raw,format=F32LE,layout=interleaved,channels=2,rate=48000",
        ),
        (
            "encoded",
            "videotestsrc num-buffers=60 ! video/x-raw,width=320,height=240 ! jpegenc",
        ),
    ] {
        let file = |side: &str| pools.file(&format!("{name}.{side}"));
        let pool = pools.pool(name);
        let mut producer = from.launch(
            &pools,
            &format!("{name}-producer"),
            &format!(
                "{source} ! tee name=t ! queue ! filesink location={} \
                 t. ! queue ! xmemsink pool={pool} {LOSSLESS}",
                file("sent").display()
            ),
        );
        let mut consumer = to.launch(
            &pools,
            &format!("{name}-consumer"),
            &format!(
                "xmemsrc pool={pool} ! filesink location={}",
                file("received").display()
            ),
        );
        producer.succeeds();
        consumer.succeeds();
        let (sent, received) = (
            fs::read(file("sent")).unwrap(),
            fs::read(file("received")).unwrap(),
        );
        assert!(!sent.is_empty(), "{name}: {}", producer.log());
        assert!(
            sent == received,
            "{name}: {} bytes went in, {} came out, not the same",
            sent.len(),
            received.len()
        );
    }
}

/// GStreamer 1.22 gives this format other planes than later versions do.
#[test]
#[ignore = "cargo xtask test --compat runs it"]
fn a_format_that_both_place_differently_is_an_error_with_both_versions() {
    let pools = prepared();
    let library = "libgstxmem.so";
    fs::copy(target_dir().join(library), pools.file(library)).unwrap();
    let (here, there) = (Place::Here.version(&pools), Place::There.version(&pools));
    let pool = pools.pool("p");
    let _producer = Place::There.launch(
        &pools,
        "producer",
        &format!(
            "videotestsrc is-live=true ! video/x-raw,format=NV12_16L32S,width=320,height=240 ! xmemsink pool={pool}"
        ),
    );
    let consumer = format!("xmemsrc pool={pool} num-buffers=3 ! fakesink");
    let mut consumer = Place::Here.launch(&pools, "consumer", &consumer);
    let is_read = consumer.wait().success();
    // The first line is that of the tool.
    let number = |version: &str| {
        let line = version.lines().find(|line| line.starts_with("GStreamer "));
        line.unwrap()["GStreamer ".len()..].to_owned()
    };
    let log = consumer.log();
    assert_eq!(is_read, !here.contains("1.22."), "{log}");
    for version in [here, there] {
        assert!(is_read || log.contains(&number(&version)), "{log}");
    }
}

#[test]
#[ignore = "cargo xtask test --compat runs it"]
fn the_newer_gstreamer_reads_frames_of_the_older() {
    goes_through(Place::Here, Place::There);
}

#[test]
#[ignore = "cargo xtask test --compat runs it"]
fn the_older_gstreamer_reads_frames_of_the_newer() {
    goes_through(Place::There, Place::Here);
}
