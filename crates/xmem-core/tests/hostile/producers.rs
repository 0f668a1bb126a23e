// SPDX-License-Identifier: MPL-2.0

//! Producers that lie to their consumers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::CreateFlags;
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags, fallocate};
use xmem_core::{BufferPool, ConnectError, Consumer, ReceiveError, WriteAccessError, query};

use crate::OnDrop;
use crate::support::raw::{self, Fake, Memory, Raw};
use crate::support::*;

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
        ("another version", odd(&[(1, u64::from(raw::VERSION) + 1)])),
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
                    let at = 1 + random.below(14) as usize;
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
                3 => (raw::region(1, 8192, 0, ""), vec![raw::frozen(8192)]),
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
    let lies: [(&str, &[(usize, u64)]); 17] = [
        ("a slot after the region", &[(2, 8192)]),
        ("a slot across the region's end", &[(2, 4097)]),
        ("a slot at the end of the address space", &[(2, u64::MAX)]),
        ("a slot larger than the region", &[(3, 8193)]),
        ("a slot as large as the address space", &[(3, u64::MAX)]),
        ("a payload after its slot", &[(11, 4097), (12, 0)]),
        ("a payload across its slot's end", &[(11, 1)]),
        ("a payload that wraps", &[(11, u64::MAX), (12, 2)]),
        ("a payload larger than its slot", &[(12, 4097)]),
        ("attachments after their slot", &[(4, 4097), (5, 1)]),
        ("attachments across their slot's end", &[(4, 4090), (5, 7)]),
        ("attachments that wrap", &[(4, u64::MAX), (5, 2)]),
        ("attachments without end", &[(5, u64::MAX)]),
        ("attachments that are none", &[(4, 0), (5, 3)]),
        ("another sequence", &[(7, 3)]),
        ("no generation", &[(8, 1)]),
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
        ("no such slot", (8, 77 | 5 << 32)),
        ("another generation", (8, 1 | 4 << 32)),
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

/// A consumer maps what the sizes ask for, not what an untrusted producer sends; and only memory that is there, since
/// touching what is not would take it from the consumer.
#[test]
fn oversized_memory_is_not_mapped_whole() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let (control, memory) = raw::control(Some(16 << 20));
    let page = raw::memory(16 << 20, true);
    let before = mapped_bytes();
    std::thread::scope(|scope| {
        let raw = scope.spawn(|| fake.answer(&raw::welcome(raw::VERSION), &[&control, &page]));
        let consumer = Consumer::builder(&place.pool()).connect().unwrap();
        // The test's own mapping of the control memory is as large as all of it.
        assert!(mapped_bytes() < before + (1 << 20));
        drop((consumer, raw));
    });
    drop(memory);

    let sealed = |len: u64| {
        let fd = raw::sparse(len);
        let memory = Memory::map(&fd, true);
        raw::seal(&fd, raw::SIZE | SealFlags::FUTURE_WRITE);
        (fd, memory)
    };
    let good = raw::control(None);
    let (control, memory) = sealed(raw::control_len(1 << 16, 1 << 18));
    for (at, word) in good.1.words()[..7].iter().enumerate() {
        memory.set(at, word.load(Ordering::Relaxed));
    }
    memory.set(2, 1 << 16);
    memory.set(3, 1 << 18);
    let page = raw::sparse(1 << 20);
    raw::seal(&page, raw::SIZE);
    let there = raw::memory(1 << 20, true);
    for (control, page) in [(&control, &there), (&good.0, &page)] {
        std::thread::scope(|scope| {
            scope.spawn(|| fake.answer(&raw::welcome(raw::VERSION), &[control, page]));
            let error = Consumer::builder(&place.pool()).connect().unwrap_err();
            assert!(
                matches!(&error, ConnectError::Protocol { reason, .. } if reason.contains("reserved")),
                "{error}"
            );
        });
        assert!(raw::touched(control).min(raw::touched(page)) < 1 << 16);
    }
}

/// Bytes of descriptors' memory that this process has mapped.
fn mapped_bytes() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("/memfd:fake"))
        .map(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            number(to) - number(from)
        })
        .sum()
}

