// SPDX-License-Identifier: MPL-2.0

//! Functions that all tests share.

// Each test program uses a part of this module.
#![allow(dead_code, unreachable_pub)]

pub mod process;
pub mod records;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Once, mpsc},
    thread,
    time::Duration,
};

use gst::glib::error::ErrorDomain;
use gst::prelude::*;
use gst_video::prelude::*;
use gstxmem::XmemMemory;

/// The time limit of a test. A test that hangs is killed.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time limit for a message on the bus.
pub const SOON: gst::ClockTime = gst::ClockTime::from_seconds(60);

/// The H.264 decoder for frames of this width. If the width is not a multiple of 16, avdec replaces its buffer pool repeatedly,
/// without a lock against its other threads. With several threads it sometimes aborts or fails, with any downstream (seen with
/// 1.26.2; docs/xmemsink.md).
pub fn avdec(width: u32) -> &'static str {
    if width.is_multiple_of(16) {
        "avdec_h264"
    } else {
        "avdec_h264 max-threads=1"
    }
}

pub fn init() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        gst::init().unwrap();
        gstxmem::plugin_register_static().unwrap();
    });
}

/// Prints that a test, or a part of it, did not run. `cargo xtask test` lists it at the end, unless it runs the test program again.
pub fn not_run(why: &str) {
    let thread = thread::current();
    let line = format!("{}: {why}", thread.name().unwrap_or("a test"));
    eprintln!("NOT RUN: {line}");
    let runs_again = std::env::var("XMEM_RUN_AGAIN").is_ok_and(|again| {
        let program = std::env::current_exe().unwrap();
        program
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(&again)
    });
    if let Some(file) = std::env::var_os("XMEM_NOT_RUN").filter(|_| !runs_again) {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().append(true).open(file);
        // One write, because tests run in parallel.
        let line = line.replace('\n', " ") + "\n";
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Kills the test program if the value is not dropped in time.
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

pub fn watchdog() -> Watchdog {
    let (alive, gone) = mpsc::channel();
    let name = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if gone.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs");
            std::process::abort();
        }
    });
    Watchdog { _alive: alive }
}

/// The statistics of a pool's producer. The query is repeated if the producer of a busy machine does not answer in time.
#[track_caller]
pub fn stats_of(pool: &str) -> xmem_core::PoolStats {
    let mut stats = None;
    until("an answer", || {
        stats = match xmem_core::discovery::query(pool) {
            Err(xmem_core::ConnectError::NoAnswer { .. }) => None,
            answer => Some(answer.unwrap()),
        };
        stats.is_some()
    });
    stats.unwrap()
}

/// A directory for one test, with the sockets of its pools.
pub struct Pools {
    dir: tempfile::TempDir,
    _watchdog: Watchdog,
}

