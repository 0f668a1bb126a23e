// SPDX-License-Identifier: MPL-2.0

//! Peers that lie, flood, or are something else altogether, and a system that refuses.

mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::net::SocketType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::child::{self, Child, say};
use support::raw::{self, Fake, Memory, Raw};
use support::*;
use xmem_core::{
    AcquireError, Backing, ConnectError, Consumer, ConsumerEvent, CreateError, Delivery, Departure,
    NameError, Producer, ReceiveError, RegionError, query,
};

const SIZE: usize = 50_000;

/// Publishes frames, which a consumer that behaves checks, while something is done to the pool.
struct Bystander<'a> {
    producer: &'a Producer,
    consumer: Consumer,
    seed: u64,
}

impl<'a> Bystander<'a> {
    fn new(producer: &'a Producer) -> Self {
        Self {
            consumer: Consumer::builder(producer.pool()).connect().unwrap(),
            producer,
            seed: 0,
        }
    }

    /// Nobody else's frames are lost or torn, and no slot is missing.
    #[track_caller]
    fn frames(&mut self, frames: u64) {
        for _ in 0..frames {
            publish(self.producer, self.seed, SIZE);
            assert_frame(&receive(&mut self.consumer), self.seed, SIZE);
            self.seed += 1;
        }
        assert_eq!(self.consumer.stats().missed, 0);
    }
}

fn only_the_bystander_is_left(producer: &Producer) {
    eventually("the others are gone", || {
        let stats = producer.stats();
        stats.consumers.len() == 1 && stats.consumers[0].missed == 0
    });
}

#[test]
fn garbage_and_half_messages_are_refused() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    let mut random = Random(7);
    let valid = raw::join(raw::VERSION, 1);
    let mut messages: Vec<Vec<u8>> = (1..valid.len()).map(|len| valid[..len].to_vec()).collect();
    messages.push([&valid[..], &[0]].concat());
    for len in [1, 2, 9, 85, 86, 511, 512, 513, 1000, 4000] {
        messages.push((0..len).map(|_| random.next() as u8).collect());
        // What looks like a message by its first byte.
        for kind in 0..12 {
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
    // Descriptors that nobody asked for, a few and too many.
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for fds in [1, 4, 5, 16] {
        let raw = Raw::connect(&place.pool());
        raw.send(b"\x01", &vec![null.as_fd(); fds]).unwrap();
        while raw.recv().is_some() {}
    }
    // A message of nothing.
    let raw = Raw::connect(&place.pool());
    raw.send(b"", &[]).unwrap();
    assert!(raw.recv().is_none());
    bystander.frames(10);
    only_the_bystander_is_left(&producer);
}

#[test]
fn another_version_is_refused_in_words() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    for version in [0, 2, u32::MAX] {
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
            assert!(
                reason.contains(&format!("version {version}")) && reason.contains("update"),
                "{reason}"
            );
            assert!(raw.recv().is_none());
        }
    }
    drop(producer);
    // And the other way round.
    let fake = Fake::at(place.pool());
    let connect = || Consumer::builder(&place.pool()).connect().unwrap_err();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fake.answer(&raw::refused(2, "it speaks protocol version 2"), &[]);
            fake.answer(&raw::welcome(2), &[]);
        });
        let error = connect();
        assert!(
            matches!(&error, ConnectError::Refused { reason, .. } if reason.contains("version 2")),
            "{error}"
        );
        let error = connect();
        assert!(
            matches!(&error, ConnectError::Protocol { reason, .. } if reason.contains("version")),
            "{error}"
        );
    });
}

#[test]
fn who_says_nothing_is_shown_out() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    let silent: Vec<Raw> = (0..10).map(|_| Raw::connect(&place.pool())).collect();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(50);
    assert_eq!(query(&place.pool()).unwrap().consumers.len(), 1);
    for raw in silent {
        assert!(raw.recv().is_none());
    }
    bystander.frames(50);
}