/// A fake producer with one good entry, that answers the question for its region with this.
fn with_region(message: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<ReceiveError> {
    with_region_waiting(message, fds, [Duration::from_millis(5); 5])
}

/// The same, for a region that is taken: on a busy machine its first frame takes its time.
fn with_good_region(message: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<ReceiveError> {
    let mut times = [Duration::from_millis(5); 5];
    times[0] = HANG;
    with_region_waiting(message, fds, times)
}

fn with_region_waiting(
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    times: [Duration; 5],
) -> Vec<ReceiveError> {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let (control_fd, control) = raw::control(None);
    raw::publish_entry(&control, 0, &[]);
    let page = raw::memory(1 << 16, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let raw = fake.answer(&raw::welcome(raw::VERSION), &[&control_fd, &page]);
            while let Some((question, _)) = raw.recv() {
                match question[0] {
                    3 => drop(raw.send(message, fds)),
                    4 => drop(raw.send(&raw::sticky(1), &[raw::memory(8, true).as_fd()])),
                    _ => {}
                }
            }
        });
        consume_waiting(&place, times).unwrap()
    })
}

#[test]
fn regions_that_could_go_away_are_not_mapped() {
    let region = |len| raw::region(1, len, 0, "");
    let frame = with_good_region(&region(8192), &[raw::frozen(8192).as_fd()]);
    assert_eq!(frame.len(), 4, "this one is as it should be: {frame:?}");

    let dir = tempfile::tempdir().unwrap();
    let on_disk = |name: &str| {
        let file = std::fs::File::create_new(dir.path().join(name)).unwrap();
        file.set_len(8192).unwrap();
        OwnedFd::from(file)
    };
    let in_shm = tempfile::Builder::new()
        .prefix("xmem-test-")
        .tempfile_in("/dev/shm")
        .unwrap();
    in_shm.as_file().set_len(8192).unwrap();
    let in_shm: OwnedFd = in_shm.into_file().into();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let holes = raw::sparse(8192);
    raw::seal(&holes, raw::SIZE | SealFlags::FUTURE_WRITE);
    let open = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
    let only_path = rustix::fs::open("/dev/zero", OFlags::PATH, Mode::empty()).unwrap();
    let grows = raw::memory(8192, false);
    raw::seal(&grows, SealFlags::GROW | SealFlags::FUTURE_WRITE);
    let kinds: [(&str, OwnedFd); 14] = [
        ("can be truncated", raw::memory(8192, false)),
        ("can be truncated, if not extended", grows),
        ("can be punched", raw::memory(8192, true)),
        ("is not there", holes),
        ("too small", raw::frozen(4096)),
        ("empty", raw::memory(0, true)),
        ("a file", on_disk("f")),
        ("a file in memory", in_shm),
        ("a directory", open("/tmp")),
        ("a device", open("/dev/zero")),
        ("a pipe", pipe),
        ("a path", only_path),
        ("a socket", Raw::unconnected().0),
        (
            "an epoll",
            rustix::event::epoll::create(CreateFlags::CLOEXEC).unwrap(),
        ),
    ];
    let refused = |what: &str, errors: Vec<ReceiveError>| {
        assert!(
            errors.len() == 5 && errors.iter().all(|e| matches!(e, ReceiveError::Timeout)),
            "{what}: {errors:?}"
        );
    };
    for (what, fd) in &kinds {
        refused(what, with_region(&region(8192), &[fd.as_fd()]));
    }
    // None, and more than one.
    refused("none", with_region(&region(8192), &[]));
    let good = raw::frozen(8192);
    let two = with_region(&region(8192), &[kinds[0].1.as_fd(), good.as_fd()]);
    refused("a bad and a good one", two);
    for len in [0, 8193, 1 << 40, u64::MAX, i64::MAX as u64] {
        refused("another size", with_region(&region(len), &[good.as_fd()]));
    }
    // More than any message has: whoever sends that is no producer.
    let errors = with_region(&region(8192), &vec![good.as_fd(); 100]);
    assert!(
        errors
            .iter()
            .all(|e| matches!(e, ReceiveError::ProducerLost)),
        "{errors:?}"
    );
    // By name.
    for name in [
        "",
        "/",
        "x",
        "/xmem-none",
        "/../etc/passwd",
        "/xmem-/../x",
        "xmem-a\0b",
    ] {
        refused(name, with_region(&raw::region(1, 4096, 1, name), &[]));
    }
    let file = tempfile::Builder::new()
        .prefix("xmem-test-")
        .tempfile_in("/dev/shm")
        .unwrap();
    file.as_file().set_len(4096).unwrap();
    let name = file
        .path()
        .to_str()
        .unwrap()
        .strip_prefix("/dev/shm")
        .unwrap();
    refused(
        "a segment with holes",
        with_region(&raw::region(1, 4096, 1, name), &[]),
    );
    refused("a number", with_region(&raw::region(1, 4096, 2, ""), &[]));
}

