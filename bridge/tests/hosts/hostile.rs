// SPDX-License-Identifier: MPL-2.0

//! Hostile bridges, which send invalid messages over Zenoh.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use xmem_bridge::keys;
use xmem_bridge::link::{Endpoint, Link, Outlet, Side, Urgency};
use xmem_bridge::window::span;
use xmem_bridge::wire::{
    Begin, Chunk, Credit, Down, Hello, Ids, Kind, MAX_FRAME, Place, Probe, Pulse, Request, Tai, Up,
    VERSION,
};
use xmem_core::{FrameMeta, VideoLayout, monotonic_ns};

use crate::support::*;

/// A hostile exporter in this process.
struct Forger {
    _link: Link,
    data: Outlet,
    ids: Ids,
    position: u64,
    credit: Arc<Mutex<Option<Credit>>>,
    _inlet: xmem_bridge::link::Inlet,
}

impl Forger {
    /// Waits until an importer wants frames.
    fn new(hosts: &Hosts) -> Self {
        let endpoint = Endpoint {
            address: hosts.address(),
            identity: None,
        };
        let link = Link::open(&endpoint, Side::Listens).unwrap();
        let (credit, importer) = (
            Arc::<Mutex<Option<Credit>>>::default(),
            Arc::<Mutex<u64>>::default(),
        );
        let (answering, taken, named) = (link.clone(), credit.clone(), importer.clone());
        let inlet = link.inlet(keys::up("cam0"), move |_, bytes| match Up::decode(bytes) {
            Ok(Up::Hello(hello)) => {
                *named.lock().unwrap() = hello.importer;
                let ids = Ids {
                    exporter: 1,
                    importer: hello.importer,
                };
                let now = monotonic_ns();
                let pulse = Down::Pulse(Pulse {
                    ids,
                    echo: hello.sent,
                    received: now,
                    sent: now,
                    // Its clock is 292 years off, and has no error.
                    tai: Some(Tai {
                        offset: i64::MIN,
                        error: 0,
                    }),
                });
                answering.send(keys::down("cam0", hello.importer), pulse.encode());
            }
            Ok(Up::Credit(credit)) => *taken.lock().unwrap() = Some(credit),
            _ => {}
        });
        let inlet = inlet.unwrap();
        eventually("the importer wants frames", || {
            credit.lock().unwrap().is_some_and(|credit| credit.wants)
        });
        let ids = Ids {
            exporter: 1,
            importer: *importer.lock().unwrap(),
        };
        let data = link
            .outlet(keys::data("cam0", ids.importer), Urgency::Stream)
            .unwrap();
        let forger = Self {
            _link: link,
            data,
            ids,
            position: 0,
            credit,
            _inlet: inlet,
        };
        // Zenoh drops messages until it has matched the outlet with the importer's subscription.
        eventually("probes arrive", || {
            let place = forger.place(0, 0);
            let probe = Probe {
                place,
                ended: false,
                live: true,
            };
            forger.data.send(probe.encode(), Default::default());
            std::thread::sleep(Duration::from_millis(20));
            forger.credit().position > 0
        });
        forger
    }

    fn credit(&self) -> Credit {
        self.credit.lock().unwrap().unwrap()
    }

    fn place(&self, position: u64, item: u64) -> Place {
        Place {
            ids: self.ids,
            position,
            item,
        }
    }

    /// Sends a message at the next position.
    fn send(&mut self, item: u64, encode: impl Fn(Place) -> Vec<u8>) {
        let len = encode(self.place(0, item)).len();
        let span = span(self.position, len).unwrap();
        self.position = span.end;
        self.data
            .send(encode(self.place(span.start, item)), Default::default());
    }
}

#[test]
fn forged_messages_do_no_harm() {
    let hosts = Hosts::new();
    let import = hosts.import("b");
    let mut consumer = hosts.consumer("b");
    let mut forger = Forger::new(&hosts);
    forger.position = forger.credit().position;

    // The importer accepts frames only after their sticky state.
    forger.send(1, |place| {
        begin(place, Kind::Sticky, FrameMeta::default(), 0).encode()
    });
    eventually("the sticky state is set", || forger.credit().sticky == 1);

    let with_plane = |offset| {
        let mut meta = FrameMeta::new(100);
        meta.layout_mut().video = Some(VideoLayout {
            n_planes: 1,
            offsets: [offset, 0, 0, 0],
            ..VideoLayout::default()
        });
        meta
    };
    // Invalid sizes and formats.
    let impossible = [
        (Kind::Frame, FrameMeta::new(usize::MAX), 0),
        (Kind::Frame, FrameMeta::new(MAX_FRAME as usize + 1), 0),
        (Kind::Frame, FrameMeta::new(1), u64::MAX),
        (Kind::Event, FrameMeta::new(7), 0),
        (Kind::Frame, with_plane(101), 0),
    ];
    for (kind, meta, attached) in impossible {
        let message = begin(forger.place(forger.position, 2), kind, meta, attached).encode();
        forger.data.send(message, Default::default());
    }
    // More bytes than announced, bytes at invalid offsets, invalid attachments, and random bytes.
    forger.send(2, |place| {
        begin(place, Kind::Frame, FrameMeta::new(100), 0).encode()
    });
    forger.send(2, |place| chunk(place, 0, false, &[1; 101]));
    forger.send(3, |place| {
        begin(place, Kind::Frame, FrameMeta::new(100), 0).encode()
    });
    forger.send(3, |place| chunk(place, 50, true, &[1; 50]));
    forger.send(4, |place| {
        begin(place, Kind::Frame, FrameMeta::new(100), 0).encode()
    });
    forger.send(4, |place| chunk(place, u64::MAX, true, &[1; 100]));
    forger.send(5, |place| {
        begin(place, Kind::Frame, FrameMeta::new(0), 9).encode()
    });
    forger.send(5, |place| chunk(place, 0, true, &[255; 9]));
    forger.send(6, |place| {
        begin(place, Kind::Sticky, FrameMeta::default(), 9).encode()
    });
    forger.send(6, |place| chunk(place, 0, true, &[255; 9]));
    for seed in 0..200 {
        let mut bytes = content(seed, 300);
        bytes[0] = VERSION;
        bytes[1] = (seed % 4) as u8;
        if seed % 2 == 0 {
            bytes[2..18].copy_from_slice(&ids_as_bytes(forger.ids));
            bytes[18..26].copy_from_slice(&forger.position.to_le_bytes());
        }
        forger.data.send(bytes, Default::default());
    }
    // Random bytes may have moved the position.
    eventually("the importer answers a probe", || {
        let probe = Probe {
            place: forger.place(forger.credit().position, 7),
            ended: false,
            live: true,
        };
        forger.data.send(probe.encode(), Default::default());
        std::thread::sleep(Duration::from_millis(20));
        forger.credit().items >= 7
    });
    forger.position = forger.credit().position;

    // The importer still accepts a valid frame.
    let item = forger.credit().items + 1;
    let bytes = content(77, 40_000);
    forger.send(item, |place| {
        let meta = meta(77, 40_000);
        Begin {
            number: 1 << 40,
            ..begin(place, Kind::Frame, meta, 0)
        }
        .encode()
    });
    forger.send(item, |place| chunk(place, 0, true, &bytes));
    assert_eq!(number(&receive(&mut consumer)), 77);
    assert!(consumer.stats().received == 1 && !import.has_printed("panicked"));
    let (received, _) = import.figures();
    assert_eq!(received, 1);
}

