// SPDX-License-Identifier: MPL-2.0

//! Processes of different versions of the shared format. The packets in `format-11` were recorded from programs of version 11.
//! Those of a newer version begin in the same way: crates/xmem-shm/src/abi/VERSION.md.

use std::thread;
use std::time::Duration;

use xmem_core::{ConnectError, Consumer};

use crate::start;
use crate::support::child::{Child, end_with_parent, reply};
use crate::support::raw::{self, Fake, Raw, VERSION};
use crate::support::*;

const JOIN: &[u8] = include_bytes!("format-11/join");
const QUERY: &[u8] = include_bytes!("format-11/query");
const REFUSED: &[u8] = include_bytes!("format-11/refused");

/// The version in a first message, and in the answer that refuses it.
const IN_FIRST: usize = 9;
const IN_REFUSED: usize = 1;

const NEWER: u32 = VERSION + 1;

/// A packet as a newer version sends it.
fn newer(packet: &[u8], place: usize) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[place..place + 4].copy_from_slice(&NEWER.to_le_bytes());
    packet
}

/// Joins the pool and queries its figures. Reports both errors.
pub(crate) fn meet(pool: &str) {
    reply(Consumer::builder(pool).connect().unwrap_err());
    reply(xmem_core::discovery::query(pool).unwrap_err());
}

/// Publishes frames until its parent ends it.
pub(crate) fn go_on(pool: &str) {
    let producer = xmem_core::Producer::builder(pool).build().unwrap();
    reply("made");
    end_with_parent();
    for seed in 0.. {
        publish(&producer, seed, crate::SIZE);
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_consumer_of_another_version_names_the_side_to_update() {
    for (answer, version, old) in [
        (REFUSED.to_vec(), 11, "update the producer"),
        (newer(REFUSED, IN_REFUSED), NEWER, "update this program"),
    ] {
        let place = Place::new();
        let fake = Fake::at(place.pool());
        let mut consumer = Child::start("meet", &place.pool());
        for _ in ["join", "query"] {
            fake.answer(&answer, &[]);
            let error = consumer.reply();
            for part in [
                &*format!("version {version} of the shared format"),
                &*format!("this program version {VERSION}"),
                old,
            ] {
                assert!(error.contains(part), "{part:?} is missing: {error}");
            }
        }
        assert!(consumer.end());
    }
}

#[test]
fn a_producer_refuses_other_versions_and_serves_its_own() {
    let place = Place::new();
    let producer = start("go-on", "made", &place);
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    for (first, version, old) in [
        (JOIN.to_vec(), 11, "update the consumer"),
        (QUERY.to_vec(), 11, "update the consumer"),
        (newer(JOIN, IN_FIRST), NEWER, "update the producer"),
        (newer(QUERY, IN_FIRST), NEWER, "update the producer"),
    ] {
        let raw = Raw::connect(&place.pool());
        raw.send(&first, &[]).unwrap();
        let (answer, fds) = raw.recv().expect("a refusal");
        assert!(fds.is_empty());
        assert_eq!(answer.len(), REFUSED.len());
        assert_eq!(answer[..5], [&[2], &VERSION.to_le_bytes()[..]].concat());
        let reason = String::from_utf8_lossy(&answer[5..]);
        for part in [&*format!("version {version}"), old] {
            assert!(reason.contains(part), "{part:?} is missing: {reason}");
        }
        assert!(raw.recv().is_none());
        assert_whole(&consumer.receive(Some(HANG)).unwrap());
    }
    assert!(producer.end());
}

/// A program can tell this error from others, also if a producer welcomes it in spite of its version.
#[test]
fn another_version_is_an_error_of_its_own() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    thread::scope(|scope| {
        scope.spawn(|| {
            fake.answer(REFUSED, &[]);
            fake.answer(&raw::welcome(NEWER), &[]);
        });
        for expected in [11, NEWER] {
            let error = Consumer::builder(place.pool()).connect().unwrap_err();
            assert!(
                matches!(error, ConnectError::OtherVersion { version, .. } if version == expected),
                "{error}"
            );
            assert!(!error.may_pass());
        }
    });
}