#[test]
fn a_flood_of_connections_drowns_nobody() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    let mut open = std::collections::VecDeque::new();
    for n in 0..2000 {
        if let Ok(raw) = Raw::try_connect(&place.pool()) {
            open.push_back(raw);
        }
        if open.len() > 200 {
            open.pop_front();
        }
        if n % 100 == 0 {
            bystander.frames(1);
        }
    }
    // Who wants frames gets in, all the same.
    let mut late = Consumer::builder(&place.pool())
        .connect_wait(Some(HANG))
        .unwrap();
    bystander.frames(1);
    assert_whole(&receive(&mut late));
    drop((open, late));
    bystander.frames(10);
    only_the_bystander_is_left(&producer);
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Joins as a consumer that writes into its lease page, whatever and whenever it likes, while others go on.
fn with_a_liar(
    delivery: Delivery,
    lie: impl Fn(&Memory, &Memory, u32, &mut Random) + Sync,
    mut meanwhile: impl FnMut(&mut Bystander<'_>),
) {
    let place = Place::new();
    let departures = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let producer = Producer::builder(&place.pool())
        .delivery(delivery)
        .history(2)
        .max_slots(24)
        .on_consumer({
            let departures = departures.clone();
            move |event| {
                if let ConsumerEvent::Disconnected { reason, .. } = event {
                    departures.lock().unwrap().push(reason);
                }
            }
        })
        .build()
        .unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(30);
    let (raw, joined) = Raw::join(&place.pool(), 4);
    let control = Memory::map(&joined.control, false);
    let page = Memory::map(&joined.page, true);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(11);
            while !done.load(Ordering::Relaxed) {
                lie(&control, &page, joined.max_slots, &mut random);
            }
        });
        // Also when something below fails.
        let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
        eventually("it is cut off", || {
            meanwhile(&mut bystander);
            producer.stats().cut_off == 1
        });
    });
    bystander.frames(300);
    only_the_bystander_is_left(&producer);
    assert_eq!(producer.stats().cut_off, 1);
    while raw.recv().is_some() {}
    assert_eq!(departures.lock().unwrap()[..], [Departure::CutOff]);
}

#[test]
fn a_lease_page_full_of_garbage_cuts_its_consumer_off() {
    with_a_liar(
        Delivery::Live,
        |_, page, _, random| {
            for word in page.words() {
                word.store(random.next(), Ordering::Relaxed);
            }
        },
        |bystander| bystander.frames(10),
    );
}

#[test]
fn who_holds_more_than_its_budget_is_cut_off() {
    with_a_liar(
        Delivery::Live,
        |control, page, max_slots, _| {
            for slot in 0..max_slots as usize {
                let word = control.words()[raw::SLOTS + slot].load(Ordering::Relaxed);
                page.halves()[raw::LEASES + slot].store((word >> 32) as u32, Ordering::Relaxed);
            }
        },
        |bystander| bystander.frames(10),
    );
}

#[test]
fn who_leases_the_future_is_cut_off() {
    with_a_liar(
        Delivery::Live,
        |_, page, _, _| page.halves()[raw::LEASES + 3].store(1 << 30, Ordering::Relaxed),
        |bystander| bystander.frames(10),
    );
}

#[test]
fn a_cursor_ahead_of_the_stream_is_cut_off() {
    for delivery in [Delivery::Live, Delivery::Lossless] {
        with_a_liar(
            delivery,
            |_, page, _, _| page.set(raw::CURSOR, 1 << 60),
            |bystander| bystander.frames(10),
        );
    }
}

/// Within its budget a consumer may pin what it likes.
#[test]
fn who_pins_its_budget_disturbs_nobody() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool())
        .max_slots(24)
        .build()
        .unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(30);
    let (_raw, joined) = Raw::join(&place.pool(), 2);
    let (control, page) = (
        Memory::map(&joined.control, false),
        Memory::map(&joined.page, true),
    );
    for slot in 0..2 {
        let word = control.words()[raw::SLOTS + slot].load(Ordering::Relaxed);
        page.halves()[raw::LEASES + slot].store((word >> 32) as u32, Ordering::Relaxed);
    }
    bystander.frames(500);
    assert_eq!(producer.stats().cut_off, 0);
    assert_eq!(page.words()[raw::FLAGS].load(Ordering::Relaxed), 0);
}