#[test]
fn a_forging_importer_does_no_harm() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let export = hosts.export(&["cam0"]);
    let endpoint = Endpoint {
        address: hosts.address(),
        identity: None,
    };
    let link = Link::open(&endpoint, Side::Connects).unwrap();
    let exporter = Arc::<Mutex<u64>>::default();
    let named = exporter.clone();
    let _inlet = link.inlet(keys::down("cam0", 7), move |_, bytes| {
        if let Ok(Down::Pulse(Pulse { ids, .. })) = Down::decode(bytes) {
            *named.lock().unwrap() = ids.exporter;
        }
    });
    let send = |up: Up| link.send(keys::up("cam0"), up.encode());
    let hello = |name: &str| {
        let name = name.to_owned();
        Up::Hello(Hello {
            importer: 7,
            name,
            sent: i64::MIN,
        })
    };
    eventually("there is a stream", || {
        send(hello("\0\x1b[2J\u{202e}"));
        std::thread::sleep(Duration::from_millis(20));
        *exporter.lock().unwrap() != 0
    });
    let camera = Camera::start(&producer, 100_000, 1);
    for round in 0..200 {
        let ids = Ids {
            exporter: *exporter.lock().unwrap(),
            importer: 7,
        };
        let wrong = u64::MAX - round;
        let (items, position, lost, sticky) = (wrong, wrong, round, wrong);
        let sent = i64::MAX;
        send(Up::Credit(Credit {
            ids,
            items,
            position,
            lost,
            sticky,
            wants: round % 2 == 0,
            sent,
        }));
        send(Up::Request(Request {
            ids,
            name: "\0".into(),
            data: vec![255; 448],
        }));
        link.send(keys::up("cam0"), content(round, 100));
        let hello = Hello {
            importer: round,
            name: String::new(),
            sent: 0,
        };
        send(Up::Hello(hello));
    }
    let _import = hosts.import("b");
    let mut consumer = hosts.consumer("b");
    let after = camera.next();
    receive_until(&mut consumer, after);
    assert!(!export.has_printed("panicked"));
}

/// Zenoh puts fragments of a message together before the exporter gets it.
#[test]
fn large_messages_take_no_memory() {
    use zenoh::Wait;
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let export = hosts.export(&["cam0"]);
    let mut config = zenoh::Config::default();
    for (name, value) in [
        ("listen/endpoints", "[]".to_owned()),
        (
            "connect/endpoints",
            format!("[\"tcp/{}\"]", hosts.address()),
        ),
        ("scouting/multicast/enabled", "false".to_owned()),
    ] {
        config.insert_json5(name, &value).unwrap();
    }
    let session = zenoh::open(config).wait().unwrap();
    let put = session.put(keys::up("cam0"), vec![7; 300 << 20]);
    let put = put.congestion_control(zenoh::qos::CongestionControl::Block);
    let _ = put.wait();
    let camera = Camera::start(&producer, 100_000, 1);
    let _import = hosts.import("b");
    let mut consumer = hosts.consumer("b");
    receive_until(&mut consumer, camera.next());
    let peak = export.peak_memory();
    assert!(peak < 200 << 20, "{peak} bytes");
}

fn begin(place: Place, kind: Kind, meta: FrameMeta, attached: u64) -> Begin {
    Begin {
        place,
        kind,
        sticky: 1,
        stream: 1,
        number: place.item,
        attached,
        meta,
    }
}

fn chunk(place: Place, offset: u64, last: bool, bytes: &[u8]) -> Vec<u8> {
    let chunk = Chunk {
        place,
        offset,
        last,
        bytes,
    };
    [&chunk.head(), bytes].concat()
}

fn ids_as_bytes(ids: Ids) -> [u8; 16] {
    let ids = [ids.exporter, ids.importer].map(u64::to_le_bytes);
    ids.concat().try_into().unwrap()
}
