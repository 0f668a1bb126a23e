// SPDX-License-Identifier: MPL-2.0

//! Producers that send endlessly and change sent data, and consumers without space for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::SealFlags;
use rustix::process::{Resource, setrlimit};
use xmem_core::{
    BufferPool, ConnectError, Consumer, Delivery, FrameMeta, ReceiveError, Sticky, SystemError,
};

use crate::figures::Figures;
use crate::limits::{limit, take_all_descriptors};
use crate::support::child::{Child, read_line, reply};
use crate::support::raw::{self, Fake, Memory};
use crate::support::*;
use crate::{OnDrop, SIZE, run_child};

/// A sticky state of this size, as it is sent.
fn sticky_memory(len: u32) -> OwnedFd {
    let body = [&1u32.to_le_bytes()[..], b"k", &len.to_le_bytes()].concat();
    let total = body.len() as u64 + u64::from(len);
    let fd = raw::memory(total + 8, false);
    let bytes = [&total.to_le_bytes()[..], &body].concat();
    rustix::io::pwrite(&fd, &bytes, 0).unwrap();
    raw::seal(&fd, raw::SIZE | SealFlags::WRITE);
    fd
}

/// A consumer whose producer sends one message after another, with different numbers, while the consumer exists.
fn flood(pool: &str, enough: u32, message: impl Fn(u32) -> Vec<u8> + Sync, fd: Option<&OwnedFd>) {
    let fake = Fake::at(pool);
    let (control_fd, _control) = raw::control(None);
    let page = raw::memory(1 << 16, true);
    let sent = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
        scope.spawn(|| {
            let raw = fake.welcome(&control_fd, &page);
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            while !done.load(Ordering::Relaxed) {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                let _ = raw.send(&message(number), &fds);
            }
        });
        let mut consumer = Consumer::builder(pool).connect().unwrap();
        eventually("enough was sent", || {
            assert!(matches!(
                consumer.receive(Some(Duration::from_millis(1))),
                Err(ReceiveError::Timeout)
            ));
            sent.load(Ordering::Relaxed) >= enough
        });
        // Also while messages arrive.
        drop(consumer);
    });
    std::fs::remove_file(pool).unwrap();
}

/// In a separate process, whose figures are measured.
pub(crate) fn flooded(pool: &str) {
    flood(pool, 1000, raw::no_region, None);
    let before = Figures::own();
    let grown = |what: &str, mappings: usize, mib: usize| {
        let now = Figures::own();
        assert!(now.descriptors <= before.descriptors + 2, "{what}: {now:?}");
        assert!(
            now.mappings <= before.mappings + mappings,
            "{what}: {now:?}"
        );
        assert!(
            now.anonymous <= before.anonymous + mib * 1024,
            "{what}: {now:?}"
        );
    };
    flood(pool, 200_000, raw::no_region, None);
    grown("news of regions", 10, 4);
    flood(pool, 200_000, |n| raw::no_sticky(n.into()), None);
    grown("states that are gone", 10, 4);
    let region = raw::frozen(4096);
    flood(pool, 5000, |n| raw::region(n, 4096, 0, ""), Some(&region));
    grown("regions", 10, 4);
}

