// SPDX-License-Identifier: MPL-2.0

//! What the children do: a producer and a consumer that do what they are told, line by line.

use std::collections::VecDeque;
use std::time::Duration;

use xmem_core::cuda::{CudaError, CudaFrame, Device, Mode, Stream};
use xmem_core::{Consumer, FrameMeta, Producer, ReadLease, ReceiveError, StartFrom};

use crate::gpu::Gpu;
use crate::support::HANG;
use crate::support::child::{self, hear, say};

/// Bytes of a frame: more than what the stand-in copies at once.
pub const SIZE: usize = 300_000;

pub fn play() {
    let Some((role, pool)) = child::role() else {
        return;
    };
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
        "consume" => consume(&pool),
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

/// Makes a pool. `words`: mode, most slots.
fn produce(pool: &str, words: Vec<&str>) {
    let gpu = Gpu::new(0);
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
            ["publish", count] => {
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
            ["close"] => {
                producer = None;
                say("closed");
            }
            _ => panic!("told {line:?}"),
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

fn consume(pool: &str) {
    let gpu = Gpu::new(0);
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
                        .map_err(|failure| failure.to_string())
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
            ["leave"] => {
                consumer = None;
                say("left");
            }
            _ => panic!("told {line:?}"),
        }
    }
}
