// SPDX-License-Identifier: MPL-2.0

//! Measures the cost of passing a 4K NV12 frame to another process, compared with other methods, at 100 frames per second and in
//! one run. Latency is the time from the completion of the producer's frame until the consumer can queue work on it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use xmem_core::cuda::{Device, Mode, Stream, counts};
use xmem_core::{BufferPool, Consumer, FrameMeta, Producer, ReceiveError, SlotSpec, StartFrom};

use crate::report;

/// A 4K NV12 frame.
const SIZE: usize = 3840 * 2160 * 3 / 2;
const INTERVAL: Duration = Duration::from_millis(10);
const WARM_UP: u64 = 50;
const HANG: Duration = Duration::from_secs(30);

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The results of one process by name.
type Figures = BTreeMap<String, f64>;

/// Prints all results.
pub fn measure(frames: u64) {
    let mut all = BTreeMap::new();
    for method in [
        "xmem CUDA by descriptor",
        "xmem CUDA by legacy handle",
        "xmem host pool",
        "download, xmem host pool, upload",
    ] {
        match run(method, frames) {
            Ok(figures) => {
                for (name, value) in &figures {
                    report(
                        "numbers",
                        &format!("{method}: {name}"),
                        format!("{value:.3}"),
                    );
                }
                all.insert(method, figures);
            }
            Err(error) => report("numbers", method, error),
        }
    }
    let per_frame = |method: &str| {
        all.get(method)?
            .get("CPU of both processes, µs per frame")
            .copied()
    };
    let ratio = |one: &str, two: &str| Some(per_frame(one)? / per_frame(two)?);
    if let Some(ratio) = ratio("xmem CUDA by descriptor", "xmem host pool") {
        report(
            "numbers",
            "CPU per frame, CUDA / host pool (at most 1.5)",
            format!("{ratio:.2}"),
        );
    }
    if let Some(ratio) = ratio(
        "download, xmem host pool, upload",
        "xmem CUDA by descriptor",
    ) {
        report(
            "numbers",
            "CPU per frame, download and upload / CUDA",
            format!("{ratio:.2}"),
        );
    }
    if let Err(error) = uploads() {
        report("numbers", "uploads", error);
    }
    match memory() {
        Ok(more) => report(
            "numbers",
            "device memory that 8 consumers add by importing, bytes",
            more,
        ),
        Err(error) => report("numbers", "device memory of 8 consumers", error),
    }
}

/// A child process with a role. Commands and replies are lines.
struct Player {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Player {
    fn start(pool: &Path, words: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("role").arg(pool).args(words);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or("no pipes")?;
        Ok(Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Err("a process of the measurement has failed; its message is above".into());
        }
        Ok(line.trim().to_owned())
    }

    fn send(&mut self, line: &str) -> Result {
        Ok(writeln!(self.stdin, "{line}")?)
    }

