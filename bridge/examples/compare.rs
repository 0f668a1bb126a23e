// SPDX-License-Identifier: MPL-2.0

//! Compares the bridge with other ways to send raw video to another host. It measures the latency, the share of frames that arrive,
//! and the CPU time of each side. `docs/two-hosts.md` in the repository has the results and the method.
//!
//! Build the plugin first (`cargo build --release -p gstxmem-cdylib` in the repository). Then run in `bridge`:
//!
//! ```sh
//! cargo build --release --bins --examples
//! target/release/examples/compare
//! ```

#[path = "../tests/hosts/cable.rs"]
#[allow(dead_code)] // The tests use the rest.
mod cable;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use xmem_core::{Consumer, FrameMeta, Producer, ReadLease, StartFrom, Sticky, monotonic_ns};

use cable::{ADDRESSES, Cable};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Compare the bridge with other ways to send raw video to another host
#[derive(Debug, Parser)]
struct Cli {
    /// Send the frames of this pool over plain TCP
    #[arg(long, hide = true)]
    send: Option<PathBuf>,
    /// Receive frames over plain TCP, and publish them in this pool
    #[arg(long, hide = true)]
    receive: Option<PathBuf>,
    /// The width of the video in pixels
    #[arg(long, default_value_t = 1920)]
    width: usize,
    /// The height of the video in pixels
    #[arg(long, default_value_t = 1080)]
    height: usize,
    /// The number of rounds. Each round measures all ways, one after another
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The duration of one measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The ways to measure. Default: all
    ways: Vec<Way>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// The bridge over TCP
    Tcp,
    /// The bridge over QUIC
    Quic,
    /// This program, which copies frames between pools and a TCP socket
    PlainTcp,
    /// rtpvrawpay and udpsink
    Rtp,
    /// x264enc and srtsink
    Srt,
}

impl Way {
    fn title(self) -> &'static str {
        match self {
            Self::Tcp => "xmem-bridge, TCP",
            Self::Quic => "xmem-bridge, QUIC",
            Self::PlainTcp => "plain TCP: pool, socket, pool",
            Self::Rtp => "`rtpvrawpay ! udpsink`",
            Self::Srt => "`x264enc ! mpegtsmux ! srtsink`",
        }
    }
}

/// The format of the video.
#[derive(Debug, Clone, Copy)]
struct Video {
    width: usize,
    height: usize,
}

const FPS: u64 = 30;
/// The width and height in pixels of a square that encodes a bit. A frame contains its number twice, as squares at the top and at
/// the bottom. They survive a lossy encoder. A frame is torn if the two numbers differ.
const SQUARE: usize = 64;
/// The number of bits of a frame's number.
const BITS: usize = 16;

impl Video {
    fn size(self) -> usize {
        self.width * self.height * 3 / 2
    }

    fn caps(self) -> String {
        let Self { width, height } = self;
        format!("video/x-raw,format=I420,width={width},height={height},framerate={FPS}/1")
    }

    /// The first pixel row of each of the two lines of squares.
    fn rows(self) -> [usize; 2] {
        [0, self.height - SQUARE]
    }

    /// A picture with so much detail that the encoder has work to do.
    fn picture(self, seed: usize) -> Vec<u8> {
        let y = (0..self.width * self.height).map(|at| {
            let (x, y) = (at % self.width, at / self.width);
            let texture = (x * 7 + seed * 8) ^ (y * 3);
            (texture % 97 + (x + seed * 8) / 16 % 64 + 48) as u8
        });
        let chroma = std::iter::repeat_n(128, self.size() - self.width * self.height);
        y.chain(chroma).collect()
    }

    fn stamp(self, frame: &mut [u8], number: usize) {
        for row in self.rows() {
            for y in row..row + SQUARE {
                for bit in 0..BITS {
                    let value = if number >> bit & 1 == 1 { 235 } else { 16 };
                    let start = y * self.width + bit * SQUARE;
                    frame[start..start + SQUARE].fill(value);
                }
            }
        }
    }