#[test]
fn who_may_not_write_takes_no_grant() {
    // What the welcome says, and what is sent as the region.
    type Case = (&'static str, bool, Vec<u8>, Option<OwnedFd>);
    let segment = tempfile::Builder::new()
        .prefix("xmem-test-")
        .tempfile_in("/dev/shm")
        .unwrap();
    segment.as_file().set_len(8192).unwrap();
    fallocate(segment.as_file(), FallocateFlags::empty(), 0, 8192).unwrap();
    let name = segment.path().to_str().unwrap();
    let name = name.strip_prefix("/dev/shm").unwrap();
    let memfd = || raw::region(1, 8192, 0, "");
    let writable = raw::memory(8192, true);
    let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
    let read_only: OwnedFd = std::fs::File::open(path).unwrap().into();
    let cases: [Case; 5] = [
        ("not asked for", false, memfd(), Some(raw::frozen(8192))),
        (
            "not asked for, writable",
            false,
            memfd(),
            Some(raw::memory(8192, true)),
        ),
        ("by name", true, raw::region(1, 8192, 1, name), None),
        (
            "sealed against writing",
            true,
            memfd(),
            Some(raw::frozen(8192)),
        ),
        ("read-only", true, memfd(), Some(read_only)),
    ];
    let ask = |may: bool, message: &[u8], fd: Option<&OwnedFd>| {
        let place = Place::new();
        let fake = Fake::at(place.pool());
        let (control_fd, _control) = raw::control(None);
        let page = raw::memory(1 << 16, true);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
            scope.spawn(|| {
                let welcome = raw::welcome_of(raw::VERSION, "fake", may);
                let raw = fake.answer(&welcome, &[&control_fd, &page]);
                while let Some((question, _)) = raw.recv() {
                    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
                    let _ = match question[0] {
                        3 => raw.send(message, &fds),
                        7 => {
                            let request = u32::from_le_bytes(question[1..5].try_into().unwrap());
                            raw.send(&raw::granted(request, 4096), &[])
                        }
                        _ => Ok(()),
                    };
                }
            });
            let pool = BufferPool::new(&place.pool()).unwrap();
            let mut buffer = pool.acquire_cpu(4096)?;
            // A signal, if it cannot be written.
            buffer.as_cpu_slice_mut().unwrap().fill(7);
            Ok::<(), WriteAccessError>(())
        })
    };
    ask(true, &memfd(), Some(&writable)).expect("this one is as it should be");
    for (what, may, message, fd) in &cases {
        let error = ask(*may, message, fd.as_ref()).expect_err(what);
        assert!(
            matches!(
                error,
                WriteAccessError::Owner(_) | WriteAccessError::Denied { .. }
            ),
            "{what}: {error}"
        );
    }
}