    fn figures(&mut self) -> Result<Figures> {
        Ok(serde_json::from_str(&self.read_line()?)?)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(method: &str, frames: u64) -> Result<Figures> {
    let folder = tempfile::tempdir()?;
    let pool = folder.path().join("pool");
    let count = frames.to_string();
    let mut producer = Player::start(&pool, &["produce", method, &count])?;
    producer.read_line()?;
    let mut consumer = Player::start(&pool, &["consume", method, &count])?;
    consumer.read_line()?;
    producer.send("go")?;
    let mut figures = consumer.figures()?;
    let produced = producer.figures()?;
    let of = |figures: &Figures| figures.get(CPU).copied().unwrap_or(f64::NAN);
    let both = of(&figures) + of(&produced);
    figures.insert("CPU of both processes, µs per frame".into(), both);
    figures.remove(CPU);
    let produced = produced.into_iter().filter(|(name, _)| name != CPU);
    figures.extend(produced.map(|(name, value)| (format!("producer's {name}"), value)));
    Ok(figures)
}

/// Compares a copy from a pool in host memory, which xmem registers with the device, with one from ordinary memory.
fn uploads() -> Result {
    let folder = tempfile::tempdir()?;
    let pool = BufferPool::new(&folder.path().join("pool").to_string_lossy())?;
    let buffer = pool.acquire_cpu(SIZE)?;
    let timed = |copy: &mut dyn FnMut() -> Result| -> Result<(f64, f64)> {
        let mut times = Vec::new();
        for _ in 0..50 {
            let start = Instant::now();
            copy()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let first = times[0];
        times.sort_unstable_by(f64::total_cmp);
        Ok((first, times[times.len() / 2]))
    };
    let registered = timed(&mut || {
        buffer.copy_to_cuda(0)?;
        Ok(())
    })?;
    let (_, stream) = device()?;
    let (to, from) = (allocate()?, vec![1_u8; SIZE]);
    let ordinary = timed(&mut || {
        // SAFETY: both sides have this size.
        ok(unsafe { sys::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), SIZE) })?;
        finish(stream)
    })?;
    for (what, (first, median)) in [
        ("copy_to_cuda of a buffer in a host pool", registered),
        ("cuMemcpyHtoD of ordinary memory", ordinary),
    ] {
        report(
            "numbers",
            &format!("upload of 12 MB: {what}: first, median, ms"),
            format!("{first:.2} {median:.2}"),
        );
    }
    Ok(())
}

fn memory() -> Result<i64> {
    let folder = tempfile::tempdir()?;
    let pool = folder.path().join("pool");
    let mut producer = Player::start(&pool, &["produce", "memory", "0"])?;
    producer.read_line()?;
    let mut consumers = Vec::new();
    for _ in 0..8 {
        let mut consumer = Player::start(&pool, &["consume", "memory", "0"])?;
        consumer.read_line()?;
        consumers.push(consumer);
    }
    let mut free = || -> Result<i64> {
        producer.send("free")?;
        Ok(producer.read_line()?.parse()?)
    };
    let before = free()?;
    for consumer in &mut consumers {
        consumer.send("take")?;
        consumer.read_line()?;
    }
    Ok(before - free()?)
}

const CPU: &str = "CPU, µs per frame";

/// The first device, a stream, and the primary context, which is current in this thread.
fn device() -> Result<(Device, Stream)> {
    let device = Device::new(0)?;
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers for the results are valid. The stream is never destroyed.
    unsafe {
        ok(sys::cuDevicePrimaryCtxRetain(&raw mut context, 0))?;
        ok(sys::cuCtxSetCurrent(context))?;
        ok(sys::cuStreamCreate(
            &raw mut stream,
            sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32,
        ))?;
        Ok((device, Stream::from_raw(stream as u64)))
    }
}

fn ok(result: sys::CUresult) -> Result {
    if result == sys::CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(format!("{result:?}").into())
    }
}

fn finish(stream: Stream) -> Result {
    // SAFETY: a stream of this process.
    ok(unsafe { sys::cuStreamSynchronize(stream.as_raw() as sys::CUstream) })
}

fn fill(stream: Stream, pointer: u64, size: usize, number: u64) -> Result {
    // SAFETY: device memory of that size.
    ok(unsafe {
        sys::cuMemsetD8Async(
            pointer,
            (number % 255) as u8 + 1,
            size,
            stream.as_raw() as sys::CUstream,
        )
    })
}

fn allocate() -> Result<u64> {
    let mut pointer = 0;
    // SAFETY: the pointer for the result is valid.
    ok(unsafe { sys::cuMemAlloc_v2(&raw mut pointer, SIZE) })?;
    Ok(pointer)
}

/// A clock that is the same in all processes, in ns.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The CPU time of this process in µs.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn read_line() -> String {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => line.trim().to_owned(),
        _ => std::process::exit(0),
    }
}

