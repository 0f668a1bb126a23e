// SPDX-License-Identifier: MPL-2.0

//! Clients that send invalid messages.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use xmem_core::{Consumer, Producer};

use crate::support::raw::{self, Fake, Memory, Raw};
use crate::support::*;
use crate::{Bystander, only_the_bystander_is_left};

#[test]
fn garbage_and_half_messages_are_refused() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    let mut random = Random(7);
    let valid = raw::join(raw::VERSION, 1);
    let mut messages: Vec<Vec<u8>> = (1..valid.len()).map(|len| valid[..len].to_vec()).collect();
    messages.push([&valid[..], &[0]].concat());
    for len in [1, 2, 9, 85, 86, 511, 512, 513, 1000, 4000] {
        messages.push((0..len).map(|_| random.next() as u8).collect());
        // Messages whose first byte is valid.
        for kind in 0..14 {
            let mut message = messages.last().unwrap().clone();
            message[0] = kind;
            messages.push(message);
        }
    }
    for (n, message) in messages.iter().enumerate() {
        let raw = Raw::connect(&place.pool());
        raw.send(message, &[]).unwrap();
        while let Some((answer, fds)) = raw.recv() {
            assert_eq!(answer[0], 2, "a refusal");
            assert!(fds.is_empty(), "nothing is shared");
        }
        if n % 20 == 0 {
            bystander.frames(1);
        }
    }
    // Unexpected descriptors, a few and too many.
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for fds in [1, 4, 5, 16] {
        let raw = Raw::connect(&place.pool());
        raw.send(b"\x01", &vec![null.as_fd(); fds]).unwrap();
        while raw.recv().is_some() {}
    }
    // An empty message.
    let raw = Raw::connect(&place.pool());
    raw.send(b"", &[]).unwrap();
    assert!(raw.recv().is_none());
    bystander.frames(10);
    only_the_bystander_is_left(&producer);
}

#[test]
fn another_version_is_refused_with_a_message() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    for version in [0, raw::VERSION + 1, u32::MAX] {
        // A later version may have a longer message.
        for tail in [0, 100] {
            let raw = Raw::connect(&place.pool());
            let mut message = raw::join(version, 1);
            message.resize(message.len() + tail, 0);
            raw.send(&message, &[]).unwrap();
            let (answer, fds) = raw.recv().expect("a reason");
            assert!(fds.is_empty());
            assert_eq!(answer[0], 2);
            let reason = String::from_utf8_lossy(&answer[5..]);
            assert_contains(&reason, &format!("version {version}"));
            assert_contains(&reason, "update");
            assert!(raw.recv().is_none());
        }
    }
    drop(producer);
}

#[test]
fn control_characters_from_a_producer_are_escaped() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    std::thread::scope(|scope| {
        scope.spawn(|| fake.answer(&raw::refused(raw::VERSION, "no\x1b[2J\r\nyes"), &[]));
        let error = Consumer::builder(place.pool()).connect().unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("no\u{fffd}[2J\u{fffd}\u{fffd}yes"),
            "{text:?}"
        );
    });
}

#[test]
fn an_invalid_message_after_joining_disconnects_with_a_reason() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    for message in [
        &b"\x03"[..],
        b"\xff\xff",
        &raw::join(raw::VERSION, 1),
        &[9; 22],
        &[0; 600],
    ] {
        let (raw, joined) = Raw::join(&place.pool(), 1);
        let page = Memory::map(&joined.page, false);
        raw.send(message, &[]).unwrap();
        while raw.recv().is_some() {}
        assert_ne!(page.words()[raw::FLAGS].load(Ordering::Relaxed) & 1, 0);
        bystander.frames(1);
    }
    only_the_bystander_is_left(&producer);
}

#[test]
fn a_peer_that_never_reads_delays_no_other() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(5);
    let (raw, _joined) = Raw::join(&place.pool(), 1);
    for n in 0..5000u32 {
        // Existing regions and states, and others.
        let _ = raw.send(&raw::get_region(n % 3), &[]);
        let _ = raw.send(&raw::get_sticky(u64::from(n % 3)), &[]);
        let _ = raw.send(b"\x05", &[]);
        if n % 100 == 0 {
            let mut sticky = xmem_core::Sticky::new();
            sticky.set("n", n.to_string());
            producer.set_sticky(&sticky).unwrap();
            bystander.frames(1);
        }
    }
    assert_eq!(producer.stats().consumers.len(), 2);
    drop(raw);
    only_the_bystander_is_left(&producer);
}
