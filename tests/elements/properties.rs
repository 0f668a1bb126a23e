// SPDX-License-Identifier: MPL-2.0

//! Names, defaults and classes that applications depend on.

use crate::support::*;
use gst::prelude::*;

fn make(factory: &str) -> gst::Element {
    init();
    gst::ElementFactory::make(factory).build().unwrap()
}

/// The properties that an element adds to its base class.
fn own_properties(element: &gst::Element) -> Vec<String> {
    let mut names: Vec<_> = element
        .list_properties()
        .iter()
        .filter(|pspec| pspec.owner_type() == element.type_())
        .map(|pspec| {
            assert!(!pspec.nick().is_empty());
            assert!(
                pspec.blurb().is_some_and(|blurb| !blurb.is_empty()),
                "{} has a blurb",
                pspec.name()
            );
            pspec.name().to_owned()
        })
        .collect();
    names.sort();
    names
}

/// Properties as text, as `gst-launch-1.0` prints them.
fn text(element: &gst::Element, name: &str) -> String {
    let value = element.property_value(name);
    value
        .get::<Option<String>>()
        .ok()
        .flatten()
        .unwrap_or_else(|| value.serialize().unwrap().to_string())
}

#[test]
fn of_the_sink() {
    let sink = make("xmemsink");
    let defaults = [
        ("allow-uids", ""),
        ("backing", "memfd"),
        ("copy", "allow"),
        ("cuda-device-id", "-1"),
        ("cuda-ipc-mode", "auto"),
        ("delivery", "live"),
        ("dmabuf", "forbid"),
        ("history", "0"),
        ("lossless-timeout", "0"),
        ("max-bytes", "0"),
        ("max-consumers", "256"),
        ("max-held", "8"),
        ("max-slots", "256"),
        ("meta-room", "512"),
        ("min-slots", "0"),
        ("num-clients", "0"),
        ("pace", "auto"),
        ("pool", "default"),
        ("release-timeout", "5000000000"),
        ("send-eos", "true"),
        ("socket-group", ""),
        ("socket-mode", "0600"),
        ("wait-for-connection", "false"),
    ];
    for (name, default) in defaults {
        assert_eq!(text(&sink, name), default, "{name}");
    }
    let mut names: Vec<_> = defaults
        .map(|(name, _)| name)
        .into_iter()
        .chain(["stats"])
        .collect();
    names.sort_unstable();
    assert_eq!(own_properties(&sink), names);
    for (name, value) in [
        ("allow-uids", "1000,1001"),
        ("backing", "posix-shm"),
        ("copy", "forbid"),
        ("cuda-device-id", "1"),
        ("cuda-ipc-mode", "vmm"),
        ("cuda-ipc-mode", "legacy"),
        ("delivery", "lossless"),
        ("dmabuf", "allow"),
        ("history", "3"),
        ("lossless-timeout", "1000"),
        ("max-bytes", "1000"),
        ("max-consumers", "4"),
        ("max-held", "5"),
        ("max-slots", "6"),
        ("meta-room", "64"),
        ("min-slots", "7"),
        ("pace", "never"),
        ("pool", "cam0"),
        ("release-timeout", "1000"),
        ("send-eos", "false"),
        ("socket-group", "video"),
        ("socket-mode", "0660"),
        ("wait-for-connection", "true"),
    ] {
        sink.set_property_from_str(name, value);
        assert_eq!(text(&sink, name), value, "{name}");
    }
    // The last sample would keep a slot, so it is disabled.
    assert!(!sink.property::<bool>("enable-last-sample"));
    assert!(sink.property::<bool>("sync"));
}