/// Runs one side of a measurement.
pub fn role(pool: &str, words: &[String]) {
    let words = words.iter().map(String::as_str).collect::<Vec<_>>();
    let played = match *words.as_slice() {
        ["produce", "memory", _] => produce_for_memory(pool),
        ["consume", "memory", _] => consume_for_memory(pool),
        ["produce", method, frames] => produce_frames(pool, method, frames.parse().unwrap_or(0)),
        ["consume", method, frames] => consume_frames(pool, method, frames.parse().unwrap_or(0)),
        _ => Err("no such role".into()),
    };
    if let Err(error) = played {
        eprintln!("{words:?}: {error}");
        std::process::exit(1);
    }
}

fn mode(method: &str) -> Mode {
    if method.contains("legacy") {
        Mode::Legacy
    } else {
        Mode::Auto
    }
}

fn meta(time: u64) -> FrameMeta {
    FrameMeta::new(SIZE).pts(time)
}

fn produce_frames(pool: &str, method: &str, frames: u64) -> Result {
    let producer = Producer::builder(pool).cuda_mode(mode(method)).build()?;
    let on_device = method != "xmem host pool";
    let gpu = if on_device { Some(device()?) } else { None };
    let own = if method.starts_with("download") {
        Some(allocate()?)
    } else {
        None
    };
    println!("ready");
    read_line();
    let mut first = None;
    let start = Instant::now();
    for number in 0..frames + WARM_UP {
        std::thread::sleep((INTERVAL * number as u32).saturating_sub(start.elapsed()));
        if number == WARM_UP {
            first = Some((cpu_time(), counts()));
        }
        match (&gpu, own) {
            (None, _) => {
                producer
                    .acquire(SIZE)?
                    .publish(meta(now()))
                    .map_err(|failure| failure.to_string())?;
            }
            (Some(_), Some(own)) => {
                let time = now();
                let mut slot = producer.acquire(SIZE)?;
                // SAFETY: the destination has this size.
                ok(unsafe {
                    sys::cuMemcpyDtoH_v2(slot.as_mut_slice().as_mut_ptr().cast(), own, SIZE)
                })?;
                slot.publish(meta(time))
                    .map_err(|failure| failure.to_string())?;
            }
            (Some((device, stream)), None) => {
                let slot = producer.acquire(SlotSpec::new(SIZE).on(device))?;
                let pointer = slot.cuda().ok_or("not a device slot")?.ptr();
                // The measurement does not include the work on a frame.
                if number < WARM_UP {
                    fill(*stream, pointer, SIZE, number)?;
                }
                slot.publish_on(*stream, meta(now()))
                    .map_err(|failure| failure.to_string())?;
            }
        }
    }
    let (cpu, before) = first.ok_or("no frames")?;
    let mut figures = Figures::from([(CPU.into(), (cpu_time() - cpu) / frames as f64)]);
    if gpu.is_some() && own.is_none() {
        figures.extend(difference(before));
    }
    println!("{}", serde_json::to_string(&figures)?);
    read_line();
    Ok(())
}

/// The difference of the counters since `before`.
fn difference(before: xmem_core::cuda::Counts) -> Figures {
    let after = counts();
    Figures::from([
        (
            "imports after the first round".into(),
            (after.imports - before.imports) as f64,
        ),
        (
            "host synchronisations after the first round".into(),
            (after.host_syncs - before.host_syncs) as f64,
        ),
        (
            "copies after the first round".into(),
            (after.copies - before.copies) as f64,
        ),
    ])
}

