// SPDX-License-Identifier: MPL-2.0

//! What the children do: a producer and a consumer that do what they are told, line by line.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use xmem_core::cuda::{CudaError, CudaFrame, Device, Mode, Rows, Stream};
use xmem_core::{
    AccessError, BufferPool, Consumer, ForwardError, FrameMeta, Parts, Producer, ReadLease,
    ReceiveError, StartFrom, WriteAccessError,
};

use crate::gpu::Gpu;
use crate::support::HANG;
use crate::support::child::{self, hear, say};

/// Bytes of a frame: more than what the stand-in copies at once.
pub const SIZE: usize = 300_000;

/// Says aloud what the library warns of.
struct Aloud;

impl log::Log for Aloud {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().contains("release-timeout") {
            say(record.args());
        }
    }

    fn flush(&self) {}
}

pub fn play() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    log::set_logger(&Aloud).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    // What a fault point needs is on the way before anything else.
    let mut words = role.split_whitespace();
    #[cfg(feature = "fault-points")]
    if role.starts_with("dying-at ") {
        use xmem_core::fault::{Action, Point, arm};
        words.next();
        let number: usize = words.next().unwrap().parse().unwrap();
        let arrival: u32 = words.next().unwrap().parse().unwrap();
        arm(Point::ALL[number], arrival..arrival + 1, Action::Kill);
    }
    match words.next().unwrap() {
        "produce" => produce(&pool, words.collect()),
        "consume" => consume(&pool, words.collect()),
        "own-buffers" => own_buffers(&pool),
        "read-buffers" => read_buffers(&pool),
        "without-driver" => without_driver(&pool),
        "only-hold" => only_hold(&pool),
        "relay" => relay(&pool, words.next().unwrap()),
        "lied-to" => crate::lies::lied_to(&pool, words.next().unwrap(), words.next().unwrap()),
        other => panic!("no role {other:?}"),
    }
}

/// A frame's bytes are all the low byte of its number, and never 0, which fresh memory is.
pub fn byte(number: u64) -> u8 {
    (number % 255) as u8 + 1
}

fn mode(word: &str) -> Mode {
    match word {
        "vmm" => Mode::Vmm,
        "legacy" => Mode::Legacy,
        _ => Mode::Auto,
    }
}

/// The device, in its primary context, or with the word `elsewhere` in one that the program made.
fn gpu(ordinal: u32, words: &[&str]) -> Gpu {
    if words.contains(&"elsewhere") {
        Gpu::elsewhere(ordinal)
    } else {
        Gpu::new(ordinal)
    }
}

/// Rows as the padding of a source and of a slot may have them: three planes, the last one without gaps.
pub const ROWS: [Rows; 3] = [
    Rows {
        from: 64,
        from_pitch: 1024,
        to: 0,
        to_pitch: 768,
        width: 700,
        height: 90,
    },
    Rows {
        from: 100_000,
        from_pitch: 512,
        to: 70_000,
        to_pitch: 600,
        width: 511,
        height: 45,
    },
    Rows::plain(150_000, 100_000, 3001),
];

/// Memory to which such rows were copied.
pub fn with_rows(mut to: Vec<u8>, from: &[u8]) -> Vec<u8> {
    for rows in ROWS {
        for row in 0..rows.height {
            let (at, of) = (
                rows.to + row * rows.to_pitch,
                rows.from + row * rows.from_pitch,
            );
            to[at..at + rows.width].copy_from_slice(&from[of..of + rows.width]);
        }
    }
    to
}