impl Pools {
    #[track_caller]
    pub fn new() -> Self {
        init();
        Self {
            dir: tempfile::tempdir().unwrap(),
            _watchdog: watchdog(),
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path of a pool's socket, which is also its name.
    pub fn pool(&self, name: &str) -> String {
        self.file(&format!("{name}.sock"))
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// A pipeline from a description. `POOL` is replaced by the pool `p`.
    #[track_caller]
    pub fn launch(&self, description: &str) -> Pipeline {
        let description = description.replace("POOL", &self.pool("p"));
        let element = gst::parse::launch(&description)
            .unwrap_or_else(|error| panic!("{description}: {error}"));
        Pipeline(element.downcast().unwrap())
    }

    /// Plays a pipeline from beginning to end.
    #[track_caller]
    pub fn run(&self, description: &str) -> Pipeline {
        let pipeline = self.launch(description);
        pipeline.play();
        pipeline.wait_eos();
        pipeline
    }

    /// `xmemsrc` into an appsink that can read GstVideoMeta.
    #[track_caller]
    pub fn receiver(&self, properties: &str) -> Receiver {
        self.receiver_behind(properties, "")
    }

    /// As `receiver`, with elements in between, each followed by `!`.
    #[track_caller]
    pub fn receiver_behind(&self, properties: &str, elements: &str) -> Receiver {
        let receiver = self.prepare_receiver(properties, elements);
        read_any_layout(receiver.app.upcast_ref());
        receiver.pipeline.play();
        receiver
    }

    /// A receiver whose appsink does not support GstVideoMeta.
    #[track_caller]
    pub fn simple_receiver(&self, properties: &str) -> Receiver {
        let receiver = self.prepare_receiver(properties, "");
        receiver.pipeline.play();
        receiver
    }

    #[track_caller]
    fn prepare_receiver(&self, properties: &str, elements: &str) -> Receiver {
        let pipeline = self.launch(&format!(
            "xmemsrc name=src pool=POOL {properties} \
             ! {elements} appsink name=app sync=false max-buffers=1"
        ));
        let app = pipeline.by_name("app").downcast().unwrap();
        Receiver { pipeline, app }
    }
}

/// Lets a sink announce GstVideoMeta in ALLOCATION queries.
fn read_any_layout(sink: &gst::Element) {
    sink.static_pad("sink")
        .unwrap()
        .add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, |_, info| {
            if let Some(query) = info.query_mut()
                && let gst::QueryViewMut::Allocation(query) = query.view_mut()
            {
                query.add_allocation_meta::<gst_video::VideoMeta>(None);
                return gst::PadProbeReturn::Handled;
            }
            gst::PadProbeReturn::Ok
        });
}

/// A pipeline. It is stopped when it is dropped.
pub struct Pipeline(pub gst::Pipeline);

impl Drop for Pipeline {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

impl Pipeline {
    #[track_caller]
    pub fn by_name(&self, name: &str) -> gst::Element {
        self.0
            .by_name(name)
            .unwrap_or_else(|| panic!("no element {name}"))
    }

    #[track_caller]
    pub fn sink(&self) -> gst::Element {
        self.by_name("sink")
    }

    /// The states of the elements and their streaming threads, for failure messages.
    fn states(&self) -> String {
        let all = self.0.iterate_elements().into_iter().flatten();
        let elements = all.chain([self.0.clone().upcast()]).map(|element| {
            let (current, pending) = (element.current_state(), element.pending_state());
            let pad = element.static_pad("src");
            let task = pad.map(|pad| pad.task_state());
            format!("{} {current:?} {pending:?} {task:?}", element.name())
        });
        elements.collect::<Vec<_>>().join(", ")
    }

    #[track_caller]
    pub fn play(&self) {
        self.0.set_state(gst::State::Playing).unwrap();
    }

    /// Changes the state and waits until the change is complete. A second change during the first one can get lost.
    #[track_caller]
    pub fn settle(&self, state: gst::State) {
        self.0.set_state(state).unwrap();
        self.0.state(SOON).0.unwrap();
    }

    #[track_caller]
    pub fn stop(&self) {
        self.0.set_state(gst::State::Null).unwrap();
    }

    /// The next message of one of these types. Unexpected errors fail the test.
    #[track_caller]
    pub fn wait(&self, types: &[gst::MessageType]) -> gst::Message {
        let mut all = types.to_vec();
        all.push(gst::MessageType::Error);
        let message = self
            .0
            .bus()
            .unwrap()
            .timed_pop_filtered(SOON, &all)
            .unwrap_or_else(|| panic!("no message of {types:?}"));
        if let gst::MessageView::Error(error) = message.view()
            && !types.contains(&gst::MessageType::Error)
        {
            panic!(
                "{}: {} ({:?})",
                error.src().unwrap().name(),
                error.error(),
                error.debug()
            );
        }
        message
    }

    #[track_caller]
    pub fn wait_eos(&self) {
        self.wait(&[gst::MessageType::Eos]);
    }

    /// Waits for an error. Returns it and its message, which is the part that applications show.
    #[track_caller]
    pub fn wait_error(&self) -> (gst::glib::Error, String) {
        let message = self.wait(&[gst::MessageType::Error]);
        let gst::MessageView::Error(error) = message.view() else {
            unreachable!()
        };
        let error = error.error();
        let text = error.message().to_owned();
        (error, text)
    }

    /// Waits for an error of this kind whose message contains this. Returns the message.
    #[track_caller]
    pub fn fails_with(&self, kind: impl ErrorDomain, part: &str) -> String {
        let (error, text) = self.wait_error();
        assert!(error.matches(kind), "{text}");
        assert_contains(&text, part);
        text
    }

    /// The warnings that wait on the bus: the parts that applications show.
    #[track_caller]
    pub fn warnings(&self) -> Vec<String> {
        let bus = self.0.bus().unwrap();
        std::iter::from_fn(|| bus.pop_filtered(&[gst::MessageType::Warning]))
            .map(|message| match message.view() {
                gst::MessageView::Warning(warning) => warning.error().message().to_owned(),
                _ => unreachable!(),
            })
            .collect()
    }

    /// A field of an element's statistics.
    #[track_caller]
    pub fn stat(&self, element: &str, field: &str) -> u64 {
        stat(&self.by_name(element), field)
    }

    /// Waits until the sink has published this number of frames.
    #[track_caller]
    pub fn until_published(&self, count: u64) {
        let sink = self.sink();
        until(&format!("{count} frames are published"), || {
            stat(&sink, "published") == count
        });
    }
}

/// A field of an element's statistics.
#[track_caller]
pub fn stat(element: &gst::Element, field: &str) -> u64 {
    let stats = element.property::<gst::Structure>("stats");
    stats
        .get::<u64>(field)
        .or_else(|_| stats.get::<u32>(field).map(u64::from))
        .unwrap_or_else(|error| panic!("{field} of {stats}: {error}"))
}

/// Asserts that a text contains this.
#[track_caller]
pub fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in this:\n{text}");
}

/// Waits until a condition is true.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE / 2, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A source with an appsink that the test reads.
pub struct Receiver {
    pub pipeline: Pipeline,
    pub app: gst_app::AppSink,
}

impl Receiver {
    #[track_caller]
    pub fn src(&self) -> gst::Element {
        self.pipeline.by_name("src")
    }

    #[track_caller]
    pub fn stat(&self, field: &str) -> u64 {
        self.pipeline.stat("src", field)
    }

    #[track_caller]
    pub fn fails_with(&self, kind: impl ErrorDomain, part: &str) -> String {
        self.pipeline.fails_with(kind, part)
    }

    /// Waits until the source is connected to a producer.
    #[track_caller]
    pub fn connected(self) -> Self {
        let src = self.src();
        until("connected", || stat(&src, "budget") > 0);
        self
    }

    /// The next sample; `None` at the end of the stream.
    #[track_caller]
    pub fn next(&self) -> Option<gst::Sample> {
        match self.app.try_pull_sample(SOON) {
            Some(sample) => Some(sample),
            None => {
                let bus = self.pipeline.0.bus().unwrap();
                let why = bus.pop_filtered(&[gst::MessageType::Error, gst::MessageType::Eos]);
                match why {
                    Some(message) if message.type_() == gst::MessageType::Error => {
                        panic!("no sample: {message:?}");
                    }
                    // A thread may wait for the message.
                    Some(message) => bus.post(message).unwrap(),
                    None => {}
                }
                assert!(self.app.is_eos(), "no sample: {}", self.pipeline.states());
                None
            }
        }
    }

    /// All samples until the end of the stream.
    #[track_caller]
    pub fn rest(&self) -> Vec<gst::Sample> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// A buffer's bytes.
pub fn bytes(buffer: &gst::BufferRef) -> Vec<u8> {
    buffer.map_readable().unwrap().to_vec()
}

/// The bytes of a frame's planes without padding.
#[track_caller]
pub fn pixels(sample: &gst::Sample) -> Vec<u8> {
    let info = gst_video::VideoInfo::from_caps(sample.caps().unwrap()).unwrap();
    let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(sample.buffer().unwrap(), &info)
        .unwrap();
    let mut all = Vec::new();
    for plane in 0..frame.n_planes() {
        let stride = usize::try_from(frame.plane_stride()[plane as usize]).unwrap();
        let default_stride = usize::try_from(info.stride()[plane as usize]).unwrap();
        let format = frame.format_info();
        if format.has_palette() && plane == 1 {
            all.extend_from_slice(&frame.plane_data(plane).unwrap()[..1024]);
            continue;
        }
        let component = format
            .plane()
            .iter()
            .position(|at| *at == plane)
            .map(|component| u8::try_from(component).unwrap())
            .unwrap();
        let pixel = usize::try_from(format.pixel_stride()[component as usize]).unwrap();
        let width = format.scale_width(component, info.width()) as usize;
        let row = if pixel > 0 {
            width * pixel
        } else {
            default_stride
        };
        let rows = format.scale_height(component, info.height()) as usize;
        let data = frame.plane_data(plane).unwrap();
        (0..rows).for_each(|y| all.extend_from_slice(&data[y * stride..][..row]));
    }
    all
}

/// The frames of `description` without a pool. It has no sink.
#[track_caller]
pub fn reference(description: &str) -> Vec<gst::Sample> {
    init();
    let element = gst::parse::launch(&format!(
        "{description} ! appsink name=app sync=false max-buffers=1"
    ))
    .unwrap();
    let pipeline = Pipeline(element.downcast().unwrap());
    let app = pipeline
        .by_name("app")
        .downcast::<gst_app::AppSink>()
        .unwrap();
    pipeline.play();
    std::iter::from_fn(|| app.pull_sample().ok()).collect()
}

/// The file and offset of a mapped address. Two mappings of the same byte are equal.
#[track_caller]
pub fn place_of(address: *const u8) -> (String, usize) {
    let address = address as usize;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next().unwrap().split_once('-').unwrap();
        let hex = |text: &str| usize::from_str_radix(text, 16).unwrap();
        if (hex(from)..hex(to)).contains(&address) {
            let (offset, device, inode) = (
                fields.nth(1).unwrap(),
                fields.next().unwrap(),
                fields.next().unwrap(),
            );
            return (
                format!("{device} {inode}"),
                hex(offset) + address - hex(from),
            );
        }
    }
    panic!("{address:x} is not mapped");
}

/// The file and offset of a buffer's first byte.
#[track_caller]
pub fn place(buffer: &gst::BufferRef) -> (String, usize) {
    place_of(buffer.map_readable().unwrap().as_ptr())
}

/// The slot and generation of a buffer. `None` if it is not in a slot.
#[track_caller]
pub fn slot_of(buffer: &gst::BufferRef) -> Option<(u32, u32)> {
    let memory = buffer.peek_memory(0).downcast_memory_ref::<XmemMemory>()?;
    Some((memory.slot()?, memory.generation()?))
}

/// Whether the buffer's first memory can only be read.
pub fn is_read_only(buffer: &gst::BufferRef) -> bool {
    let flags = buffer.peek_memory(0).flags();
    flags.contains(gst::MemoryFlags::READONLY)
}

/// Whether the frame is marked as the first one behind a gap.
#[track_caller]
pub fn is_discont(sample: &gst::Sample) -> bool {
    let flags = sample.buffer().unwrap().flags();
    flags.contains(gst::BufferFlags::DISCONT)
}

/// What was noted at a pad, in order.
pub type Noted<T> = Arc<Mutex<Vec<T>>>;

/// Notes what `look` returns for all that passes a pad of this type: buffers, events or queries.
pub fn note<T: Send + 'static>(
    pad: &gst::Pad,
    types: gst::PadProbeType,
    look: impl Fn(&gst::PadProbeInfo<'_>) -> Option<T> + Send + Sync + 'static,
) -> Noted<T> {
    let noted = Noted::default();
    let to = noted.clone();
    pad.add_probe(types, move |_, info| {
        let seen = look(info);
        to.lock().unwrap().extend(seen);
        gst::PadProbeReturn::Ok
    });
    noted
}

/// Whether this is an ALLOCATION query.
pub fn is_allocation(info: &gst::PadProbeInfo<'_>) -> bool {
    let query = info.query();
    query.is_some_and(|query| query.type_() == gst::QueryType::Allocation)
}

/// The memories at a sink's pad: the file and offset by slot and generation.
pub type Seen = Arc<Mutex<HashMap<(u32, u32), (String, usize)>>>;

/// Records the location of each buffer that reaches the sink. Buffers in other memory are ignored.
pub fn watch(sink: &gst::Element) -> Seen {
    let seen = Seen::default();
    let noted = seen.clone();
    sink.static_pad("sink")
        .unwrap()
        .add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            let buffer = info.buffer().unwrap();
            if let Some(slot) = slot_of(buffer) {
                let place = place(buffer);
                noted
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .insert(slot, place);
            }
            gst::PadProbeReturn::Ok
        });
    seen
}

