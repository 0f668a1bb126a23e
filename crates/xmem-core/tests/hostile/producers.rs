// SPDX-License-Identifier: MPL-2.0

//! Producers with invalid messages and memory.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use xmem_core::discovery::query;
use xmem_core::{ConnectError, Consumer, ReceiveError};

use crate::support::raw::{self, Fake, Memory, Raw};
use crate::support::*;

/// Connects to a fake producer, and takes frames until there are none. Errors are expected. Signals and endless waits fail the
/// test.
pub(crate) fn consume(place: &Place) -> Result<Vec<ReceiveError>, ConnectError> {
    consume_waiting(place, [Duration::from_millis(5); 5])
}

/// As `consume`, with a timeout for each frame.
pub(crate) fn consume_waiting(
    place: &Place,
    times: [Duration; 5],
) -> Result<Vec<ReceiveError>, ConnectError> {
    let mut consumer = Consumer::builder(place.pool()).connect()?;
    let mut errors = Vec::new();
    for time in times {
        match consumer.receive(Some(time)) {
            // Only the frame's own bytes may be read.
            Ok(frame) => {
                frame
                    .bytes()
                    .unwrap()
                    .iter()
                    .fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            }
            Err(error) => errors.push(error),
        }
    }
    let _ = (consumer.stats(), consumer.sticky());
    Ok(errors)
}

/// Answers a consumer's requests until it disconnects.
pub(crate) fn answer_all(raw: &Raw, mut answer: impl FnMut(&[u8]) -> raw::Message) {
    while let Some((question, _)) = raw.recv() {
        if matches!(question[0], 3 | 4 | 12) {
            let (bytes, fds) = answer(&question);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let _ = raw.send(&bytes, &fds);
        }
    }
}

#[test]
fn a_producer_with_invalid_memory_is_refused() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let page = || raw::memory(1 << 16, true);
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let odd = |changes: &[(usize, u64)]| {
        let (fd, memory) = raw::control(None);
        for (word, value) in changes {
            memory.set(*word, *value);
        }
        fd
    };
    let controls: Vec<(&str, OwnedFd)> = vec![
        ("not memory", null.try_clone().unwrap()),
        ("not sealed", raw::memory(1 << 20, false)),
        ("too small", raw::memory(64, true)),
        ("empty", raw::memory(0, true)),
        ("zeros", raw::memory(1 << 20, true)),
        ("another magic", odd(&[(0, 1)])),
        ("another version", odd(&[(1, u64::from(raw::VERSION) + 1)])),
        ("no slots", odd(&[(raw::MAX_SLOTS, 0)])),
        ("too many slots", odd(&[(raw::MAX_SLOTS, 1 << 20)])),
        ("slots beyond its end", odd(&[(raw::MAX_SLOTS, 1 << 16)])),
        ("far too many slots", odd(&[(raw::MAX_SLOTS, u64::MAX)])),
        ("no ring", odd(&[(raw::RING_LEN, 0)])),
        ("an odd ring", odd(&[(raw::RING_LEN, 63)])),
        ("a ring beyond its end", odd(&[(raw::RING_LEN, 1 << 18)])),
        ("a far too long ring", odd(&[(raw::RING_LEN, 1 << 40)])),
    ];
    for (what, control) in &controls {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fake.answer(
                    &raw::welcome(raw::VERSION),
                    &[control, &page(), &raw::wake_socket()],
                )
            });
            let error = consume(&place).expect_err(what);
            assert!(
                matches!(error, ConnectError::Protocol { .. }),
                "{what}: {error}"
            );
        });
    }
    let (control, _memory) = raw::control(None);
    let small = raw::memory(100, true);
    let unsealed = raw::memory(1 << 16, false);
    let good = page();
    let socket = raw::wake_socket();
    let welcomes: Vec<(Vec<u8>, Vec<&OwnedFd>)> = vec![
        (raw::welcome(raw::VERSION), vec![]),
        (raw::welcome(raw::VERSION), vec![&control]),
        (raw::welcome(raw::VERSION), vec![&control, &good]),
        (raw::welcome(raw::VERSION), vec![&control, &good, &null]),
        (
            raw::welcome(raw::VERSION),
            vec![&control, &good, &socket, &socket],
        ),
        (raw::welcome(raw::VERSION), vec![&control; 10]),
        (raw::welcome(raw::VERSION), vec![&control, &small, &socket]),
        (
            raw::welcome(raw::VERSION),
            vec![&control, &unsealed, &socket],
        ),
        (raw::welcome(raw::VERSION), vec![&control, &null, &socket]),
        (raw::region(1, 1, 0, ""), vec![&control, &good, &socket]),
        (vec![7], vec![]),
        (vec![1; 5], vec![]),
        (vec![200; 300], vec![]),
        (vec![0; 3000], vec![]),
    ];
    for (n, (bytes, fds)) in welcomes.iter().enumerate() {
        std::thread::scope(|scope| {
            scope.spawn(|| fake.answer(bytes, fds));
            let error = consume(&place).expect_err("no welcome");
            assert!(
                matches!(error, ConnectError::Protocol { .. }),
                "{n}: {error}"
            );
        });
        std::thread::scope(|scope| {
            scope.spawn(|| fake.answer(bytes, fds));
            query(place.pool()).expect_err("no figures");
        });
    }
    // One producer that hangs up, and one that sends nothing.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(fake.accept()));
        assert!(matches!(
            consume(&place),
            Err(ConnectError::NoAnswer { .. })
        ));
    });
    std::thread::scope(|scope| {
        let silent = scope.spawn(|| fake.accept());
        assert!(matches!(
            consume(&place),
            Err(ConnectError::NoAnswer { .. })
        ));
        silent.join().unwrap();
    });
}