#[test]
fn of_the_source() {
    let src = make("xmemsrc");
    let defaults = [
        ("busy-poll", "0"),
        ("connection-timeout", "0"),
        ("cuda-device-id", "-1"),
        ("cuda-wait", "device"),
        ("dmabuf", "false"),
        ("download", "false"),
        ("max-held", "8"),
        ("max-rate", "0/1"),
        ("on-eos", "end"),
        ("on-producer-lost", "wait"),
        ("newest-only", "false"),
        ("over-budget", "copy"),
        ("pool", "default"),
        ("processing-deadline", "20000000"),
        ("start-from", "next"),
        ("timestamp-mode", "clock"),
        ("wait-for-keyframe", "true"),
    ];
    for (name, default) in defaults {
        assert_eq!(text(&src, name), default, "{name}");
    }
    assert_eq!(src.property::<Option<String>>("client-name"), None);
    let mut names: Vec<_> = defaults
        .map(|(name, _)| name)
        .into_iter()
        .chain(["client-name", "stats"])
        .collect();
    names.sort_unstable();
    assert_eq!(own_properties(&src), names);
    for (name, value) in [
        ("busy-poll", "1000"),
        ("client-name", "viewer"),
        ("connection-timeout", "2000"),
        ("cuda-device-id", "2"),
        ("dmabuf", "true"),
        ("download", "true"),
        ("max-held", "3"),
        ("max-rate", "5/2"),
        ("on-eos", "wait"),
        ("on-producer-lost", "error"),
        ("newest-only", "true"),
        ("over-budget", "drop"),
        ("pool", "cam0"),
        ("processing-deadline", "0"),
        ("start-from", "oldest"),
        ("timestamp-mode", "arrival"),
        ("timestamp-mode", "passthrough"),
        ("wait-for-keyframe", "false"),
    ] {
        src.set_property_from_str(name, value);
        assert_eq!(text(&src, name), value, "{name}");
    }
}

/// Reading a property returns the setting in effect, not a refused one.
#[test]
fn settings_of_a_running_element_do_not_change() {
    let pools = Pools::new();
    let caps = "video/x-raw,format=GRAY8,width=8,height=8,framerate=30/1";
    let sender = pools.sender(&caps.parse().unwrap(), "");
    let receiver = pools.receiver("").connected();
    let (sink, src) = (sender.sink(), receiver.src());
    let mut settings = Vec::new();
    for (element, name, value) in [
        (&sink, "pool", "other"),
        (&sink, "socket-mode", "0666"),
        (&sink, "delivery", "lossless"),
        (&src, "pool", "other"),
        (&src, "max-held", "3"),
    ] {
        let before = text(element, name);
        element.set_property_from_str(name, value);
        assert_eq!(text(element, name), before, "{name}");
        settings.push((element, name, value));
    }
    for (element, name, value) in [(&sink, "pace", "never"), (&src, "processing-deadline", "7")] {
        element.set_property_from_str(name, value);
        assert_eq!(text(element, name), value);
    }
    receiver.pipeline.stop();
    sender.pipeline.stop();
    for (element, name, value) in settings {
        element.set_property_from_str(name, value);
        assert_eq!(text(element, name), value);
    }
}

#[test]
fn an_invalid_socket_mode_is_an_error_at_the_start() {
    let pools = Pools::new();
    for bad in ["foo", "", "999", "0o666", "7777", "-1", "+600"] {
        let pipeline = pools.launch("videotestsrc ! xmemsink name=sink pool=POOL");
        let sink = pipeline.by_name("sink");
        sink.set_property("socket-mode", bad);
        assert!(sink.set_state(gst::State::Paused).is_err(), "{bad:?}");
        sink.set_state(gst::State::Null).unwrap();
        sink.set_property("socket-mode", None::<&str>);
        assert_eq!(sink.property::<String>("socket-mode"), "0600");
    }
}

#[test]
fn invalid_access_settings_are_errors_at_the_start() {
    let pools = Pools::new();
    for (settings, words) in [
        ("allow-uids=alice", &["allow-uids", "1000,1001"][..]),
        ("allow-uids=1000,", &["allow-uids", "1000,1001"]),
        ("allow-uids=4294967295", &["allow-uids", "not a user"]),
        (
            "allow-uids=1000 socket-mode=0666",
            &["allow-uids", "socket-mode 0666", "0600"],
        ),
        ("socket-group=0", &["socket-group", "socket-mode", "0660"]),
        (
            "socket-group=nosuchgroup socket-mode=0660",
            &["socket-group", "nosuchgroup", "/etc/group"],
        ),
        (
            "backing=posix-shm socket-mode=0660",
            &["posix-shm", "one user only", "memfd", "0600"],
        ),
        (
            "backing=posix-shm allow-uids=1000",
            &["posix-shm", "one user only", "allow-uids empty"],
        ),
    ] {
        let pipeline = pools.launch(&format!("videotestsrc ! xmemsink pool=POOL {settings}"));
        assert!(
            pipeline.0.set_state(gst::State::Paused).is_err(),
            "{settings}"
        );
        let (error, text) = pipeline.wait_error();
        assert!(error.matches(gst::ResourceError::Settings), "{text}");
        for word in words {
            assert!(text.contains(word), "{settings}: no {word:?} in: {text}");
        }
    }
}