/// Makes a pool. `words`: mode, most slots, and `elsewhere`.
fn produce(pool: &str, words: Vec<&str>) {
    let gpu = gpu(0, &words);
    let stream = gpu.stream();
    let producer = Producer::builder(pool)
        .cuda_mode(mode(words.first().copied().unwrap_or("auto")))
        .max_slots(words.get(1).map_or(64, |word| word.parse().unwrap()))
        .history(1)
        .release_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let mut next = 0u64;
    let mut publish = |producer: &Producer| -> Result<ReadLease, String> {
        let slot = producer
            .acquire_cuda(SIZE, &gpu.device)
            .map_err(|error| error.to_string())?;
        let on_device = slot.cuda().unwrap();
        assert!(on_device.len() >= SIZE && slot.as_slice().is_empty());
        gpu.fill(stream, on_device.ptr(), SIZE, byte(next));
        let meta = FrameMeta {
            pts: Some(next),
            ..FrameMeta::new(SIZE)
        };
        next += 1;
        slot.publish_on(stream, meta)
            .map_err(|failure| failure.to_string())
    };
    let mut producer = Some(producer);
    let mut kept = VecDeque::new();
    let released = Arc::new(AtomicBool::new(false));
    let mut captured = stream;
    let mut marked = None;
    let (mut borrowed, mut freed, mut next_borrowed) = (None, None, 1000);
    say("ready");
    loop {
        let line = hear();
        let words: Vec<&str> = line.split_whitespace().collect();
        let open = || producer.as_ref().unwrap();
        match *words.as_slice() {
            ["publish"] => match publish(open()) {
                Ok(lease) => say(format_args!("published {}", lease.meta().sequence)),
                Err(error) => say(error),
            },
            // Many, as fast as it goes; where there is no slot it waits for one.
            ["publish", count] if count.parse::<u64>().is_ok() => {
                let mut left: u64 = count.parse().unwrap();
                while left > 0 {
                    match publish(open()) {
                        Ok(_) => left -= 1,
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
                say("published");
            }
            ["keep"] => {
                kept.push_back(publish(open()).unwrap());
                say("kept");
            }
            ["keep-or-say"] => match publish(open()) {
                Ok(lease) => {
                    kept.push_back(lease);
                    say("kept");
                }
                Err(error) => say(error),
            },
            ["forget"] => {
                kept.clear();
                say("forgot");
            }
            // The frame that was kept last, once more.
            ["again"] => {
                let lease = kept.back().unwrap();
                open().republish(lease, lease.meta().clone()).unwrap();
                say("again");
            }
            ["trap"] => {
                gpu.trap(stream);
                say("trapped");
            }
            ["finish"] => {
                gpu.finish(stream);
                say("finished");
            }
            ["held"] => say(open().stats().slots_held),
            ["consumers"] => {
                let stats = open().stats();
                let lines: Vec<String> = stats
                    .consumers
                    .iter()
                    .map(|c| format!("{} {}", c.held, c.device))
                    .collect();
                say(lines.join(", "));
            }
            ["devices"] => say(open().stats().devices.join(", ")),
            ["collect"] => say(open().collect()),
            // Memory of our own that is larger than the frame, as of some library.
            ["borrow"] => {
                let len = 3 * SIZE;
                let start = gpu.allocate(len);
                let (ptr, flag) = (start + SIZE as u64, released.clone());
                let memory = open().import_cuda(ptr, SIZE, &gpu.device, move || {
                    flag.store(true, Ordering::Release)
                });
                say(memory
                    .as_ref()
                    .map_or_else(ToString::to_string, |_| "borrowed".into()));
                borrowed = memory.ok().map(|memory| (start, ptr, memory));
            }
            ["publish", "borrowed"] => {
                let (_, ptr, memory) = borrowed.as_ref().unwrap();
                let mut parts = Parts::new();
                parts.add_imported(memory, 0, SIZE as u64, 0);
                let mut slot = open()
                    .acquire_cuda_event(parts.room(), &gpu.device)
                    .unwrap();
                gpu.fill(stream, *ptr, SIZE, byte(next_borrowed));
                slot.set_parts(parts);
                let meta = FrameMeta {
                    pts: Some(next_borrowed),
                    ..FrameMeta::new(SIZE)
                };
                next_borrowed += 1;
                let published = slot.publish_on(stream, meta);
                say(published.map_or_else(|error| error.to_string(), |_| "published".into()));
            }
            // It is freed when it is let go of, and not before.
            // Without anything for the device to do.
            ["publish", "plain"] => {
                let slot = open()
                    .acquire_cuda(SIZE, &gpu.device)
                    .map_err(|error| error.to_string());
                let meta = FrameMeta::new(SIZE);
                let done = slot.and_then(|slot| {
                    slot.publish_on(stream, meta)
                        .map_err(|error| error.to_string())
                });
                say(done.map_or_else(|error| error, |_| "published".into()));
            }
            // On a stream that stands still until it is told to go on.
            ["publish", "late"] => {
                let stream = gpu.late_stream();
                let slot = open().acquire_cuda(SIZE, &gpu.device).unwrap();
                gpu.fill(stream, slot.cuda().unwrap().ptr(), SIZE, byte(6000));
                let meta = FrameMeta {
                    pts: Some(6000),
                    ..FrameMeta::new(SIZE)
                };
                let published = slot.publish_on(stream, meta);
                say(published.map_or_else(|error| error.to_string(), |_| "published".into()));
            }
            // Written on such a stream, and published on one that waits for it. Says whether it got there.
            ["publish", "behind"] => {
                let late = gpu.late_stream();
                let slot = open().acquire_cuda(SIZE, &gpu.device).unwrap();
                gpu.fill(late, slot.cuda().unwrap().ptr(), SIZE, byte(6000));
                stream.wait_for(&gpu.device, late).unwrap();
                let mark = stream.mark(&gpu.device).unwrap();
                let meta = FrameMeta {
                    pts: Some(6000),
                    ..FrameMeta::new(SIZE)
                };
                slot.publish_on(stream, meta).unwrap();
                say(mark.synchronize_for(Duration::ZERO).unwrap());
                marked = Some(mark);
            }
            ["wait-for-mark"] => {
                let mark = marked.take().unwrap();
                while !mark.synchronize_for(Duration::from_millis(10)).unwrap() {}
                say("is there");
            }
            ["go-on"] => {
                crate::gpu::GO_ON.store(true, Ordering::Release);
                say("goes on");
            }
            // Captures a stream into a graph: the one that frames are published on, or another one.
            ["capture", which] => {
                captured = if which == "own" { stream } else { gpu.stream() };
                gpu.capture(captured);
                say("captures");
            }
            ["end-capture"] => say(gpu.end_capture(captured)),
            ["counts"] => say(format_args!("{:?}", xmem_core::cuda::counts())),
            // Copied from memory of this program that a device is still writing.
            ["publish", "copied", how] => {
                let from = gpu.allocate(SIZE);
                let slot = open().acquire_cuda(SIZE, &gpu.device).unwrap();
                let on_device = slot.cuda().unwrap();
                gpu.fill(stream, on_device.ptr(), SIZE, 0);
                gpu.write(stream, from, &pattern(SIZE));
                let copied = match how {
                    "rows" => on_device.copy_rows_from(stream, from, &ROWS),
                    "host" => on_device.copy_from(stream, pattern(SIZE).as_ptr() as u64, SIZE),
                    "pinned" => on_device.copy_from(stream, gpu.allocate_host(SIZE), SIZE),
                    "too-much" => on_device.copy_from(stream, from, on_device.len() + 1),
                    _ => on_device.copy_from(stream, from, SIZE),
                };
                if let Err(error) = copied {
                    say(error);
                    continue;
                }
                let published = slot.publish_on(stream, FrameMeta::new(SIZE));
                say(published.map_or_else(|error| error.to_string(), |_| "published".into()));
            }
            // Without a stream.
            ["publish", "done"] => {
                let slot = open().acquire_cuda(SIZE, &gpu.device).unwrap();
                let meta = FrameMeta {
                    pts: Some(5000),
                    ..FrameMeta::new(SIZE)
                };
                let published = slot.publish(meta);
                say(published.map_or_else(|error| error.to_string(), |_| "published".into()));
            }
            // In a slot that is not the frame's own, and not the first of its region.
            ["publish", "piece"] => {
                let first = open().acquire_cuda(SIZE, &gpu.device).unwrap();
                let piece = open().acquire_cuda(SIZE, &gpu.device).unwrap();
                for (slot, byte) in [(&first, 255), (&piece, byte(7))] {
                    gpu.fill(stream, slot.cuda().unwrap().ptr(), SIZE, byte);
                }
                gpu.finish(stream);
                let piece = piece.into_piece();
                let mut parts = Parts::new();
                parts.add_slot(&piece, 0, SIZE as u64, 0);
                let mut slot = open()
                    .acquire_cuda_event(parts.room(), &gpu.device)
                    .unwrap();
                slot.set_parts(parts);
                slot.set_release_hook(move || drop(piece));
                let meta = FrameMeta {
                    pts: Some(7),
                    ..FrameMeta::new(SIZE)
                };
                slot.publish_on(stream, meta).unwrap();
                say("published");
            }
            // Published again with something attached, which is not behind the payload.
            ["publish", "twice"] => {
                let slot = open()
                    .acquire_cuda_with_room(SIZE, 1000, &gpu.device)
                    .unwrap();
                gpu.fill(stream, slot.cuda().unwrap().ptr(), SIZE, byte(0));
                let mut meta = FrameMeta {
                    pts: Some(0),
                    ..FrameMeta::new(SIZE)
                };
                let lease = slot.publish_on(stream, meta.clone()).unwrap();
                meta.attachments.set("note", vec![7; 100]);
                let again = open().republish(&lease, meta);
                say(again.map_or_else(|error| error.to_string(), |_| "published".into()));
            }
            // The producer's own lease of a frame that lies in pieces, in a slot that has bytes too.
            ["own-pieces"] => {
                let (_, _, memory) = borrowed.as_ref().unwrap();
                let mut parts = Parts::new();
                parts.add_imported(memory, 0, SIZE as u64, 0);
                let mut slot = open()
                    .acquire_cuda_with_room(1, parts.room(), &gpu.device)
                    .unwrap();
                assert!(slot.cuda().unwrap().len() < SIZE);
                slot.set_parts(parts);
                let lease = slot.publish_on(stream, FrameMeta::new(SIZE)).unwrap();
                let frame = lease.cuda();
                say(frame.map_or_else(|error| error.to_string(), |frame| frame.len().to_string()));
            }
            ["publish", "host"] => {
                let mut slot = open().acquire(1000).unwrap();
                slot.as_mut_slice().fill(7);
                slot.publish(FrameMeta::new(1000)).unwrap();
                say("published");
            }
            ["let-go"] => {
                let (start, _, memory) = borrowed.take().unwrap();
                drop(memory);
                freed = Some(start);
                say("let go");
            }
            ["released"] => {
                let is_released = released.load(Ordering::Acquire);
                if let (true, Some(start)) = (is_released, freed) {
                    gpu.free(start);
                    freed = None;
                }
                say(is_released);
            }
            ["close"] => {
                producer = None;
                say("closed");
            }
            _ => panic!("told {line:?}"),
        }
    }
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    crate::support::fill(77, &mut bytes);
    bytes
}

/// Buffers by number, copied from host to device, from there to another, and back.
fn own_buffers(name: &str) {
    let gpu = Gpu::new(0);
    let pool = BufferPool::new(name).unwrap();
    assert_eq!(pool.preallocate_cuda(SIZE, 3, 0).unwrap().len(), 3);
    assert!(matches!(
        pool.acquire_cuda(SIZE, 9),
        Err(WriteAccessError::Cuda(CudaError::NoDevice {
            ordinal: 9,
            count: 2
        }))
    ));
    assert!(matches!(
        pool.acquire_cuda(SIZE, -1),
        Err(WriteAccessError::Cuda(CudaError::NoDevice { .. }))
    ));
    let bytes = pattern(SIZE);
    let mut host = pool.acquire_cpu(SIZE).unwrap();
    host.as_cpu_slice_mut().unwrap().copy_from_slice(&bytes);
    assert_eq!(host.as_cuda_ptr().unwrap_err(), CudaError::NotOnDevice);
    host.set_meta(FrameMeta {
        content_type: "image/raw".into(),
        ..FrameMeta::default()
    })
    .unwrap();
    let before = xmem_core::cuda::counts();
    let mut on_device = host.copy_to_cuda(0).unwrap();
    assert_eq!(on_device.meta().content_type.as_str(), "image/raw");
    assert_eq!(on_device.as_cpu_slice().unwrap_err(), AccessError::OnDevice);
    assert_eq!(
        on_device.as_cpu_slice_mut().unwrap_err(),
        AccessError::OnDevice
    );
    assert_eq!(gpu.read(on_device.as_cuda_ptr_mut().unwrap(), SIZE), bytes);
    let on_other = on_device.copy_to_device(1).unwrap();
    let back = on_other.copy_to_cpu().unwrap();
    assert_eq!(back.as_cpu_slice().unwrap(), bytes);
    assert_eq!(xmem_core::cuda::counts().copies - before.copies, 3);
    // A second upload from the same region: it is registered once.
    drop(host.copy_to_cuda(0).unwrap());
    let index = on_device.forget().unwrap();
    let mut readable = pool.get(index).unwrap();
    assert_eq!(gpu.read(readable.as_cuda_ptr().unwrap(), SIZE), bytes);
    assert_eq!(readable.as_cuda_ptr_mut().unwrap_err(), CudaError::ReadOnly);
    assert_eq!(
        readable.copy_to_cpu().unwrap().as_cpu_slice().unwrap(),
        bytes
    );
    drop((readable, on_other, back, host));
    // Written in place, by who finds nobody else there.
    let mut again = pool.get_mut(index).unwrap();
    assert_eq!(gpu.read(again.as_cuda_ptr_mut().unwrap(), SIZE), bytes);
    let stream = gpu.stream();
    gpu.fill(stream, again.as_cuda_ptr_mut().unwrap(), SIZE, 9);
    pool.set_ref_count(index, 2).unwrap();
    say(again.forget_on(stream).unwrap());
    hear();
    say("ends");
}

fn read_buffers(name: &str) {
    let gpu = Gpu::new(0);
    let pool = BufferPool::new(name).unwrap();
    assert!(matches!(
        pool.acquire_cuda(SIZE, 0),
        Err(WriteAccessError::NotOwner)
    ));
    say("ready");
    let index = hear().parse().unwrap();
    let buffer = pool.get(index).unwrap();
    // Waits for the device that writes it.
    assert_eq!(gpu.read(buffer.as_cuda_ptr().unwrap(), SIZE), vec![9; SIZE]);
    let stream = gpu.stream();
    let frame = buffer.cuda().unwrap();
    frame.wait_on(stream).unwrap();
    let wrong = gpu.word();
    gpu.check(stream, frame.ptr(), frame.len(), 9, wrong);
    drop(buffer);
    frame.release_on(stream).unwrap();
    gpu.finish(stream);
    say(gpu.read_word(wrong));
    hear();
}

/// What a process does that has no driver.
fn without_driver(pool: &str) {
    assert!(!xmem_core::cuda::is_available());
    let error = Device::new(0).unwrap_err();
    assert!(matches!(&error, CudaError::NoDriver { .. }), "{error}");
    assert!(xmem_core::cuda::devices().is_err());
    // Pools in host memory work as ever.
    let producer = Producer::builder(pool).build().unwrap();
    let mut consumer = Consumer::builder(pool).connect().unwrap();
    crate::support::publish(&producer, 1, 5000);
    let frame = crate::support::receive(&mut consumer);
    crate::support::assert_frame(&frame, 1, 5000);
    assert_eq!(frame.cuda().unwrap_err(), CudaError::NotOnDevice);
    say(error);
}

/// Takes a frame that lies on a device, and cannot use more of it than what is known of it.
fn only_hold(pool: &str) {
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    say("ready");
    let frame = consumer.receive(Some(HANG)).unwrap();
    assert!(frame.is_on_device() && frame.data().is_empty());
    assert_eq!(frame.meta().size, SIZE as u64);
    say(frame.cuda().unwrap_err());
    hear();
    drop(frame);
    say("dropped");
    hear();
}

/// Passes frames on from one pool to another, and copies what cannot be.
fn relay(pool: &str, to: &str) {
    let producer = Producer::builder(to)
        .release_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    say("ready");
    loop {
        assert_eq!(hear(), "pass");
        let frame = consumer.receive(Some(HANG)).unwrap();
        let start = Instant::now();
        let parts = loop {
            match producer.forward(&frame) {
                // Its consumers have not joined the first pool yet.
                Err(ForwardError::NotReached) if start.elapsed() < HANG => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                parts => break parts,
            }
        };
        match parts {
            Ok(parts) => {
                let mut slot = producer.acquire_with_room(1, parts.room()).unwrap();
                slot.set_parts(parts);
                slot.publish(frame.meta().clone()).unwrap();
                say("passed");
            }
            Err(ForwardError::EndsWithProducer) => {
                let gpu = Gpu::new(0);
                let stream = gpu.stream();
                let meta = frame.meta().clone();
                let frame = frame.into_cuda().unwrap();
                let slot = producer.acquire_cuda(SIZE, &gpu.device).unwrap();
                frame.wait_on(stream).unwrap();
                gpu.copy(stream, slot.cuda().unwrap().ptr(), frame.ptr(), SIZE);
                slot.publish_on(stream, meta).unwrap();
                frame.release_on(stream).unwrap();
                // It may be killed from here on.
                gpu.finish(stream);
                say("copied");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

struct Reader {
    gpu: Gpu,
    stream: Stream,
    wrong: u64,
    frames: VecDeque<CudaFrame>,
}

impl Reader {
    /// Puts the look at a frame on the stream.
    fn look(&self, frame: &CudaFrame) -> Result<(), String> {
        frame
            .wait_on(self.stream)
            .map_err(|error| error.to_string())?;
        let number = frame.lease().meta().pts.unwrap();
        assert_eq!(frame.len(), SIZE);
        self.gpu.check(
            self.stream,
            frame.ptr(),
            frame.len(),
            byte(number),
            self.wrong,
        );
        Ok(())
    }
}

/// Takes frames. `words`: the device's number, and `elsewhere`.
fn consume(pool: &str, words: Vec<&str>) {
    let ordinal = words.iter().find_map(|word| word.parse().ok());
    let gpu = gpu(ordinal.unwrap_or(0), &words);
    let stream = gpu.stream();
    let wrong = gpu.word();
    let mut reader = Reader {
        gpu,
        stream,
        wrong,
        frames: VecDeque::new(),
    };
    let consumer = Consumer::builder(pool)
        .max_held(4)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    let mut consumer = Some(consumer);
    let mut captured = stream;
    say("ready");
    let receive = |consumer: &mut Option<Consumer>| -> Result<CudaFrame, String> {
        let lease = loop {
            match consumer.as_mut().unwrap().receive(Some(HANG)) {
                // The device is late with what it has already.
                Err(ReceiveError::OverBudget { .. }) => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                lease => break lease.map_err(|error| error.to_string())?,
            }
        };
        assert!(lease.is_on_device() && lease.data().is_empty());
        lease.into_cuda().map_err(|error| error.to_string())
    };
    loop {
        let line = hear();
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            // Takes a frame, has it looked at, and lets go of it in the order of the stream.
            ["take"] => {
                let taken = receive(&mut consumer).and_then(|frame| {
                    reader.look(&frame)?;
                    let number = frame.lease().meta().pts.unwrap();
                    frame
                        .release_on(reader.stream)
                        .map_err(|failure| failure.to_string())?;
                    Ok(number)
                });
                match taken {
                    Ok(number) => say(format_args!("took {number}")),
                    Err(error) => say(error),
                }
            }
            // The same with all that come, until this one.
            ["take", "to", last] => {
                let last = last.parse().unwrap();
                loop {
                    let frame = receive(&mut consumer).unwrap();
                    reader.look(&frame).unwrap();
                    let number = frame.lease().meta().pts.unwrap();
                    frame.release_on(reader.stream).unwrap();
                    if number >= last {
                        break;
                    }
                }
                say("took");
            }
            // Takes a frame and keeps it.
            ["hold"] => match receive(&mut consumer) {
                Ok(frame) => {
                    say(format_args!(
                        "holds {} {:?}",
                        frame.lease().meta().pts.unwrap(),
                        frame.mode()
                    ));
                    reader.frames.push_back(frame);
                }
                Err(error) => say(error),
            },
            // Looks at the oldest frame that it keeps.
            ["look"] => match reader.look(reader.frames.front().unwrap()) {
                Ok(()) => say("looks"),
                Err(error) => say(error),
            },
            // Takes a frame with what `publish copied` copied, to host memory.
            ["download", how] => {
                let frame = receive(&mut consumer).unwrap();
                let (mut bytes, all) = (vec![0; SIZE], pattern(SIZE));
                let done = match how {
                    "rows" => {
                        // What is in the slot are rows already, so they are copied once more.
                        let done = frame.download_rows(&ROWS, &mut bytes);
                        let copied = with_rows(vec![0; SIZE], &all);
                        done.map(|()| bytes == with_rows(vec![0; SIZE], &copied))
                    }
                    "some" => frame
                        .download(&mut bytes[..1000])
                        .map(|()| bytes[..1000] == all[..1000]),
                    "too-much" => frame.download(&mut vec![0; SIZE + 1]).map(|()| false),
                    "rows-too-far" => {
                        let rows = Rows {
                            from: SIZE - 10,
                            ..Rows::plain(0, 0, 11)
                        };
                        frame.download_rows(&[rows], &mut bytes).map(|()| false)
                    }
                    _ => frame.download(&mut bytes).map(|()| bytes == all),
                };
                say(done.map_or_else(|error| error.to_string(), |same| same.to_string()));
            }
            // What is attached to the oldest that it keeps.
            ["note"] => {
                let meta = reader.frames.front().unwrap().lease().meta().clone();
                let note = meta.attachments.get("note").map(<[u8]>::len);
                say(format_args!("{note:?}"));
            }
            // Waits for the oldest that it keeps, in a thread that says how that went.
            ["sync"] => {
                let frame = reader.frames.pop_front().unwrap();
                say("syncs");
                std::thread::spawn(move || {
                    say(frame
                        .synchronize()
                        .map_or_else(|error| error.to_string(), |()| "synced".into()));
                });
            }
            // Takes a frame of another pool, which is imported for that.
            ["other", pool] => {
                let mut other = Consumer::builder(pool)
                    .start_from(StartFrom::Oldest)
                    .connect()
                    .unwrap();
                let frame = other.receive(Some(HANG)).unwrap().into_cuda().unwrap();
                frame.synchronize().unwrap();
                let number = frame.lease().meta().pts.unwrap();
                assert_eq!(reader.gpu.read(frame.ptr(), SIZE), vec![byte(number); SIZE]);
                say(format_args!("took other {number}"));
            }
            // Whether there is nothing to wait for.
            ["ready"] => say(reader.frames.front().unwrap().is_ready()),
            // Lets go of the oldest that it keeps, in the order of the stream.
            ["let-go"] | ["let-go", "write"] => {
                let frame = reader.frames.pop_front().unwrap();
                let let_go = if line.ends_with("write") {
                    frame.release_by_write_on(reader.stream)
                } else {
                    frame.release_on(reader.stream)
                };
                match let_go {
                    Ok(()) => say("let go"),
                    Err(failure) => {
                        say(&failure);
                        reader.frames.push_front(*failure.frame);
                    }
                }
            }
            // The same, whatever the stream says.
            ["let-go", "after"] => {
                let frame = reader.frames.pop_front().unwrap();
                let failure = frame.release_on(reader.stream).unwrap_err();
                say(failure.release_after(reader.stream));
            }
            ["capture", which] => {
                captured = if which == "own" {
                    stream
                } else {
                    reader.gpu.stream()
                };
                reader.gpu.capture(captured);
                say("captures");
            }
            ["end-capture"] => say(reader.gpu.end_capture(captured)),
            ["drop"] => {
                reader.frames.pop_front();
                say("dropped");
            }
            ["done"] => say(reader.gpu.is_done(reader.stream)),
            // How many bytes were wrong in all that was looked at.
            ["result"] => {
                reader.gpu.finish(reader.stream);
                say(reader.gpu.read_word(reader.wrong));
            }
            ["counts"] => say(format_args!("{:?}", xmem_core::cuda::counts())),
            // The device ends the lease: by a write of the stream, or by a kernel.
            ["write"] => {
                let taken = receive(&mut consumer).and_then(|frame| {
                    reader.look(&frame)?;
                    frame
                        .release_by_write_on(reader.stream)
                        .map_err(|failure| failure.release_after(reader.stream).to_string())
                });
                say(taken.map_or_else(|error| error, |()| "written".into()));
            }
            ["hand-over"] => {
                let taken = receive(&mut consumer).and_then(|frame| {
                    reader.look(&frame)?;
                    let handed = frame.hand_over().map_err(|failure| failure.to_string())?;
                    reader.gpu.end_lease(reader.stream, handed.word());
                    Ok(())
                });
                say(taken.map_or_else(|error| error, |()| "handed over".into()));
            }
            // The same, but only if it is there now.
            ["take", "now"] => {
                let lease = consumer
                    .as_mut()
                    .unwrap()
                    .receive(Some(Duration::from_millis(50)));
                say(lease.map_or_else(|error| error.to_string(), |_| "took".into()));
            }
            ["skip", "to", "host"] => {
                while consumer
                    .as_mut()
                    .unwrap()
                    .receive(Some(HANG))
                    .unwrap()
                    .is_on_device()
                {}
                say("skipped");
            }
            // What is in host memory does not care.
            ["take", "host"] => {
                let frame = consumer.as_mut().unwrap().receive(Some(HANG)).unwrap();
                assert!(
                    !frame.is_on_device()
                        && frame.len() == 1000
                        && frame.iter().all(|byte| *byte == 7)
                );
                say(frame
                    .cuda()
                    .map_or_else(|error| error.to_string(), |_| "on a device".into()));
            }
            ["trap"] => {
                reader.gpu.trap(reader.stream);
                say("trapped");
            }
            // Takes a frame that a stream of another context, which stands still, is to let go of.
            ["elsewhere"] => {
                let other = reader.gpu.other_context();
                let frame = receive(&mut consumer).unwrap();
                frame.release_on(other).unwrap();
                say("elsewhere");
            }
            ["go-on"] => {
                crate::gpu::GO_ON.store(true, Ordering::Release);
                say("goes on");
            }
            // Work that stands still until then, for which freeing device memory waits.
            ["late"] => {
                reader.gpu.late_stream();
                say("late");
            }
            // A lease of the same frame, besides.
            ["share"] => {
                let frame = receive(&mut consumer).unwrap();
                let other = frame.lease().clone();
                let refused = frame.hand_over().unwrap_err();
                say(&refused);
                reader.look(&refused.frame).unwrap();
                drop(other);
                assert_eq!(refused.release_after(reader.stream), CudaError::Shared);
                // What was put on the stream has ended before the lease did.
                assert!(reader.gpu.is_done(reader.stream));
            }
            ["held"] => say(consumer.as_ref().unwrap().held()),
            ["fork"] => {
                let frame = receive(&mut consumer).unwrap();
                let lease = frame.lease().clone();
                // SAFETY: the child only calls what refuses, and ends.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    let refused = frame.wait_on(reader.stream) == Err(CudaError::Forked)
                        && lease.cuda().is_err_and(|error| error == CudaError::Forked)
                        && Device::new(0) == Err(CudaError::Forked);
                    drop((frame, lease));
                    // SAFETY: ends the process, without what the parent registered to run at its end.
                    unsafe { libc::_exit(i32::from(!refused)) };
                }
                say(child::exit_of(pid));
                reader.look(&frame).unwrap();
                frame.release_on(reader.stream).unwrap();
            }
            ["device"] => say(consumer.as_ref().unwrap().device()),
            ["leave"] => {
                consumer = None;
                say("left");
            }
            _ => panic!("told {line:?}"),
        }
    }
}
