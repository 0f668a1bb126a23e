// SPDX-License-Identifier: MPL-2.0

//! A consumer that executes commands, one per line.

use std::collections::VecDeque;
use std::time::Duration;

use xmem_core::cuda::{CudaError, CudaFrame, Device, ReleaseWord, Rows, Stream};
use xmem_core::{Consumer, NotReadable, ReadLease, ReceiveError, StartFrom};

use super::{ROWS, SIZE, byte, gpu, outcome, pattern, with_rows};
use crate::gpu::Gpu;
use crate::support::HANG;
use crate::support::child::{self, read_line, reply};

/// Takes frames. `words`: the device's ordinal, and `elsewhere`.
pub fn consume(pool: &str, words: Vec<&str>) {
    let ordinal = words.iter().find_map(|word| word.parse().ok());
    let gpu = gpu(ordinal.unwrap_or(0), &words);
    let stream = gpu.stream();
    let consumer = Consumer::builder(pool)
        .max_held(4)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    let mut reader = Reader {
        wrong: gpu.word(),
        gpu,
        stream,
        captured: stream,
        consumer: Some(consumer),
        frames: VecDeque::new(),
    };
    reply("ready");
    loop {
        let line = read_line();
        reader.run(&line.split_whitespace().collect::<Vec<_>>());
    }
}

struct Reader {
    gpu: Gpu,
    stream: Stream,
    captured: Stream,
    /// The number of wrong bytes in all frames that were checked, on the device.
    wrong: u64,
    consumer: Option<Consumer>,
    /// The kept frames.
    frames: VecDeque<CudaFrame>,
}

fn number(frame: &CudaFrame) -> u64 {
    frame.lease().meta().pts.unwrap()
}

impl Reader {
    fn run(&mut self, words: &[&str]) {
        match *words {
            ["take"] => match self.take() {
                Ok(number) => reply(format_args!("took {number}")),
                Err(error) => reply(error),
            },
            // All frames up to this one.
            ["take", "to", last] => {
                let last = last.parse().unwrap();
                while self.take().unwrap() < last {}
                reply("took");
            }
            // Only if it is available now.
            ["take", "now"] => {
                let lease = self.consumer().receive(Some(Duration::from_millis(50)));
                reply(outcome(lease, "took"));
            }
            ["take", "host"] => reply(self.take_in_host_memory()),
            ["skip", "to", "host"] => {
                while self.lease().is_on_device() {}
                reply("skipped");
            }
            ["hold"] => match self.receive() {
                Ok(frame) => {
                    reply(format_args!("holds {} {:?}", number(&frame), frame.mode()));
                    self.frames.push_back(frame);
                }
                Err(error) => reply(error),
            },
            // Checks the oldest kept frame.
            ["look"] => reply(outcome(self.look(self.oldest()), "looks")),
            // Only waits, so that nothing else fails between if the context fails.
            ["wait"] => reply(outcome(self.oldest().wait_on(self.stream), "waits")),
            // The frame's attachments.
            ["note"] => {
                let attachments = &self.oldest().lease().meta().attachments;
                reply(format_args!(
                    "{:?}",
                    attachments.get("note").map(<[u8]>::len)
                ));
            }
            // Whether there is nothing to wait for.
            ["ready"] => reply(self.oldest().is_ready()),
            ["sync"] => self.synchronize(),
            ["release"] => self.release(),
            // Releases after the stream, even if the stream reports an error.
            ["release", "after"] => {
                let frame = self.frames.pop_front().unwrap();
                let failure = frame.release_on(self.stream).unwrap_err();
                reply(failure.release_after(self.stream));
            }
            ["drop"] => {
                self.frames.pop_front();
                reply("dropped");
            }
            ["download", how] => reply(self.download(how)),
            ["other", pool] => self.take_of_another_pool(pool),
            // A kernel releases the frame.
            ["word"] => reply(outcome(self.release_by_word(), "has a word")),
            // Takes a frame whose release is queued on a blocked stream of another context.
            ["elsewhere"] => {
                let other = self.gpu.other_context();
                self.receive().unwrap().release_on(other).unwrap();
                reply("elsewhere");
            }
            ["fork"] => self.fork(),
            ["capture", which] => {
                self.captured = self.gpu.capture(which, self.stream);
                reply("captures");
            }
            ["end-capture"] => reply(self.gpu.end_capture(self.captured)),
            ["trap"] => {
                self.gpu.trap(self.stream);
                reply("trapped");
            }
            ["go-on"] => {
                crate::gpu::go_on();
                reply("goes on");
            }
            // Blocked work, for which freeing device memory waits.
            ["late"] => {
                self.gpu.late_stream();
                reply("late");
            }
            ["done"] => reply(self.gpu.is_done(self.stream)),
            ["result"] => {
                self.gpu.finish(self.stream);
                reply(self.gpu.read_word(self.wrong));
            }
            ["counts"] => reply(format_args!("{:?}", xmem_core::cuda::counts())),
            ["held"] => reply(self.consumer().held()),
            ["device"] => reply(self.consumer().device()),
            ["leave"] => {
                self.consumer = None;
                reply("left");
            }
            _ => panic!("unknown: {words:?}"),
        }
    }

