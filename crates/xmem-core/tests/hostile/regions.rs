// SPDX-License-Identifier: MPL-2.0

//! Producers whose memory differs from its description, or could shrink.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll::CreateFlags;
use rustix::fs::{Mode, OFlags, SealFlags};
use xmem_core::{ConnectError, Consumer, Producer, ReceiveError};

use crate::producers::{answer_all, consume_waiting};
use crate::support::raw::{self, Fake, Memory, Raw};
use crate::support::*;

/// A consumer maps the size that it needs, not the size that an untrusted producer sends. It only maps existing memory, because
/// touching missing pages would allocate memory of the consumer's user.
#[test]
fn oversized_memory_is_mapped_in_part() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let (control, memory) = raw::control(Some(16 << 20));
    let page = raw::memory(16 << 20, true);
    let before = mapped_bytes();
    std::thread::scope(|scope| {
        let raw = scope.spawn(|| fake.welcome(&control, &page));
        let consumer = Consumer::builder(place.pool()).connect().unwrap();
        // The test's own mapping of the control memory has its full size.
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
    for (at, word) in good.1.words()[..8].iter().enumerate() {
        memory.set(at, word.load(Ordering::Relaxed));
    }
    memory.set(raw::MAX_SLOTS, 1 << 16);
    memory.set(raw::RING_LEN, 1 << 18);
    let page = raw::sparse(1 << 20);
    raw::seal(&page, raw::SIZE);
    let there = raw::memory(1 << 20, true);
    for (control, page) in [(&control, &there), (&good.0, &page)] {
        std::thread::scope(|scope| {
            scope.spawn(|| fake.welcome(control, page));
            let error = Consumer::builder(place.pool()).connect().unwrap_err();
            assert!(
                matches!(&error, ConnectError::Protocol { reason, .. } if reason.contains("reserved")),
                "{error}"
            );
        });
        assert!(raw::touched(control).min(raw::touched(page)) < 1 << 16);
    }
}

/// The size of this process's mappings of memfds.
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

/// A fake producer with one valid entry. It answers the request for its region with this message.
fn with_region(message: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<ReceiveError> {
    with_region_waiting(message, fds, [Duration::from_millis(5); 5])
}

/// As `with_region`, for an answer whose effect is a frame or the loss of the producer, which may take time on a busy machine.
fn with_region_that_shows(message: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<ReceiveError> {
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
            let raw = fake.welcome(&control_fd, &page);
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
fn regions_that_could_disappear_are_not_mapped() {
    let region = |len| raw::region(1, len, 0, "");
    let frame = with_region_that_shows(&region(8192), &[raw::frozen(8192).as_fd()]);
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
    // Memory of another program, with parts of frames. The frame of this producer has none, so it is invalid.
    let imported = raw::region(1, 8192, 3, "");
    let used = with_region_that_shows(&imported, &[raw::frozen(8192).as_fd()]);
    assert!(matches!(used[0], ReceiveError::Corrupt(_)), "{used:?}");
    for (what, fd) in &kinds {
        refused(what, with_region(&imported, &[fd.as_fd()]));
    }
    // No descriptor, and more than one.
    refused("none", with_region(&region(8192), &[]));
    let good = raw::frozen(8192);
    let two = with_region(&region(8192), &[kinds[0].1.as_fd(), good.as_fd()]);
    refused("a bad and a good one", two);
    for len in [0, 8193, 1 << 40, u64::MAX, i64::MAX as u64] {
        refused("another size", with_region(&region(len), &[good.as_fd()]));
    }
    // More descriptors than a message may have, and an unknown kind: this is not a producer.
    for (region, fds) in [
        (region(8192), vec![good.as_fd(); 100]),
        (raw::region(1, 4096, 2, ""), Vec::new()),
    ] {
        let errors = with_region_that_shows(&region, &fds);
        assert!(
            errors
                .iter()
                .all(|e| matches!(e, ReceiveError::ProducerLost)),
            "{errors:?}"
        );
    }
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
}

/// A fake producer answers the request for a slot's DMA buffer with this message. Waits for its effect for `time`.
fn with_dmabuf(message: &[u8], fds: &[BorrowedFd<'_>], time: Duration) -> ReceiveError {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let (control_fd, control) = raw::control(None);
    raw::publish_entry(&control, 0, &[]);
    let page = raw::memory(1 << 16, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let raw = fake.welcome(&control_fd, &page);
            let region = raw::region(1, 8192, 0, "");
            answer_all(&raw, |question| match question[0] {
                3 => (region.clone(), vec![raw::frozen(8192)]),
                4 => (raw::sticky(1), vec![raw::memory(8, true)]),
                _ => {
                    let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap());
                    (message.to_vec(), fds.collect())
                }
            });
        });
        let mut consumer = place.consumer(|it| it.dmabuf(true));
        consumer.receive(Some(time)).unwrap_err()
    })
}

#[test]
fn what_is_no_dma_buffer_is_refused() {
    let sealed = raw::frozen(8192);
    for fds in [&[][..], &[sealed.as_fd()]] {
        let error = with_dmabuf(&raw::dmabuf(1, 0), fds, HANG);
        assert!(
            matches!(&error, ReceiveError::NoDmabuf(why) if why.contains("no DMA buffer")),
            "{error}"
        );
    }
    let misleading = with_dmabuf(&raw::no_dmabuf(1, "no\u{1b}[2J"), &[], HANG);
    assert!(
        matches!(&misleading, ReceiveError::NoDmabuf(why) if why == "no\u{fffd}[2J"),
        "{misleading}"
    );
    // An answer to another request has no effect.
    for message in [raw::dmabuf(2, 0), raw::no_dmabuf(2, "no")] {
        let error = with_dmabuf(&message, &[sealed.as_fd()], Duration::from_millis(300));
        assert!(matches!(error, ReceiveError::Timeout), "{error}");
    }
}

/// Also for slots that do not exist.
#[test]
fn a_consumer_gets_no_dma_buffer_that_is_not_allowed() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    publish(&producer, 0, 300_000);
    let (raw, _joined) = Raw::join(&place.pool(), 8);
    for (region, offset) in [(1, 0), (1, u64::MAX), (0, 0), (7, 1), (u32::MAX, 1 << 40)] {
        raw.send(&raw::get_dmabuf(region, offset), &[]).unwrap();
        let (answer, fds) = raw.recv_kind(12);
        assert_eq!(answer[1..5], region.to_le_bytes());
        assert!(fds.is_empty());
    }
}

/// The header of a region with one slot and frames elsewhere, with changed words.
pub(crate) fn device_region(changes: &[(usize, u64)]) -> OwnedFd {
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
fn invalid_headers_of_device_memory_are_refused() {
    let region = raw::region(1, 8192, 4, "");
    let received = with_region_that_shows(&region, &[device_region(&[]).as_fd()]);
    // The header is accepted. The frame is invalid, because it has no bytes there.
    let outside = |error: &ReceiveError| matches!(error, ReceiveError::Corrupt(what) if what.contains("outside"));
    assert!(
        received.len() == 5 && received.first().is_some_and(outside),
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