    /// The number of a frame. `None` if the frame is torn.
    fn number(self, frame: &ReadLease) -> Option<usize> {
        // A decoder may add padding to rows.
        let (start, stride) = frame.meta().layout.video.map_or((0, self.width), |it| {
            (it.offsets[0] as usize, it.strides[0] as usize)
        });
        let frame = frame.bytes().ok()?;
        let [top, bottom] = self.rows().map(|row| {
            let middle = start + (row + SQUARE / 2) * stride + SQUARE / 2;
            let bits = (0..BITS).map(|bit| usize::from(frame[middle + bit * SQUARE] > 128) << bit);
            bits.sum::<usize>()
        });
        (top == bottom).then_some(top)
    }
}

/// A process that is killed when the value is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Result<Self, Error> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(command.stderr(Stdio::null()).spawn()?))
    }

    /// The CPU time that it has used, in milliseconds.
    fn cpu(&self) -> Result<f64, Error> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let fields = stat.rsplit_once(')').ok_or("no process")?.1;
        // The times in user mode and in the kernel, in ticks of 10 ms.
        let ticks = fields.split_whitespace().skip(11).take(2);
        Ok(ticks.map(|it| it.parse().unwrap_or(0.0)).sum::<f64>() * 10.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two hosts, each with a directory for its pools.
struct Hosts {
    cable: Cable,
    dir: tempfile::TempDir,
    video: Video,
}

impl Hosts {
    fn pool(&self, host: &str) -> PathBuf {
        self.dir.path().join(host).join("cam0.sock")
    }

    /// Starts a program on a host.
    fn start(&self, host: &str, program: &Path, args: &str) -> Result<Process, Error> {
        let mut command = self.cable.on(host);
        command.arg(program).args(args.split_whitespace());
        command.env("XMEM_RUNTIME_DIR", self.dir.path().join(host));
        Process::start(command.current_dir(self.dir.path()))
    }

    /// Starts both sides of a way. Returns the receiver, then the sender.
    fn sides(&self, way: Way) -> Result<[Process; 2], Error> {
        let own = std::env::current_exe()?;
        let bridge = own
            .ancestors()
            .nth(2)
            .ok_or("no directory")?
            .join("xmem-bridge");
        let launch = Path::new("gst-launch-1.0");
        let [a, b] = ADDRESSES;
        let (pool_a, pool_b) = (self.pool("a"), self.pool("b"));
        let (pool_a, pool_b) = (pool_a.display(), pool_b.display());
        let Video { width, height } = self.video;
        let from = format!("xmemsrc pool={pool_a}");
        let to = format!("xmemsink pool={pool_b} pace=never");
        let (program, receive, send) = match way {
            Way::Tcp | Way::Quic => {
                let (protocol, [export, import]) = match way {
                    Way::Tcp => ("tcp", ["--trusted-network"; 2]),
                    _ => (
                        "quic",
                        [
                            "--certificate a.pem --key a.key --client-ca ca.pem",
                            "--certificate a.pem --key a.key --server-ca ca.pem",
                        ],
                    ),
                };
                let receive = format!("import cam0@{a} {import}");
                let send = format!("export cam0 --listen {protocol}/{a}:7447 {export}");
                (&*bridge, receive, send)
            }
            Way::PlainTcp => (
                &*own,
                format!("--receive {pool_b}"),
                format!("--send {pool_a}"),
            ),
            Way::Rtp => {
                let caps = format!(
                    "application/x-rtp,media=video,clock-rate=90000,encoding-name=RAW,sampling=YCbCr-4:2:0,depth=(string)8,\
                     width=(string){width},height=(string){height},colorimetry=BT709-2"
                );
                (
                    launch,
                    format!(
                        "udpsrc port=5006 buffer-size=8000000 caps={caps} ! rtpvrawdepay ! {to}"
                    ),
                    format!("{from} ! rtpvrawpay ! udpsink sync=false host={b} port=5006"),
                )
            }
            Way::Srt => (
                launch,
                format!("srtsrc uri=srt://{a}:7001 ! tsdemux ! h264parse ! avdec_h264 ! {to}"),
                format!(
                    "{from} ! x264enc tune=zerolatency speed-preset=ultrafast bitrate=8000 ! h264parse ! mpegtsmux alignment=7 ! srtsink uri=srt://:7001 sync=false"
                ),
            ),
        };
        Ok([
            self.start("b", program, &receive)?,
            self.start("a", program, &send)?,
        ])
    }
}

/// The results of one round of a way.
#[derive(Debug)]
struct Figures {
    /// The received frames, as a share of the frames that were published in the same time.
    arrived: f64,
    torn: usize,
    /// In milliseconds.
    latencies: Vec<f64>,
    /// The CPU time of sender and receiver, in milliseconds per frame that arrived.
    cpu: [f64; 2],
}

fn measure(hosts: &Hosts, way: Way, time: Duration) -> Result<Figures, Error> {
    let video = hosts.video;
    let times: Arc<Vec<AtomicI64>> = Arc::new((0..1 << BITS).map(|_| AtomicI64::new(0)).collect());
    let producer = Producer::builder(hosts.pool("a")).build()?;
    let mut sticky = Sticky::new();
    sticky.set("caps", video.caps());
    producer.set_sticky(&sticky)?;
    let ends = Arc::new(AtomicBool::new(false));
    let (stamps, ended) = (times.clone(), ends.clone());
    let camera = std::thread::spawn(move || -> Result<(), String> {
        let pictures: Vec<_> = (0..4).map(|seed| video.picture(seed)).collect();
        let (period, mut due) = (Duration::from_nanos(1_000_000_000 / FPS), Instant::now());
        for number in 0.. {
            let mut slot = producer
                .acquire(video.size())
                .map_err(|it| it.to_string())?;
            let frame = slot.as_mut_slice();
            frame.copy_from_slice(&pictures[number % pictures.len()]);
            let number = number % stamps.len();
            video.stamp(frame, number);
            let now = monotonic_ns();
            stamps[number].store(now, Ordering::Relaxed);
            let meta = FrameMeta::new(video.size()).timestamp(now);
            drop(slot.publish(meta).map_err(|it| it.to_string())?);
            if ended.load(Ordering::Relaxed) {
                break;
            }
            due += period;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    });
    let sides = hosts.sides(way)?;
    let figures = receive(hosts, &times, &sides, time);
    ends.store(true, Ordering::Relaxed);
    camera.join().map_err(|_| "the camera failed")??;
    figures
}

/// Receives frames for `time`, and measures them. The first second is not measured, because both sides start in it.
fn receive(
    hosts: &Hosts,
    times: &[AtomicI64],
    sides: &[Process; 2],
    time: Duration,
) -> Result<Figures, Error> {
    let patience = Some(Duration::from_secs(20));
    let consumer = Consumer::builder(hosts.pool("b")).start_from(StartFrom::Newest);
    let mut consumer = consumer.connect_wait(patience)?;
    consumer.receive(patience)?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        consumer.receive(patience)?;
    }
    let cpu = || -> Result<_, Error> { Ok([sides[1].cpu()?, sides[0].cpu()?]) };
    let (start, before) = (Instant::now(), cpu()?);
    let (mut latencies, mut torn) = (Vec::new(), 0);
    while start.elapsed() < time {
        let frame = consumer.receive(patience)?;
        let now = monotonic_ns();
        match hosts.video.number(&frame) {
            Some(number) => {
                let sent = times[number].load(Ordering::Relaxed);
                latencies.push((now - sent) as f64 / 1e6);
            }
            None => torn += 1,
        }
    }
    let (seconds, after) = (start.elapsed().as_secs_f64(), cpu()?);
    let frames = (latencies.len() + torn) as f64;
    Ok(Figures {
        arrived: frames / (seconds * FPS as f64),
        torn,
        latencies,
        cpu: [0, 1].map(|side| (after[side] - before[side]) / frames),
    })
}

/// The median of the values, with the minimum and the maximum.
fn spread(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let [Some(low), Some(high)] = [values.first(), values.last()] else {
        return "-".to_owned();
    };
    let middle = values[values.len() / 2];
    format!("{middle:.digits$} ({low:.digits$} to {high:.digits$})")
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Prints a row of the table. `plain` has the rounds of plain TCP.
fn report(way: Way, rounds: &[Figures], plain: &[Figures]) {
    let latency = rounds.iter().filter_map(|it| median(&it.latencies));
    let cpu = |side: usize| spread(rounds.iter().map(|it| it.cpu[side]), 1);
    let both = |it: &Figures| it.cpu.iter().sum::<f64>();
    let ratios = rounds
        .iter()
        .zip(plain)
        .map(|(it, plain)| both(it) / both(plain));
    println!(
        "| {} | {} | {} | {} | {} | {} |",
        way.title(),
        spread(latency, 1),
        cpu(0),
        cpu(1),
        spread(ratios, 1),
        spread(rounds.iter().map(|it| it.arrived * 100.0), 0),
    );
}

/// Sends the frames of a pool to the first host that connects.
fn send(pool: &Path) -> Result<(), Error> {
    let mut socket = TcpListener::bind((ADDRESSES[0], 7448))?.accept()?.0;
    socket.set_nodelay(true)?;
    let consumer = Consumer::builder(pool).start_from(StartFrom::Newest);
    let mut consumer = consumer.connect_wait(None)?;
    loop {
        let frame = consumer.receive(None)?;
        socket.write_all(&frame.size().to_le_bytes())?;
        socket.write_all(frame.bytes()?)?;
    }
}

/// Publishes the frames that [`send`] sends in a pool.
fn receive_into(pool: &Path) -> Result<(), Error> {
    let producer = Producer::builder(pool).build()?;
    let mut socket = loop {
        match TcpStream::connect((ADDRESSES[0], 7448)) {
            Ok(socket) => break socket,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    loop {
        let mut len = [0; 8];
        socket.read_exact(&mut len)?;
        let len = usize::try_from(u64::from_le_bytes(len))?;
        let mut slot = producer.acquire(len)?;
        socket.read_exact(slot.as_mut_slice())?;
        slot.publish(FrameMeta::new(len))?;
    }
}

/// Makes an authority, and a certificate for both sides.
fn certificates(dir: &Path) -> Result<(), Error> {
    let script = format!(
        r#"
        new="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        openssl req -x509 $new -days 2 -subj /CN=ca -keyout ca.key -out ca.pem &&
        openssl req $new -subj /CN=a -keyout a.key -out a.csr &&
        printf "subjectAltName=IP:{}\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE" > a.ext &&
        openssl x509 -req -in a.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile a.ext -out a.pem"#,
        ADDRESSES[0]
    );
    let mut openssl = Command::new("sh");
    openssl.args(["-c", &script]).current_dir(dir);
    match openssl.stderr(Stdio::null()).status()?.success() {
        true => Ok(()),
        false => Err("openssl is missing, or failed".into()),
    }
}

fn main() -> Result<(), Error> {
    let cli = Cli::parse();
    if let Some(pool) = &cli.send {
        return send(pool);
    }
    if let Some(pool) = &cli.receive {
        return receive_into(pool);
    }
    let dir = tempfile::tempdir()?;
    for host in ["a", "b"] {
        std::fs::create_dir(dir.path().join(host))?;
    }
    certificates(dir.path())?;
    let hosts = Hosts {
        cable: Cable::new()?,
        dir,
        video: Video {
            width: cli.width,
            height: cli.height,
        },
    };
    let ways = match &cli.ways[..] {
        [] => Way::value_variants(),
        ways => ways,
    };
    let mut all: Vec<_> = ways.iter().map(|way| (*way, Vec::new())).collect();
    for round in 0..cli.rounds {
        for (way, rounds) in &mut all {
            let figures = measure(&hosts, *way, Duration::from_secs(cli.seconds));
            let figures = figures.map_err(|error| format!("{}: {error}", way.title()))?;
            eprintln!(
                "round {round}, {}: {:.1} ms, {:.1?} ms of CPU, {:.0} %",
                way.title(),
                median(&figures.latencies).unwrap_or(f64::NAN),
                figures.cpu,
                figures.arrived * 100.0
            );
            rounds.push(figures);
        }
        all.rotate_left(1);
    }
    println!(
        "| | latency, ms | CPU of the sender, ms per frame | CPU of the receiver, ms per frame | CPU of both, relative to plain TCP \
         | frames that arrived, % |\n|---|--:|--:|--:|--:|--:|"
    );
    all.sort_by_key(|(way, _)| *way as u8);
    let plain = all.iter().find(|(way, _)| *way == Way::PlainTcp);
    let plain = plain.map_or(&[][..], |(_, rounds)| rounds);
    all.iter()
        .for_each(|(way, rounds)| report(*way, rounds, plain));
    for (way, rounds) in &all {
        let torn: usize = rounds.iter().map(|it| it.torn).sum();
        println!("{}: {torn} torn frames", way.title());
    }
    Ok(())
}