#[test]
fn access_settings_reach_the_socket() {
    use std::os::unix::fs::MetadataExt;
    let pools = Pools::new();
    // A group that this process may assign to a file: its own.
    let group = std::fs::metadata("/proc/self").unwrap().gid();
    for (settings, mode) in [
        (String::new(), 0o600),
        ("socket-group=\"\" allow-uids=\"\"".to_owned(), 0o600),
        ("allow-uids=1000,1001".to_owned(), 0o622),
        (format!("socket-group={group} socket-mode=0660"), 0o660),
    ] {
        let pipeline = pools.launch(&format!("videotestsrc ! xmemsink pool=POOL {settings}"));
        pipeline.0.set_state(gst::State::Ready).unwrap();
        let socket = std::fs::metadata(pools.pool("p")).unwrap();
        assert_eq!(socket.mode() & 0o777, mode, "{settings}");
        assert_eq!(socket.gid(), group, "{settings}");
    }
}

#[test]
fn the_socket_has_the_mode() {
    use std::os::unix::fs::PermissionsExt;
    let pools = Pools::new();
    let pipeline = pools.launch("videotestsrc ! xmemsink pool=POOL socket-mode=0640");
    pipeline.0.set_state(gst::State::Ready).unwrap();
    let mode = std::fs::metadata(pools.pool("p"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o640);
}

/// The names of a structure's fields.
fn fields(element: &gst::Element) -> Vec<String> {
    element
        .property::<gst::Structure>("stats")
        .fields()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn statistics_have_the_same_fields_at_all_times() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc num-buffers=5 ! video/x-raw,width=64,height=64 ! xmemsink name=sink pool=POOL sync=false {LOSSLESS}"
    ));
    let receiver = pools.receiver("");
    let (sink, src) = (producer.sink(), receiver.src());
    let (of_sink, of_src) = (fields(&sink), fields(&src));
    for field in [
        "published",
        "zero-copy",
        "copied",
        "dropped",
        "late",
        "slots",
        "slots-held",
        "clients",
    ] {
        assert!(of_sink.iter().any(|name| name == field), "{field}");
    }
    for field in [
        "received",
        "missed",
        "zero-copy",
        "copied",
        "held",
        "reconnects",
    ] {
        assert!(of_src.iter().any(|name| name == field), "{field}");
    }
    producer.play();
    assert_eq!(receiver.rest().len(), 5);
    producer.wait_eos();
    assert_eq!(
        (fields(&sink), fields(&src)),
        (of_sink.clone(), of_src.clone())
    );
    producer.stop();
    receiver.pipeline.stop();
    assert_eq!((fields(&sink), fields(&src)), (of_sink, of_src));
    // The statistics can still be read.
    assert_eq!((stat(&sink, "published"), stat(&src, "received")), (5, 5));
    assert_eq!(stat(&sink, "slots-held"), 0);
}

#[test]
fn elements_are_found() {
    init();
    let registry = gst::Registry::get();
    for (name, klass) in [("xmemsink", "Sink"), ("xmemsrc", "Source")] {
        let factory = registry
            .lookup_feature(name)
            .unwrap()
            .downcast::<gst::ElementFactory>()
            .unwrap();
        assert_eq!(factory.metadata("klass"), Some(klass));
        assert_eq!(factory.rank(), gst::Rank::NONE);
        assert_eq!(factory.metadata("author"), Some("The xmem developers"));
    }
    let plugin = registry.find_plugin("xmem").unwrap();
    assert_eq!(plugin.license(), "MPL-2.0");
    for name in [
        "GstXmemSinkDelivery",
        "GstXmemSinkPace",
        "GstXmemSrcOverBudget",
        "GstXmemSrcStartFrom",
    ] {
        make("xmemsink");
        make("xmemsrc");
        assert!(gst::glib::Type::from_name(name).is_some(), "{name}");
    }
}