#[test]
fn nonsense_after_joining_cuts_off_and_says_so() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
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
fn a_peer_that_never_reads_holds_nobody_up() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(5);
    let (raw, _joined) = Raw::join(&place.pool(), 1);
    for n in 0..5000u32 {
        // Regions and states that there are, and others.
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

/// What the kernel does with descriptors that a consumer got, however it tries.
#[test]
fn a_consumer_can_change_neither_frames_nor_control_memory() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    producer.set_sticky(&xmem_core::Sticky::new()).unwrap();
    let own = publish(&producer, 1, SIZE);
    let (raw, joined) = Raw::join(&place.pool(), 1);
    raw.send(&raw::get_region(1), &[]).unwrap();
    let region = raw.recv_kind(3).1.remove(0);
    raw.send(&raw::get_sticky(2), &[]).unwrap();
    let sticky = raw.recv_kind(5).1.remove(0);
    for (what, fd) in [
        ("region", &region),
        ("control memory", &joined.control),
        ("sticky state", &sticky),
    ] {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
        let again = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path);
        for fd in [Some(fd.as_fd()), again.as_ref().ok().map(AsFd::as_fd)]
            .into_iter()
            .flatten()
        {
            assert!(rustix::io::pwrite(fd, b"x", 0).is_err(), "write to {what}");
            assert!(Memory::try_map(fd, true).is_err(), "map {what} writable");
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert!(fallocate(fd, punch, 0, 4096).is_err(), "punch {what}");
            assert!(
                fallocate(fd, FallocateFlags::ZERO_RANGE, 0, 4096).is_err(),
                "zero {what}"
            );
        }
    }
    for (what, fd) in [
        ("region", &region),
        ("control memory", &joined.control),
        ("sticky state", &sticky),
        ("lease page", &joined.page),
    ] {
        assert!(ftruncate(fd, 0).is_err(), "shrink {what}");
        assert!(ftruncate(fd, 1 << 30).is_err(), "extend {what}");
        assert!(
            rustix::fs::fcntl_add_seals(fd, rustix::fs::SealFlags::WRITE).is_err(),
            "seal {what}"
        );
    }
    // Holes in its own lease page are its own business.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&joined.page, punch, 0, 4096).unwrap();
    assert_frame(&own, 1, SIZE);
    Bystander::new(&producer).frames(100);
}

/// Connects to a producer made by hand, and takes frames as long as there may be some. Errors are fine; anything
/// else, such as a signal or a wait without an end, is not.
fn consume(place: &Place) -> Result<Vec<ReceiveError>, ConnectError> {
    consume_waiting(place, [Duration::from_millis(5); 5])
}

/// The same, with a time for each frame.
fn consume_waiting(place: &Place, times: [Duration; 5]) -> Result<Vec<ReceiveError>, ConnectError> {
    let mut consumer = Consumer::builder(&place.pool()).connect()?;
    let mut errors = Vec::new();
    for time in times {
        match consumer.receive(Some(time)) {
            // Only its own bytes may be looked at.
            Ok(frame) => {
                frame.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            }
            Err(error) => errors.push(error),
        }
    }
    let _ = (consumer.stats(), consumer.sticky());
    Ok(errors)
}

/// Answers a consumer's questions until it goes.
fn answer_all(raw: &Raw, mut answer: impl FnMut(&[u8]) -> raw::Message) {
    while let Some((question, _)) = raw.recv() {
        if matches!(question[0], 3 | 4) {
            let (bytes, fds) = answer(&question);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let _ = raw.send(&bytes, &fds);
        }
    }
}