    /// The consumer, until it has left.
    fn consumer(&mut self) -> &mut Consumer {
        self.consumer.as_mut().unwrap()
    }

    fn oldest(&self) -> &CudaFrame {
        self.frames.front().unwrap()
    }

    fn lease(&mut self) -> ReadLease {
        self.consumer().receive(Some(HANG)).unwrap()
    }

    fn receive(&mut self) -> Result<CudaFrame, String> {
        let lease = loop {
            match self.consumer().receive(Some(HANG)) {
                // The device has not finished the frames that are already held.
                Err(ReceiveError::OverBudget { .. }) => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                lease => break lease.map_err(|error| error.to_string())?,
            }
        };
        assert!(lease.is_on_device() && lease.bytes() == Err(NotReadable::OnDevice));
        lease.into_cuda().map_err(|error| error.to_string())
    }

    /// Queues the check of a frame on the stream.
    fn look(&self, frame: &CudaFrame) -> Result<(), String> {
        frame
            .wait_on(self.stream)
            .map_err(|error| error.to_string())?;
        assert_eq!(frame.len(), SIZE);
        self.gpu.check(
            self.stream,
            frame.ptr(),
            frame.len(),
            byte(number(frame)),
            self.wrong,
        );
        Ok(())
    }

    /// Takes a frame and queues its check.
    fn received_and_looked_at(&mut self) -> Result<CudaFrame, String> {
        let frame = self.receive()?;
        self.look(&frame)?;
        Ok(frame)
    }

    /// Takes a frame, queues its check, and releases it in stream order. Returns its number.
    fn take(&mut self) -> Result<u64, String> {
        let frame = self.received_and_looked_at()?;
        let number = number(&frame);
        frame
            .release_on(self.stream)
            .map_err(|failure| failure.to_string())?;
        Ok(number)
    }

    /// Takes a frame in host memory, without a device.
    fn take_in_host_memory(&mut self) -> String {
        let frame = self.lease();
        let bytes = frame.bytes().unwrap();
        assert!(!frame.is_on_device() && bytes.len() == 1000);
        assert!(bytes.iter().all(|byte| *byte == 7));
        outcome(frame.cuda(), "on a device")
    }

    /// Waits for the oldest kept frame in a thread that reports the result.
    fn synchronize(&mut self) {
        let frame = self.frames.pop_front().unwrap();
        reply("syncs");
        std::thread::spawn(move || reply(outcome(frame.synchronize(), "synced")));
    }

    /// Releases the oldest kept frame in stream order. Keeps it on an error.
    fn release(&mut self) {
        let frame = self.frames.pop_front().unwrap();
        match frame.release_on(self.stream) {
            Ok(()) => reply("released"),
            Err(failure) => {
                reply(&failure);
                self.frames.push_front(*failure.frame);
            }
        }
    }

    /// Downloads a frame of `publish copied` to host memory. Reports whether it is correct.
    fn download(&mut self, how: &str) -> String {
        let frame = self.receive().unwrap();
        let (mut bytes, all) = (vec![0; SIZE], pattern(SIZE));
        let done = match how {
            "rows" => {
                // The slot already has rows, so they are copied once more.
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
        done.map_or_else(|error| error.to_string(), |same| same.to_string())
    }

    /// Takes a frame of another pool, whose memory is imported.
    fn take_of_another_pool(&self, pool: &str) {
        let mut other = Consumer::builder(pool)
            .start_from(StartFrom::Oldest)
            .connect()
            .unwrap();
        let frame = other.receive(Some(HANG)).unwrap().into_cuda().unwrap();
        frame.synchronize().unwrap();
        let number = number(&frame);
        assert_eq!(self.gpu.read(frame.ptr(), SIZE), vec![byte(number); SIZE]);
        reply(format_args!("took other {number}"));
    }

    /// Lets a kernel release a frame.
    fn release_by_word(&mut self) -> Result<(), String> {
        let frame = self.received_and_looked_at()?;
        let device = frame.device().clone();
        let word = ReleaseWord::new(frame, &device).map_err(|error| error.to_string())?;
        self.gpu.end_lease(self.stream, word.ptr());
        Ok(())
    }

    /// In a forked child, all handles return errors.
    fn fork(&mut self) {
        let frame = self.receive().unwrap();
        let lease = frame.lease().clone();
        // SAFETY: the child only makes calls that return errors, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let refused = frame.wait_on(self.stream) == Err(CudaError::Forked)
                && lease.cuda().is_err_and(|error| error == CudaError::Forked)
                && Device::new(0) == Err(CudaError::Forked);
            drop((frame, lease));
            // SAFETY: exits without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        reply(child::exit_of(pid));
        self.look(&frame).unwrap();
        frame.release_on(self.stream).unwrap();
    }
}