/// The sink's answer to an ALLOCATION query.
#[track_caller]
pub fn ask(
    sink: &gst::Element,
    caps: &gst::Caps,
    need_pool: bool,
) -> gst::query::Allocation<gst::Query> {
    let mut query = gst::query::Allocation::new(Some(caps), need_pool);
    assert!(
        sink.static_pad("sink").unwrap().query(&mut query),
        "the ALLOCATION query is answered"
    );
    query
}

/// The pool that a sink offers.
#[track_caller]
pub fn offered_pool(sink: &gst::Element, caps: &gst::Caps) -> gst::BufferPool {
    ask(sink, caps, true)
        .allocation_pools()
        .next()
        .unwrap()
        .0
        .unwrap()
}

/// Fills each plane of a frame with a pattern that is unique for the frame number.
pub fn paint(buffer: &mut gst::Buffer, info: &gst_video::VideoInfo, number: u8) {
    let buffer = buffer.make_mut();
    let mut frame = gst_video::VideoFrameRef::from_buffer_ref_writable(buffer, info).unwrap();
    for plane in 0..frame.n_planes() {
        for (at, byte) in frame.plane_data_mut(plane).unwrap().iter_mut().enumerate() {
            *byte = (at % 251) as u8 ^ number ^ (plane as u8) << 6;
        }
    }
}