#[test]
fn a_producer_whose_memory_makes_no_sense_is_refused() {
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
        ("another version", odd(&[(1, 2)])),
        ("no slots", odd(&[(2, 0)])),
        ("too many slots", odd(&[(2, 1 << 20)])),
        ("slots beyond its end", odd(&[(2, 1 << 16)])),
        ("far too many slots", odd(&[(2, u64::MAX)])),
        ("no ring", odd(&[(3, 0)])),
        ("an odd ring", odd(&[(3, 63)])),
        ("a ring beyond its end", odd(&[(3, 1 << 18)])),
        ("a far too long ring", odd(&[(3, 1 << 40)])),
    ];
    for (what, control) in &controls {
        std::thread::scope(|scope| {
            scope.spawn(|| fake.answer(&raw::welcome(raw::VERSION), &[control, &page()]));
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
    let welcomes: Vec<(Vec<u8>, Vec<&OwnedFd>)> = vec![
        (raw::welcome(raw::VERSION), vec![]),
        (raw::welcome(raw::VERSION), vec![&control]),
        (raw::welcome(raw::VERSION), vec![&control, &good, &good]),
        (raw::welcome(raw::VERSION), vec![&control; 10]),
        (raw::welcome(raw::VERSION), vec![&control, &small]),
        (raw::welcome(raw::VERSION), vec![&control, &unsealed]),
        (raw::welcome(raw::VERSION), vec![&control, &null]),
        (raw::region(1, 1, 0, ""), vec![&control, &good]),
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
            query(&place.pool()).expect_err("no figures");
        });
    }
    // One that hangs up, and one that says nothing.
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

#[test]
fn a_producer_that_writes_random_words_crashes_nobody() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    for seed in 0..150 {
        let mut random = Random(seed);
        let (control_fd, control) = raw::control(None);
        for word in 7..control.words().len() {
            // Mostly small numbers: they get further.
            let value = random.next() >> random.below(64);
            control.set(word, value);
        }
        // Entries that would be next, more or less well-formed.
        let head = random.next() >> random.below(60);
        for sequence in head.saturating_sub(5)..head {
            let words: Vec<(usize, u64)> = (0..random.below(4))
                .map(|_| {
                    let at = 1 + random.below(12) as usize;
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
                let raw = fake.answer(&raw::welcome(raw::VERSION), &[&control_fd, &page_fd]);
                answer_all(&raw, |question| match (question[0], random.below(6)) {
                    (3, 0) => (question_to_no(question), vec![]),
                    (3, 1) => (raw::region(1, 8192, 0, ""), vec![raw::memory(4096, true)]),
                    (3, 2) => (raw::region(1, 4096, 1, "/xmem-none"), vec![]),
                    (3, 3) => (raw::region(1, 4096, 2, ""), vec![]),
                    (3, _) => (
                        region_for(question, 8192),
                        vec![raw::memory(8192, random.below(4) > 0)],
                    ),
                    (_, 0) => (question_to_no(question), vec![]),
                    (_, 1) => (sticky_for(question), vec![raw::memory(3, true)]),
                    (_, 2) => (sticky_for(question), vec![]),
                    _ => (sticky_for(question), vec![raw::memory(4096, true)]),
                });
            });
            // `Ok` or `Err`, as long as it comes back.
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

/// A fake producer that answers as it should, with one entry published by it. Returns what the consumer makes of it.
fn with_entry(entry: &[(usize, u64)], times: [Duration; 5]) -> Vec<ReceiveError> {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let (control_fd, control) = raw::control(None);
    raw::publish_entry(&control, 0, entry);
    let page = raw::memory(1 << 16, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let raw = fake.answer(&raw::welcome(raw::VERSION), &[&control_fd, &page]);
            answer_all(&raw, |question| match question[0] {
                3 => (raw::region(1, 8192, 0, ""), vec![raw::memory(8192, true)]),
                _ => (raw::sticky(1), vec![raw::memory(8, true)]),
            });
        });
        consume_waiting(&place, times).unwrap()
    })
}

#[test]
fn entries_that_point_elsewhere_are_an_error() {
    let soon = Duration::from_millis(5);
    let errors = with_entry(&[], [HANG, soon, soon, soon, soon]);
    assert_eq!(
        errors.len(),
        4,
        "the entry itself is a good one: {errors:?}"
    );
    let lies: [(&str, &[(usize, u64)]); 12] = [
        ("a slot after the region", &[(2, 8192)]),
        ("a slot across the region's end", &[(2, 4097)]),
        ("a slot at the end of the address space", &[(2, u64::MAX)]),
        ("a slot larger than the region", &[(3, 8193)]),
        ("a slot as large as the address space", &[(3, u64::MAX)]),
        ("a payload after its slot", &[(9, 4097), (10, 0)]),
        ("a payload across its slot's end", &[(9, 1)]),
        ("a payload that wraps", &[(9, u64::MAX), (10, 2)]),
        ("a payload larger than its slot", &[(10, 4097)]),
        ("another sequence", &[(5, 3)]),
        ("no generation", &[(6, 1)]),
        ("a region of no number", &[(1, u64::MAX)]),
    ];
    for (what, lie) in lies {
        let errors = with_entry(lie, [HANG; 5]);
        assert!(
            errors
                .iter()
                .all(|error| matches!(error, ReceiveError::Corrupt(_)))
                && errors.len() == 5,
            "{what}: {errors:?}"
        );
    }
    // Such as an honest producer may leave behind, too: frames that are gone.
    for (what, lie) in [
        ("no such slot", (6, 77 | 5 << 32)),
        ("another generation", (6, 1 | 4 << 32)),
    ] {
        let errors = with_entry(&[lie], [soon; 5]);
        assert!(
            errors
                .iter()
                .all(|error| matches!(error, ReceiveError::Timeout)),
            "{what}: {errors:?}"
        );
    }
}