fn consume_frames(pool: &str, method: &str, frames: u64) -> Result {
    let gpu = if method == "xmem host pool" {
        None
    } else {
        Some(device()?)
    };
    let own = if method.starts_with("download") {
        Some(allocate()?)
    } else {
        None
    };
    let mut consumer = Consumer::builder(pool).connect()?;
    println!("ready");
    let mut times = Vec::new();
    let mut first = None;
    let mut opened = None;
    let mut last = 0;
    while last + 1 < frames + WARM_UP {
        let lease = match consumer.receive(Some(HANG)) {
            // The device has not finished the frames that are already held.
            Err(ReceiveError::OverBudget { .. }) => {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            lease => lease?,
        };
        last = lease.info().sequence;
        let begun = lease.meta().pts.unwrap_or(0);
        match (&gpu, own) {
            (None, _) => times.push(now() - begun),
            (Some(_), Some(own)) => {
                // SAFETY: both sides have this size, and the frame is held until the copy is done.
                ok(unsafe { sys::cuMemcpyHtoD_v2(own, lease.bytes()?.as_ptr().cast(), SIZE) })?;
                // The call uses the default stream, and returns when the bytes are read.
                finish(Stream::LEGACY_DEFAULT)?;
                times.push(now() - begun);
            }
            (Some((_, stream)), None) => {
                let received = now();
                let frame = lease.into_cuda()?;
                frame.wait_on(*stream)?;
                times.push(now() - begun);
                opened.get_or_insert(now() - received);
                frame
                    .release_on(*stream)
                    .map_err(|failure| failure.release_after(*stream))?;
            }
        }
        if first.is_none() && last + 1 >= WARM_UP {
            times.clear();
            first = Some((cpu_time(), counts(), last));
        }
    }
    let (cpu, before, since) = first.ok_or("no frames")?;
    times.sort_unstable();
    let at = |part: usize| {
        times
            .get(times.len().saturating_sub(1) * part / 100)
            .map_or(f64::NAN, |time| *time as f64 / 1e3)
    };
    let mut figures = Figures::from([
        (CPU.into(), (cpu_time() - cpu) / (last - since) as f64),
        ("frames received".into(), times.len() as f64),
        ("hand-over, µs, median".into(), at(50)),
        ("hand-over, µs, 99 %".into(), at(99)),
    ]);
    if let Some(opened) = opened {
        figures.insert(
            "the first frame, opened and waited for, ms".into(),
            opened as f64 / 1e6,
        );
        figures.extend(difference(before));
    }
    println!("{}", serde_json::to_string(&figures)?);
    read_line();
    Ok(())
}

fn produce_for_memory(pool: &str) -> Result {
    let producer = Producer::builder(pool).history(1).build()?;
    let (device, stream) = device()?;
    let slot = producer.acquire(SlotSpec::new(SIZE).on(&device))?;
    fill(
        stream,
        slot.cuda().ok_or("not a device slot")?.ptr(),
        SIZE,
        0,
    )?;
    let _frame = slot
        .publish_on(stream, meta(0))
        .map_err(|failure| failure.to_string())?;
    finish(stream)?;
    println!("ready");
    loop {
        read_line();
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers for the results are valid.
        ok(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        println!("{free}");
    }
}

fn consume_for_memory(pool: &str) -> Result {
    let (_, stream) = device()?;
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect()?;
    println!("ready");
    read_line();
    let frame = consumer.receive(Some(HANG))?.into_cuda()?;
    frame.wait_on(stream)?;
    finish(stream)?;
    println!("taken");
    read_line();
    Ok(())
}

/// Publishes frames until standard input ends, for programs in other languages: all bytes of frame N are N % 255 + 1.
pub fn produce(pool: &str, mode: &str, size: usize) {
    let run = || -> Result {
        let mode = if mode == "legacy" {
            Mode::Legacy
        } else {
            Mode::Vmm
        };
        let producer = Producer::builder(pool).cuda_mode(mode).history(1).build()?;
        let (device, stream) = device()?;
        std::thread::spawn(|| {
            loop {
                read_line();
            }
        });
        println!("ready");
        for number in 0.. {
            match producer.acquire(SlotSpec::new(size).on(&device)) {
                Ok(slot) => {
                    fill(
                        stream,
                        slot.cuda().ok_or("not a device slot")?.ptr(),
                        size,
                        number,
                    )?;
                    let meta = FrameMeta::new(size).pts(number);
                    slot.publish_on(stream, meta)
                        .map_err(|failure| failure.to_string())?;
                }
                // Other slots are released by their holders.
                Err(error) => eprintln!("frame {number}: {error}"),
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(())
    };
    if let Err(error) = run() {
        eprintln!("{pool}: {error}");
        std::process::exit(1);
    }
}