/// A few bytes of text for each entry of a list become hundreds in memory, and more where they are printed.
#[test]
fn figures_that_no_producer_has_are_refused() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let ask = |figures: &str| {
        let content = [&(figures.len() as u64).to_le_bytes(), figures.as_bytes()].concat();
        let fd = raw::memory(content.len() as u64, false);
        rustix::io::pwrite(&fd, &content, 0).unwrap();
        raw::seal(&fd, raw::SIZE);
        std::thread::scope(|scope| {
            scope.spawn(|| fake.answer(&[7], &[&fd]));
            query(place.pool())
        })
    };
    let list = |key: &str, entry: &str, count: usize| {
        format!("{{\"{key}\":[{}]}}", vec![entry; count].join(","))
    };
    let consumers = ask(&list("consumers", "{}", 4096)).unwrap().consumers;
    assert_eq!(consumers.len(), 4096);
    let long = "x".repeat(1000);
    let largest = u64::MAX.to_string();
    for figures in [
        list("consumers", "{}", 2_700_000),
        list("consumers", "{}", 4097),
        list("devices", "\"\"", 300),
        list("sticky", "[\"\",\"\"]", 1025),
        list("devices", &format!("\"{long}\""), 1),
        list("sticky", &format!("[\"{long}\",\"\"]"), 1),
        list("consumers", &format!("{{\"name\":\"{long}\"}}"), 1),
        list("consumers", &format!("{{\"via\":\"{long}\"}}"), 1),
        list("consumers", &format!("{{\"device\":\"{long}\"}}"), 1),
        list("consumers", &format!("{{\"missed\":{largest}}}"), 1),
        format!("{{\"pool\":\"{long}\"}}"),
        format!("{{\"published\":{largest}}}"),
        "{\"fps\":1e308}".into(),
        "{\"fps\":-1.0}".into(),
    ] {
        let error = ask(&figures).unwrap_err();
        let start = &figures[..figures.len().min(40)];
        assert!(
            matches!(error, ConnectError::Protocol { .. }),
            "{start}: {error}"
        );
    }
}

#[test]
fn a_producer_that_writes_random_words_crashes_no_consumer() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    for seed in 0..150 {
        let mut random = Random(seed);
        let (control_fd, control) = raw::control(None);
        for word in raw::BY_NUMBER + 1..control.words().len() {
            // Mostly small numbers, because they pass more checks.
            let value = random.next() >> random.below(64);
            control.set(word, value);
        }
        // Entries that could be the next ones, with valid and invalid fields.
        let head = random.next() >> random.below(60);
        for sequence in head.saturating_sub(5)..head {
            let words: Vec<(usize, u64)> = (0..random.below(4))
                .map(|_| {
                    let at = 1 + random.below(15) as usize;
                    (at, random.next() >> random.below(64))
                })
                .collect();
            raw::publish_entry(&control, sequence, &words);
        }
        control.set(raw::HEAD, head);
        let page_fd = raw::memory(1 << 16, true);
        let page = Memory::map(&page_fd, true);
        page.set(raw::CURSOR, head.saturating_sub(random.below(10)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let raw = fake.welcome(&control_fd, &page_fd);
                answer_all(&raw, |question| match (question[0], random.below(6)) {
                    (3, 0) => (question_to_no(question), vec![]),
                    (3, 1) => (raw::region(1, 8192, 0, ""), vec![raw::frozen(4096)]),
                    (3, 2) => (raw::region(1, 4096, 1, "/xmem-none"), vec![]),
                    (3, 3) => (raw::region(1, 4096, 2, ""), vec![]),
                    (3, _) => (
                        region_for(question, 8192),
                        vec![match random.below(4) {
                            0 => raw::memory(8192, true),
                            _ => raw::frozen(8192),
                        }],
                    ),
                    (_, 0) => (question_to_no(question), vec![]),
                    (_, 1) => (sticky_for(question), vec![raw::memory(3, true)]),
                    (_, 2) => (sticky_for(question), vec![]),
                    _ => (sticky_for(question), vec![raw::memory(4096, true)]),
                });
            });
            // The result does not matter, only that the call returns.
            let _ = consume(&place);
        });
    }

    fn number(question: &[u8]) -> u64 {
        let mut bytes = [0; 8];
        bytes[..question.len() - 1].copy_from_slice(&question[1..]);
        u64::from_le_bytes(bytes)
    }

    fn question_to_no(question: &[u8]) -> Vec<u8> {
        let kind = if question[0] == 3 { 4 } else { 6 };
        [&[kind], &question[1..]].concat()
    }

    fn region_for(question: &[u8], len: u64) -> Vec<u8> {
        raw::region(number(question) as u32, len, 0, "")
    }

    fn sticky_for(question: &[u8]) -> Vec<u8> {
        raw::sticky(number(question))
    }
}