#[test]
fn a_stream_that_jumps_ahead_ends_no_receive() {
    // Live with an impossible history, and lossless: neither may look through all that is not there, nor run after a
    // head that runs away.
    for mode in [(6, u64::from(u32::MAX)), (5, 1)] {
        for (head, runs) in [(1 << 40, false), (u64::MAX, false), (1 << 40, true)] {
            let place = Place::new();
            let fake = Fake::at(place.pool());
            let (control_fd, control) = raw::control(None);
            control.set(mode.0, mode.1);
            control.set(raw::HEAD, head);
            let page = raw::memory(1 << 16, true);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
                scope.spawn(|| {
                    while runs && !done.load(Ordering::Relaxed) {
                        control.words()[raw::HEAD].fetch_add(1, Ordering::Release);
                    }
                });
                scope.spawn(|| {
                    let raw = fake.answer(&raw::welcome(raw::VERSION), &[&control_fd, &page]);
                    answer_all(&raw, |_| (raw::sticky(1), vec![]));
                });
                assert_eq!(consume(&place).unwrap().len(), 5);
            });
        }
    }
}

/// A consumer maps what the sizes ask for, not what an untrusted producer sends.
#[test]
fn oversized_memory_is_not_mapped_whole() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    // Nothing of it is there until somebody touches it.
    let (control_fd, _control) = raw::control(Some(256 << 20));
    let page = raw::memory(256 << 20, true);
    let file = |fd: &OwnedFd| {
        let stat = rustix::fs::fstat(fd).unwrap();
        stat.st_blocks as u64 * 512
    };
    std::thread::scope(|scope| {
        let raw = scope.spawn(|| fake.answer(&raw::welcome(raw::VERSION), &[&control_fd, &page]));
        let consumer = Consumer::builder(&place.pool()).connect().unwrap();
        for fd in [&control_fd, &page] {
            assert!(file(fd) < 1 << 20, "{} bytes were touched", file(fd));
        }
        drop((consumer, raw));
    });
}

#[test]
fn other_programs_keep_what_is_theirs() {
    for kind in [SocketType::STREAM, SocketType::DGRAM, SocketType::SEQPACKET] {
        let place = Place::new();
        let theirs = Fake::of_kind(place.pool(), kind);
        let error = Producer::builder(&place.pool()).build().unwrap_err();
        assert!(
            matches!(error, CreateError::InUse { .. }),
            "{kind:?}: {error}"
        );
        assert!(
            std::fs::symlink_metadata(place.pool()).is_ok(),
            "{kind:?}: their socket is gone"
        );
        if kind != SocketType::SEQPACKET {
            let error = Consumer::builder(&place.pool()).connect().unwrap_err();
            assert!(
                matches!(&error, ConnectError::Protocol { reason, .. } if reason.contains("another program")),
                "{error}"
            );
        }
        drop(theirs);
        // Now it is nobody's.
        drop(Producer::builder(&place.pool()).build().unwrap());
        place.assert_clean();
    }
    // Files that are not sockets.
    let place = Place::new();
    std::fs::write(place.pool(), "mine").unwrap();
    let error = Producer::builder(&place.pool()).build().unwrap_err();
    assert!(matches!(error, CreateError::NotASocket { .. }), "{error}");
    assert!(Consumer::builder(&place.pool()).connect().is_err());
    assert_eq!(std::fs::read_to_string(place.pool()).unwrap(), "mine");
    assert_eq!(place.files().len(), 1);
    std::fs::remove_file(place.pool()).unwrap();
    std::fs::create_dir(place.pool()).unwrap();
    assert!(matches!(
        Producer::builder(&place.pool()).build(),
        Err(CreateError::NotASocket { .. })
    ));
    std::fs::remove_dir(place.pool()).unwrap();
    std::os::unix::fs::symlink("/dev/null", place.pool()).unwrap();
    assert!(Producer::builder(&place.pool()).build().is_err());
}