/// The figures are measured while the consumer exists. Afterwards all its memory is freed.
pub(crate) fn flooded_alive(pool: &str) {
    let fake = Fake::at(pool);
    let (control_fd, _control) = raw::control(None);
    let page = raw::memory(1 << 16, true);
    let region = raw::frozen(4096);
    let (sticky, last) = (sticky_memory(4 << 20), sticky_memory(1));
    let before = Figures::own();
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            let welcome = raw::welcome(raw::VERSION);
            let raw = fake
                .answer(&welcome, &[&control_fd, &page, &raw::wake_socket()])
                .patient();
            for n in 0..200_000 {
                raw.send(&raw::no_region(n), &[]).unwrap();
                raw.send(&raw::no_sticky(n.into()), &[]).unwrap();
            }
            for n in 0..5000 {
                raw.send(&raw::region(n, 4096, 0, ""), &[region.as_fd()])
                    .unwrap();
            }
            for n in 0..100 {
                let message = raw::sticky(500_000 + n);
                raw.send(&message, &[sticky.as_fd()]).unwrap();
            }
            let message = raw::sticky(1_000_000);
            raw.send(&message, &[last.as_fd()]).unwrap();
            raw
        });
        let consumer = Consumer::builder(pool).connect().unwrap();
        let _raw = flooding.join().unwrap();
        eventually("the last state came", || {
            consumer
                .sticky()
                .is_some_and(|sticky| sticky.get("k").is_some_and(|value| value.len() == 1))
        });
        let now = Figures::own();
        assert!(now.mappings < before.mappings + 100, "{before:?} {now:?}");
        assert!(
            now.anonymous < before.anonymous + (100 << 10),
            "{before:?} {now:?}"
        );
        drop(consumer);
    });
}

#[test]
fn a_flood_of_messages_fills_no_consumer_and_delays_none() {
    run_child("flooded", &Place::new());
    run_child("flooded-alive", &Place::new());
}

/// Changes all memory while consumers read, and sends answers of all kinds.
#[test]
fn a_producer_that_changes_everything_meanwhile_crashes_no_consumer() {
    let zoo = zoo();
    // A consumer mostly waits for answers that do not come.
    std::thread::scope(|scope| {
        for first in 0..5 {
            let zoo = &zoo;
            scope.spawn(move || (first..20).step_by(5).for_each(|seed| meanwhile(seed, zoo)));
        }
    });
}

/// One producer that changes everything, and its consumers.
fn meanwhile(seed: u64, zoo: &[OwnedFd]) {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let buffers = place.path().join("buffers").to_str().unwrap().to_owned();
    let writer = format!("{buffers}.b00");
    let fake_writer = Fake::at(writer.clone());
    let (control_fd, control) = raw::control(None);
    control.set(raw::BY_NUMBER, 1);
    for sequence in 0..8 {
        raw::publish_entry(&control, sequence, &[]);
    }
    let page_fd = raw::memory(1 << 16, true);
    let page = Memory::map(&page_fd, true);
    let done = AtomicBool::new(false);
    let serve = |fake: &Fake, random: &mut Random| {
        let raw = fake.welcome(&control_fd, &page_fd);
        while let Some((question, _)) = raw.recv() {
            for _ in 0..=random.below(2) {
                let (answer, fds) = answer(&question, zoo, random);
                let _ = raw.send(&answer, &fds);
            }
        }
    };
    std::thread::scope(|scope| {
        let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
        scope.spawn(|| scribble(&control, &page, &done, &mut Random(seed)));
        scope.spawn(|| serve(&fake, &mut Random(!seed)));
        scope.spawn(|| {
            let mut random = Random(seed.rotate_left(7));
            while !done.load(Ordering::Relaxed) {
                serve(&fake_writer, &mut random);
            }
        });
        let soon = Some(Duration::from_millis(1));
        let consumer = Consumer::builder(place.pool()).connect();
        if let Ok(mut consumer) = consumer {
            for _ in 0..100 {
                if let Ok(frame) = consumer.receive(soon) {
                    frame
                        .bytes()
                        .unwrap()
                        .iter()
                        .fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                }
            }
            let _ = (consumer.stats(), consumer.sticky(), consumer.held());
        } else {
            // Its constants were invalid: the thread waits for one more connection.
            let _ = raw::Raw::connect(&place.pool()).send(&raw::join(raw::VERSION, 1), &[]);
        }
        let pool = BufferPool::new(&buffers).unwrap();
        // Each consumer joins again after its predecessor was refused.
        for slot in 0..3 {
            if let Ok(buffer) = pool.get(slot << 12) {
                let bytes = buffer.as_cpu_slice().unwrap();
                bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            }
        }
        done.store(true, Ordering::Relaxed);
        drop(pool);
        let _ = raw::Raw::connect(&writer).send(&raw::join(raw::VERSION, 1), &[]);
    });
}