/// An appsrc with a sink, for buffers that the test creates. `p` is the pool.
pub struct Sender {
    pub pipeline: Pipeline,
    pub app: gst_app::AppSrc,
}

impl Pools {
    #[track_caller]
    pub fn sender(&self, caps: &gst::Caps, properties: &str) -> Sender {
        let pipeline = self.launch(&format!(
            "appsrc name=app format=time ! xmemsink name=sink pool=POOL sync=false {properties}"
        ));
        let app = pipeline
            .by_name("app")
            .downcast::<gst_app::AppSrc>()
            .unwrap();
        app.set_caps(Some(caps));
        pipeline.play();
        Sender { pipeline, app }
    }
}

impl Sender {
    #[track_caller]
    pub fn sink(&self) -> gst::Element {
        self.pipeline.sink()
    }

    #[track_caller]
    pub fn push(&self, buffer: gst::Buffer) {
        self.app.push_buffer(buffer).unwrap();
    }

    #[track_caller]
    pub fn until_published(&self, count: u64) {
        self.pipeline.until_published(count);
    }

    #[track_caller]
    pub fn fails_with(&self, kind: impl ErrorDomain, part: &str) -> String {
        self.pipeline.fails_with(kind, part)
    }

    /// Ends the stream and waits until the sink has seen it.
    #[track_caller]
    pub fn finish(&self) {
        self.app.end_of_stream().unwrap();
        self.pipeline.wait_eos();
    }
}

pub const LOSSLESS: &str = "delivery=lossless wait-for-connection=true";