#[test]
fn bad_names_are_refused_on_both_sides() {
    let long = "x".repeat(200);
    let path = format!("/tmp/{}", "y".repeat(120));
    for name in ["", "a\nb", "a\0b", "/tmp/", ".", "..", &long, &path] {
        let error = Producer::builder(name).build().unwrap_err();
        assert!(matches!(error, CreateError::Name(_)), "{name:?}: {error}");
        let error = Consumer::builder(name).connect().unwrap_err();
        assert!(matches!(error, ConnectError::Name(_)), "{name:?}: {error}");
        let error = Consumer::builder(name).connect_wait(None).unwrap_err();
        assert!(matches!(error, ConnectError::Name(_)), "{name:?}: {error}");
        assert!(query(name).is_err());
    }
    let place = Place::new();
    let nowhere = place.path().join("none/p.sock");
    let nowhere = nowhere.to_str().unwrap();
    assert!(matches!(
        Producer::builder(nowhere).build(),
        Err(CreateError::Name(NameError::NoDirectory { .. }))
    ));
    assert!(matches!(
        Consumer::builder(nowhere).connect(),
        Err(ConnectError::NotFound { .. })
    ));
    for (history, max_slots) in [(2, 3), (1, 0), (300, 256), (1, u32::MAX), (u32::MAX, 256)] {
        let builder = Producer::builder(&place.pool())
            .history(history)
            .max_slots(max_slots);
        let error = builder.build().unwrap_err();
        assert!(
            matches!(&error, CreateError::Settings(text) if text.contains("max-slots")),
            "{error}"
        );
    }
    place.assert_clean();
}

/// What the children do.
#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    match role.as_str() {
        "foreign-dir" => foreign_dir(),
        "no-descriptors" => no_descriptors(&pool),
        "no-file-size" => no_file_size(&pool),
        "full-dev-shm" => full_dev_shm(&pool),
        other => panic!("no role {other}"),
    }
    say("done");
}

#[track_caller]
fn run_child(role: &str, place: &Place) {
    let mut child = Child::start(role, &place.pool());
    assert_eq!(child.says(), "done");
    assert!(child.end());
}

/// Its runtime directory belongs to somebody else.
fn foreign_dir() {
    let error = Producer::builder("p").build().unwrap_err();
    assert!(
        matches!(&error, CreateError::Name(NameError::RuntimeDir { reason, .. }) if reason.contains("belongs to user")),
        "{error}"
    );
    assert!(error.to_string().contains("XMEM_RUNTIME_DIR"));
}

#[test]
fn a_runtime_dir_of_somebody_else_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a directory away");
        return;
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.path(), Some(4242), None).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("XMEM_RUNTIME_DIR", place.path());
    let mut child = Child::from(command, "foreign-dir", &place.pool());
    assert_eq!(child.says(), "done");
    assert!(child.end());
    assert!(place.files().is_empty());
}

fn limit(resource: Resource, current: u64) -> Rlimit {
    let before = getrlimit(resource);
    let now = Rlimit {
        current: Some(current),
        ..before
    };
    setrlimit(resource, now).unwrap();
    before
}

