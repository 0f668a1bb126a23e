// SPDX-License-Identifier: MPL-2.0

//! xmem:// addresses, and the elements that play them.

use crate::support::*;
use gst::prelude::*;

fn handler(kind: gst::URIType, uri: &str) -> Result<gst::Element, gst::glib::Error> {
    init();
    gst::Element::make_from_uri(kind, uri, None)
}

fn uri_of(element: &gst::Element) -> String {
    let handler = element.dynamic_cast_ref::<gst::URIHandler>().unwrap();
    handler.uri().unwrap().into()
}

#[test]
fn both_elements_accept_addresses() {
    for (kind, factory) in [
        (gst::URIType::Src, "xmemsrc"),
        (gst::URIType::Sink, "xmemsink"),
    ] {
        for (uri, pool) in [
            ("xmem://cam0", "cam0"),
            ("xmem://Cam%200", "Cam 0"),
            ("xmem:///run/shared/cam0", "/run/shared/cam0"),
        ] {
            let element = handler(kind, uri).unwrap();
            assert_eq!(element.factory().unwrap().name(), factory);
            assert_eq!(element.property::<String>("pool"), pool);
            assert_eq!(uri_of(&element), uri);
        }
    }
}

#[test]
fn addresses_carry_properties() {
    let uri = "xmem://cam0?max-held=3&on-producer-lost=eos&client-name=a%20b&download=true";
    let src = handler(gst::URIType::Src, uri).unwrap();
    assert_eq!(src.property::<String>("pool"), "cam0");
    assert_eq!(src.property::<u32>("max-held"), 3);
    assert_eq!(src.property::<String>("client-name"), "a b");
    assert!(src.property::<bool>("download"));
    let lost = src.property::<gstxmem::XmemSrcOnProducerLost>("on-producer-lost");
    assert_eq!(lost, gstxmem::XmemSrcOnProducerLost::Eos);

    let sink = handler(
        gst::URIType::Sink,
        "xmem://cam0?delivery=lossless&wait-for-connection=true&cuda-ipc-mode=legacy&cuda-device-id=1",
    )
    .unwrap();
    assert!(sink.property::<bool>("wait-for-connection"));
    let mode = sink.property::<gstxmem::XmemSinkCudaIpcMode>("cuda-ipc-mode");
    assert_eq!(mode, gstxmem::XmemSinkCudaIpcMode::Legacy);
    assert_eq!(sink.property::<i32>("cuda-device-id"), 1);
}

#[test]
fn bad_addresses_change_nothing() {
    let src = handler(gst::URIType::Src, "xmem://cam0").unwrap();
    let handler = src.dynamic_cast_ref::<gst::URIHandler>().unwrap();
    for (uri, kind, reason) in [
        ("xmem://", gst::URIError::BadUri, "names no pool"),
        ("xmem://a/", gst::URIError::BadUri, "directory"),
        ("xmem://a%zz", gst::URIError::BadUri, "%25"),
        (
            "xmem://a?max-held=4&nothing=1",
            gst::URIError::BadReference,
            "it cannot set \"nothing\", only",
        ),
        (
            "xmem://a?max-held=4&name=x",
            gst::URIError::BadReference,
            "\"name\"",
        ),
        ("xmem://a?pool=b", gst::URIError::BadReference, "\"pool\""),
        ("xmem://a?stats=b", gst::URIError::BadReference, "\"stats\""),
        (
            "xmem://a?max-held=many",
            gst::URIError::BadReference,
            "\"many\" is not a value of max-held",
        ),
        (
            "xmem://a?max-held=0",
            gst::URIError::BadReference,
            "\"0\" is not a value of max-held",
        ),
        (
            "file:///a",
            gst::URIError::UnsupportedProtocol,
            "not supported",
        ),
    ] {
        let error = handler.set_uri(uri).unwrap_err();
        assert!(error.matches(kind), "{uri}: {error:?}");
        assert!(error.message().contains(reason), "{uri}: {error}");
        assert_eq!(src.property::<String>("pool"), "cam0", "{uri}");
        assert_eq!(src.property::<u32>("max-held"), 8, "{uri}");
    }
}

#[test]
fn a_running_element_keeps_its_pool() {
    let pools = Pools::new();
    let pipeline = pools.launch("xmemsrc name=src pool=POOL ! fakesink");
    let src = pipeline.by_name("src");
    let handler = src.dynamic_cast_ref::<gst::URIHandler>().unwrap();
    pipeline.play();
    let error = handler.set_uri("xmem://other").unwrap_err();
    assert!(error.matches(gst::URIError::BadState), "{error:?}");
    assert_eq!(src.property::<String>("pool"), pools.pool("p"));
    pipeline.stop();
    handler.set_uri("xmem://other").unwrap();
    assert_eq!(src.property::<String>("pool"), "other");
}

/// A sink creates its pool on the way to READY.
#[test]
fn a_sink_that_has_its_pool_keeps_it() {
    let pools = Pools::new();
    let pipeline = pools.launch("fakesrc ! xmemsink name=sink pool=POOL");
    let sink = pipeline.sink();
    let handler = sink.dynamic_cast_ref::<gst::URIHandler>().unwrap();
    pipeline.settle(gst::State::Ready);
    assert!(xmem_core::discovery::query(pools.pool("p")).is_ok());
    let error = handler.set_uri("xmem://other").unwrap_err();
    assert!(error.matches(gst::URIError::BadState), "{error:?}");
    let pool = sink.find_property("pool").unwrap();
    let in_ready = gst::PARAM_FLAG_MUTABLE_READY;
    assert!(!pool.flags().contains(in_ready));
    pipeline.stop();
    handler.set_uri("xmem://other").unwrap();
}

/// A player of addresses, with a pool that is given by its path. It also plays what the next producer publishes.
fn plays(description: &str) {
    let pools = Pools::new();
    let uri = format!("xmem://{}?max-held=5", pools.pool("p"));
    let player = pools.launch(&description.replace("URI", &uri));
    player.play();
    for width in [320, 320, 640] {
        let producer = pools.launch(&format!(
            "videotestsrc is-live=true ! video/x-raw,format=I420,width={width},height=240,framerate=30/1 \
             ! xmemsink name=sink pool=POOL"
        ));
        producer.play();
        let sink = producer.sink();
        until("twenty frames", || {
            let stats = sink.property::<gst::Structure>("stats");
            let clients = stats.get::<gst::Array>("clients").unwrap();
            clients.first().is_some_and(|client| {
                let client = client.get::<gst::Structure>().unwrap();
                assert_eq!(client.get::<u32>("budget").unwrap(), 5);
                client.get::<u64>("received").unwrap() >= 20
            })
        });
    }
    let bus = player.0.bus().unwrap();
    if let Some(message) = bus.pop_filtered(&[gst::MessageType::Error]) {
        panic!("{message:?}");
    }
}

#[test]
fn playbin_plays() {
    plays("playbin uri=URI video-sink=fakesink");
}

#[test]
fn playbin3_plays() {
    plays("playbin3 uri=URI video-sink=fakesink");
}

#[test]
fn uridecodebin_plays() {
    plays("uridecodebin uri=URI ! videoconvert ! fakesink");
}