/// Writes valid and invalid values.
fn scribble(control: &Memory, page: &Memory, done: &AtomicBool, random: &mut Random) {
    let words = control.words();
    for count in 1_u64.. {
        if done.load(Ordering::Relaxed) {
            return;
        }
        if count.is_multiple_of(1000) {
            // The consumer mostly waits, so other tests have the processor.
            std::thread::sleep(Duration::from_micros(100));
        }
        match random.below(8) {
            0 => {
                // A random position, mostly a small number. The first words are changed less often, because a consumer reads them
                // first.
                let at = random.below(words.len() as u64) as usize;
                if at > 16 || random.below(50) == 0 {
                    words[at].store(random.next() >> random.below(64), Ordering::Relaxed);
                }
            }
            1 => page.set(random.below(16) as usize, random.next() >> random.below(64)),
            2 => {
                let word = random.below(8) << 32 | random.below(4);
                control.set(raw::SLOTS + random.below(4) as usize, word);
            }
            3 => control.set(
                raw::SLOTS + 4 + random.below(2) as usize,
                random.below(1 << 34),
            ),
            4 => {
                let value = random.next() >> random.below(64);
                let word = match random.below(3) {
                    0 => raw::of_place(random.below(3) as usize),
                    1 => raw::of_layout(random.below(34) as usize),
                    _ => raw::of_extension(random.below(64 * 48) as usize),
                };
                control.set(word, value);
            }
            _ => {
                let sequence = page.words()[raw::CURSOR].load(Ordering::Relaxed) % (1 << 40);
                let at = 1 + random.below(15) as usize;
                let lie = (at, random.next() >> random.below(64));
                let lies = [lie];
                let lies = if random.below(2) == 0 { &lies[..] } else { &[] };
                raw::publish_entry(control, sequence + random.below(3), lies);
            }
        }
    }
}

/// Descriptors of many kinds.
fn zoo() -> Vec<OwnedFd> {
    let open = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    vec![
        raw::frozen(8192),
        raw::frozen(8192),
        raw::memory(8192, true),
        raw::memory(8192, false),
        raw::frozen(4096),
        raw::sparse(8192),
        sticky_memory(100),
        sticky_memory(1),
        open("/dev/null"),
        open("/dev/zero"),
        open("/tmp"),
        pipe,
    ]
}

/// An answer to a request, or another message, with a fitting or any other descriptor.
fn answer<'a>(
    question: &[u8],
    zoo: &'a [OwnedFd],
    random: &mut Random,
) -> (Vec<u8>, Vec<std::os::fd::BorrowedFd<'a>>) {
    let number = |random: &mut Random| random.next() >> random.below(64);
    let request = question
        .get(1..5)
        .map_or(0, |it| u32::from_le_bytes(it.try_into().unwrap()));
    let len = [8192, 4096, 0, number(random)][random.below(4) as usize];
    let mut message = match (question[0], random.below(8)) {
        (3, 0..=4) => raw::region(request, len, (random.below(5) / 3) as u8, "/xmem-none"),
        (4, 0..=4) => [&[5], &question[1..]].concat(),
        (_, 5) => raw::no_region(number(random) as u32),
        (_, 6) => raw::no_sticky(number(random)),
        _ => raw::welcome(raw::VERSION),
    };
    if random.below(12) == 0 {
        let at = random.below(message.len() as u64) as usize;
        message[at] ^= 1 << random.below(8);
    }
    if random.below(40) == 0 {
        message.truncate(random.below(message.len() as u64) as usize + 1);
    }
    let count = [1, 1, 1, 1, 0, 2, 4, 5][random.below(8) as usize];
    let fds = (0..count)
        .map(|_| zoo[random.below(zoo.len() as u64) as usize].as_fd())
        .collect();
    (message, fds)
}