fn no_descriptors(pool: &str) {
    let producer = Producer::builder(pool).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(10);
    let own = publish(&producer, 1000, SIZE);
    drop(receive(&mut bystander.consumer));
    // None is left, also not one that another thread closes just now.
    let mut taken: Vec<OwnedFd> = Vec::new();
    let mut take_all = || {
        while let Ok(file) = std::fs::File::open("/dev/null") {
            taken.push(file.into());
        }
    };
    let next: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let free = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
    let before = limit(Resource::Nofile, free);
    take_all();
    let error = producer.acquire(4 << 20).unwrap_err();
    assert!(
        matches!(
            error,
            AcquireError::Region(RegionError::NoSpace { .. } | RegionError::System { .. })
        ),
        "{error}"
    );
    let error = Producer::builder(&format!("{pool}2")).build().unwrap_err();
    assert!(matches!(error, CreateError::System { .. }), "{error}");
    let error = Consumer::builder(pool).connect().unwrap_err();
    assert!(matches!(error, ConnectError::System { .. }), "{error}");
    // What is there goes on, and a state that cannot be kept is said to be so.
    bystander.frames(200);
    take_all();
    assert!(producer.set_sticky(&xmem_core::Sticky::new()).is_err());
    bystander.frames(200);
    assert_frame(&own, 1000, SIZE);
    // One that comes meanwhile is not let in, and does not hang the control thread.
    setrlimit(Resource::Nofile, before).unwrap();
    let late = Raw::connect(pool);
    limit(Resource::Nofile, free);
    let _ = late.send(&raw::join(raw::VERSION, 1), &[]);
    bystander.frames(200);
    // With descriptors again, all is as before.
    setrlimit(Resource::Nofile, before).unwrap();
    drop(late);
    producer.acquire(4 << 20).unwrap();
    let mut consumer = Consumer::builder(pool).connect_wait(Some(HANG)).unwrap();
    bystander.frames(1);
    assert_whole(&receive(&mut consumer));
}

#[test]
fn running_out_of_descriptors_is_an_error_and_passes() {
    run_child("no-descriptors", &Place::new());
}

fn no_file_size(pool: &str) {
    // The signal that comes with the error would end the process.
    ignore_sigxfsz();
    let producer = Producer::builder(pool).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(10);
    let before = limit(Resource::Fsize, 1 << 20);
    for size in [2 << 20, 1 << 30] {
        let error = producer.acquire(size).unwrap_err();
        assert!(
            matches!(error, AcquireError::Region(RegionError::NoSpace { .. })),
            "{error}"
        );
        bystander.frames(50);
    }
    limit(Resource::Fsize, 1);
    let error = Producer::builder(&format!("{pool}2")).build().unwrap_err();
    assert!(matches!(error, CreateError::System { .. }), "{error}");
    let error = Consumer::builder(pool).connect().unwrap_err();
    assert!(
        matches!(&error, ConnectError::Refused { reason, .. } if reason.contains("lease page")),
        "{error}"
    );
    bystander.frames(50);
    setrlimit(Resource::Fsize, before).unwrap();
    producer.acquire(2 << 20).unwrap();
    drop(Consumer::builder(pool).connect().unwrap());
    assert_eq!(producer.stats().dropped, 0);
}

#[allow(unsafe_code)] // signal
fn ignore_sigxfsz() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[test]
fn memory_that_cannot_be_reserved_is_an_error_and_passes() {
    run_child("no-file-size", &Place::new());
}

/// In a mount namespace of its own, with 1 MiB of /dev/shm.
fn full_dev_shm(pool: &str) {
    let producer = Producer::builder(pool)
        .backing(Backing::PosixShm)
        .build()
        .unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(10);
    for size in [2 << 20, 900_000] {
        let error = producer.acquire(size).unwrap_err();
        assert!(
            matches!(error, AcquireError::Region(RegionError::NoSpace { .. })),
            "{error}"
        );
        bystander.frames(10);
    }
    let segments = std::fs::read_dir("/dev/shm").unwrap().count();
    assert_eq!(segments, 1, "what could not be reserved is not left behind");
    // A full /dev/shm does not concern the other kind.
    let other = Producer::builder(&format!("{pool}2")).build().unwrap();
    publish(&other, 1, 2 << 20);
    drop(bystander);
    drop(producer);
    assert_eq!(std::fs::read_dir("/dev/shm").unwrap().count(), 0);
}

#[test]
fn a_full_dev_shm_is_an_error_and_no_signal() {
    const SCRIPT: &str = "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec \"$0\" \"$@\"";
    let works = Command::new("unshare")
        .args(["--mount", "sh", "-c", SCRIPT, "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: no mount namespace to be had here");
        return;
    }
    let place = Place::new();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", SCRIPT])
        .arg(std::env::current_exe().unwrap());
    let mut child = Child::from(command, "full-dev-shm", &place.pool());
    assert_eq!(child.says(), "done");
    assert!(child.end());
    place.assert_clean();
}