/// The ring is long, its entries are good, and each slot is claimed for ever.
#[test]
fn a_ring_full_of_claimed_slots_holds_no_receive_up() {
    const RING: u64 = 1 << 18;
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let fd = raw::memory(raw::control_len(4, RING), false);
    let control = Memory::map(&fd, true);
    raw::seal(&fd, raw::SIZE | SealFlags::FUTURE_WRITE);
    let (_good, small) = raw::control(None);
    for word in 0..16 {
        control.set(word, small.words()[word].load(Ordering::Relaxed));
    }
    control.set(3, RING);
    control.set(5, 1);
    for sequence in 0..RING {
        raw::publish_entry_in(&control, RING, sequence, &[]);
    }
    control.set(raw::SLOTS + 1, 5 << 32 | 1);
    let page_fd = raw::memory(1 << 16, true);
    let page = Memory::map(&page_fd, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let raw = fake.answer(&raw::welcome(raw::VERSION), &[&fd, &page_fd]);
            answer_all(&raw, |question| match question[0] {
                3 => (raw::region(1, 8192, 0, ""), vec![raw::frozen(8192)]),
                _ => (raw::sticky(1), vec![raw::memory(8, true)]),
            });
        });
        let mut consumer = Consumer::builder(&place.pool()).connect().unwrap();
        let error = consumer.receive(Some(Duration::from_millis(20)));
        assert!(matches!(error, Err(ReceiveError::Timeout)), "{error:?}");
        let looked_at = page.words()[raw::CURSOR].load(Ordering::Relaxed);
        assert!(
            looked_at < RING,
            "all of the ring without a look at the time"
        );
    });
}

/// The header of a region of one slot whose frames lie elsewhere, with words changed.
fn device_region(changes: &[(usize, u64)]) -> OwnedFd {
    let mut words = vec![0u64; 1024];
    words[0] = u64::from_le_bytes(*b"xmemdev\0");
    words[1] = 1 | 3 << 32; // format, kind
    words[8] = 1; // slots
    words[10] = 4096; // from one slot to the next
    words[11] = 4096; // the first slot
    for (at, word) in changes {
        words[*at] = *word;
    }
    let fd = raw::memory(8192, false);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rustix::io::pwrite(&fd, &bytes, 0).unwrap();
    raw::seal(&fd, raw::SIZE | SealFlags::FUTURE_WRITE);
    fd
}

#[test]
fn headers_of_device_memory_that_make_no_sense_are_refused() {
    let region = raw::region(1, 8192, 4, "");
    let received = with_good_region(&region, &[device_region(&[]).as_fd()]);
    // This one is taken; what makes no sense is the frame, which has no bytes there.
    let outside = |error: &ReceiveError| matches!(error, ReceiveError::Corrupt(what) if what.contains("outside"));
    assert!(
        received.len() == 5 && received.iter().all(outside),
        "{received:?}"
    );

    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let plain = raw::frozen(8192);
    let unsealed = raw::memory(8192, true);
    let vmm = device_region(&[(1, 1 | 1 << 32), (6, 1 << 21), (9, 4096), (12, 4096)]);
    let mut cases: Vec<(String, Vec<OwnedFd>)> = vec![
        ("nothing".into(), vec![]),
        ("no header".into(), vec![plain]),
        ("can be punched".into(), vec![unsealed]),
        ("no memory".into(), vec![null.try_clone().unwrap()]),
        ("memory that did not come".into(), vec![vmm]),
        (
            "memory that it does not have".into(),
            vec![device_region(&[]), null],
        ),
    ];
    let wrong = [
        (0, 1),                // magic
        (1, 2 | 3 << 32),      // format
        (1, 1 | 9 << 32),      // kind
        (1, 1 | 4 << 32),      // slots in upstream's memory
        (6, 1 << 21),          // memory of no kind
        (8, 2),                // more slots than there is room for
        (8, u64::MAX),         // far more
        (8, 1 << 32 | 1),      // a number that is cut
        (10, 8),               // too little room
        (10, u64::MAX),        // far too much
        (10, 4097),            // odd
        (11, 64),              // slots in the header
        (11, 8192),            // slots beyond the end
        (11, u64::MAX - 4095), // far beyond
    ];
    for (at, word) in wrong {
        cases.push((
            format!("word {at} is {word:#x}"),
            vec![device_region(&[(at, word)])],
        ));
    }
    for (what, fds) in &cases {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let errors = with_region(&region, &fds);
        assert!(
            errors.len() == 5 && errors.iter().all(|e| matches!(e, ReceiveError::Timeout)),
            "{what}: {errors:?}"
        );
    }
}
