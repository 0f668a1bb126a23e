// SPDX-License-Identifier: MPL-2.0

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use xmem_core::{DType, FrameFlags, FrameLayout, VideoLayout};

use super::*;

prop_compose! {
    fn ids()(exporter: u64, importer: u64) -> Ids {
        Ids { exporter, importer }
    }
}

prop_compose! {
    fn place()(ids in ids(), position: u64, item: u64) -> Place {
        Place { ids, position, item }
    }
}

prop_compose! {
    fn layout()(
        ndim in 0..=8u8, shape: [u64; 8], strides: [i64; 8], is_video: bool, n_planes in 0..=4u32,
        width: u32, height: u32, offsets in [0..1000u64, 0..1000u64, 0..1000u64, 0..1000u64], rows: [i32; 4],
    ) -> FrameLayout {
        let video = VideoLayout {
            format: "P010_10LE".into(), width, height, n_planes, offsets, strides: rows,
        };
        FrameLayout {
            dtype: DType::F32, ndim, shape, strides,
            content_type: "video/x-raw".into(), producer: "a test".into(),
            video: is_video.then_some(video),
        }
    }
}

prop_compose! {
    fn meta()(
        layout in layout(), size in 1000..=MAX_FRAME, flags: u32,
        timestamp: Option<i64>, decode_timestamp: Option<i64>, pts: Option<u64>, dts: Option<u64>,
        duration: Option<u64>, buffer_offset: Option<u64>, buffer_offset_end: Option<u64>,
        reserved in option::of(vec(any::<u8>(), 64)),
    ) -> FrameMeta {
        let mut meta = FrameMeta::default().layout(layout).flags(FrameFlags::from_bits(flags));
        meta.size = size;
        (meta.timestamp, meta.decode_timestamp) = (timestamp, decode_timestamp);
        (meta.pts, meta.dts, meta.duration) = (pts, dts, duration);
        (meta.buffer_offset, meta.buffer_offset_end) = (buffer_offset, buffer_offset_end);
        meta.reserved = reserved.map(|bytes| bytes.try_into().unwrap());
        meta
    }
}

prop_compose! {
    fn begin()(
        place in place(), meta in meta(), sticky: u64, stream: u64, number: u64,
        attached in 0..=MAX_NAMED_SIZE as u64,
    ) -> Begin {
        Begin { place, kind: Kind::Frame, sticky, stream, number, attached, meta }
    }
}

/// Asserts that decoding fails if the message is truncated, or if another byte follows it.
fn is_exact<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, Malformed>) {
    for end in 0..bytes.len() {
        assert!(decode(&bytes[..end]).is_err(), "cut at {end}");
    }
    assert!(decode(&[bytes, &[0]].concat()).is_err());
}

proptest! {
    #[test]
    fn descriptions_round_trip(begin in begin()) {
        let bytes = begin.encode();
        prop_assert_eq!(Data::decode(&bytes), Ok(Data::Begin(Box::new(begin))));
        is_exact(&bytes, |bytes| Data::decode(bytes).map(|_| ()));
    }

    #[test]
    fn chunks_round_trip(place in place(), offset: u64, last: bool, bytes in vec(any::<u8>(), 0..200)) {
        let chunk = Chunk { place, offset, last, bytes: &bytes };
        let message = [&chunk.head()[..], &bytes].concat();
        prop_assert_eq!(chunk.head().len(), CHUNK_HEAD);
        prop_assert_eq!(Data::decode(&message), Ok(Data::Chunk(chunk)));
    }

    #[test]
    fn other_messages_round_trip(
        ids in ids(), place in place(), numbers: [u64; 4], flags: [bool; 2], times: [i64; 3],
        tai: Option<(i64, u64)>,
        text in "\\PC{0,16}", data in vec(any::<u8>(), 0..=MAX_REQUEST),
    ) {
        let [items, position, lost, sticky] = numbers;
        let [wants, ended] = flags;
        let [echo, received, sent] = times;
        let tai = tai.map(|(offset, error)| Tai { offset, error });
        let (importer, name) = (ids.importer, text.clone());
        for up in [
            Up::Hello(Hello { importer, name: name.clone(), sent }),
            Up::Credit(Credit { ids, items, position, lost, sticky, wants, sent }),
            Up::Request(Request { ids, name, data }),
        ] {
            prop_assert_eq!(Up::decode(&up.encode()), Ok(up.clone()));
            is_exact(&up.encode(), Up::decode);
        }
        for down in [Down::Pulse(Pulse { ids, echo, received, sent, tai }), Down::Refusal { importer, reason: text }] {
            prop_assert_eq!(Down::decode(&down.encode()), Ok(down.clone()));
            is_exact(&down.encode(), Down::decode);
        }
        let probe = Probe { place, ended, live: wants };
        let bytes = probe.encode();
        prop_assert_eq!(Data::decode(&bytes), Ok(Data::Probe(probe)));
    }

    #[test]
    fn nothing_makes_it_panic(mut bytes in vec(any::<u8>(), 0..600), kind in 0..5u8) {
        let _ = (Up::decode(&bytes), Down::decode(&bytes), Data::decode(&bytes));
        for (at, value) in [VERSION, kind].into_iter().enumerate() {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let _ = (Up::decode(&bytes), Down::decode(&bytes), Data::decode(&bytes));
    }

    #[test]
    fn a_changed_byte_is_an_error_or_within_the_limits(begin in begin(), at: prop::sample::Index, value: u8) {
        let mut bytes = begin.encode();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(Data::Begin(begin)) = Data::decode(&bytes) {
            prop_assert!(begin.total() <= MAX_FRAME + MAX_NAMED_SIZE as u64);
            prop_assert!(begin.meta.layout.check().is_ok());
        }
    }
}

#[test]
fn impossible_items_are_refused() {
    let good = Begin {
        place: Place::default(),
        kind: Kind::Frame,
        sticky: 1,
        stream: 1,
        number: 1,
        attached: 0,
        meta: FrameMeta::new(1000),
    };
    let is_taken = |begin: &Begin| Data::decode(&begin.encode()).is_ok();
    assert!(is_taken(&good));
    let mut large = good.clone();
    large.meta.size = MAX_FRAME + 1;
    let mut attached = good.clone();
    attached.attached = MAX_NAMED_SIZE as u64 + 1;
    let mut event = good.clone();
    event.kind = Kind::Event;
    let mut outside = good.clone();
    outside.meta.layout_mut().video = Some(VideoLayout {
        n_planes: 2,
        offsets: [0, 1001, 0, 0],
        ..VideoLayout::default()
    });
    for bad in [large, attached, event, outside] {
        assert!(!is_taken(&bad), "{bad:?}");
    }
    let place = Place::default();
    let bytes = vec![0; MAX_CHUNK + 1];
    let (offset, last) = (0, true);
    let head = Chunk {
        place,
        offset,
        last,
        bytes: &[],
    }
    .head();
    assert!(Data::decode(&[head, bytes].concat()).is_err());
}

#[test]
fn texts_are_cut_between_characters() {
    let name = "ü".repeat(MAX_NAME);
    let hello = Up::Hello(Hello {
        importer: 1,
        name,
        sent: 0,
    });
    let Ok(Up::Hello(hello)) = Up::decode(&hello.encode()) else {
        panic!("it is not taken");
    };
    assert_eq!(hello.name, "ü".repeat(MAX_NAME / 2));
}