/// A consumer in a process that has no memory or descriptors for the next region, and later has.
fn short_of(pool: &str, make_short: impl FnOnce() -> Box<dyn FnOnce()>) {
    let mut consumer = Consumer::builder(pool).connect_wait(Some(HANG)).unwrap();
    reply("ready");
    assert_frame(&receive(&mut consumer), 0, SIZE);
    let relieve = make_short();
    reply("short");
    read_line();
    for _ in 0..3 {
        let error = consumer.receive(Some(HANG)).map(drop).unwrap_err();
        assert!(matches!(error, ReceiveError::Region(_)), "{error:?}");
        assert_contains(&error.to_string(), "(ulimit -");
    }
    let error = Consumer::builder(pool).connect().unwrap_err();
    assert!(matches!(error, ConnectError::System { .. }), "{error}");
    relieve();
    let frame = receive(&mut consumer);
    assert_frame(&frame, 1, 16 << 20);
    assert_eq!(frame.sticky().text("n"), Some("1"));
    drop(Consumer::builder(pool).connect().unwrap());
}

pub(crate) fn short_of_descriptors(pool: &str) {
    // With few free descriptors, joining returns an error, whichever descriptor is missing.
    let mut taken = Vec::new();
    let before = limit(Resource::Nofile, 100);
    let mut joined = 0;
    for _ in 0..100 {
        match Consumer::builder(pool).connect_wait(Some(HANG)) {
            Ok(_) => joined += 1,
            Err(error) => assert!(
                matches!(&error, ConnectError::System(SystemError { error, .. })
                    if error.raw_os_error() == Some(libc::EMFILE)),
                "{error}"
            ),
        }
        taken.extend(std::fs::File::open("/dev/null"));
    }
    assert!(joined > 10 && taken.len() < 100, "{joined}");
    drop(taken);
    setrlimit(Resource::Nofile, before).unwrap();
    short_of(pool, || {
        let free: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let before = limit(
            Resource::Nofile,
            std::os::fd::AsRawFd::as_raw_fd(&free) as u64,
        );
        let taken = take_all_descriptors();
        Box::new(move || {
            setrlimit(Resource::Nofile, before).unwrap();
            drop((taken, free));
        })
    });
}

pub(crate) fn short_of_memory(pool: &str) {
    // No memory may be locked.
    limit(Resource::Memlock, 0);
    short_of(pool, || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        let page = rustix::param::page_size() as u64;
        let before = limit(Resource::As, pages * page + (1 << 20));
        Box::new(move || setrlimit(Resource::As, before).unwrap())
    });
}

#[test]
fn a_consumer_short_of_descriptors_or_memory_loses_nothing() {
    let roles = ["short-of-descriptors", "short-of-memory"];
    let deliveries = [Delivery::Lossless, Delivery::Live];
    for (role, delivery) in roles.map(|role| deliveries.map(|it| (role, it))).concat() {
        let place = Place::new();
        let producer = place.producer(|it| it.delivery(delivery));
        let mut child = Child::start(role, &place.pool()).ready();
        publish(&producer, 0, SIZE);
        assert_eq!(child.reply(), "short");
        let mut sticky = Sticky::new();
        sticky.set("n", "1");
        producer.set_sticky(&sticky).unwrap();
        let size = 16 << 20;
        let mut slot = producer.acquire(size).unwrap();
        fill(1, slot.as_mut_slice());
        let meta = FrameMeta::new(size).pts(1);
        slot.publish(meta).unwrap();
        child.send("go on");
        assert_eq!(child.reply(), "done", "{role}, {delivery:?}");
        assert!(child.end());
        eventually("it is gone", || producer.stats().consumers.is_empty());
    }
}
