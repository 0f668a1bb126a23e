// SPDX-License-Identifier: MPL-2.0

//! A child process of these tests. It has a pipeline and executes commands, one per line.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use gst::prelude::*;
use gst_app::{AppSink, AppSrc};
use gst_video::{VideoInfo, VideoMeta};
use xmem_core::cuda::Device;
use xmem_core::{FrameMeta, Producer, SlotSpec, Sticky, Text, VideoLayout};

use crate::child::{read_line, reply, role};
use crate::gstcuda::{LateCopy, device_address, is_writable, pool_with_stream, upload};
use crate::pictures::{difference, paint_like, painted};
use crate::support::{Pipeline, SOON, init, offered_pool};

/// The buffers and events that were seen at a pad.
#[derive(Debug, Default)]
struct Seen {
    buffers: u64,
    /// The addresses of GstMemory objects.
    memories: HashSet<usize>,
    addresses: HashSet<u64>,
    /// The device address of the last memory.
    address: Option<u64>,
}

/// Offsets and strides of planes, and caps.
type Layout = (Vec<usize>, Vec<i32>, gst::Caps);

#[derive(Default)]
struct Actor {
    pipeline: Option<Pipeline>,
    /// A second pipeline in the same process.
    second: Option<Pipeline>,
    samples: HashMap<u8, gst::Sample>,
    late: HashMap<u8, (LateCopy, Layout)>,
    /// The buffers for a source, and one that is painted but not yet pushed.
    pool: Option<gst::BufferPool>,
    painted: Option<gst::Buffer>,
    producer: Option<Producer>,
    seen: HashMap<String, Arc<Mutex<Seen>>>,
}

pub fn play() {
    let Some((_, pool)) = role() else { return };
    init();
    let mut actor = Actor::default();
    reply("ready");
    loop {
        let line = read_line();
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let rest = rest.replace("POOL", &pool);
        match actor.obey(word, &rest) {
            Ok(answer) => reply(answer),
            Err(error) => reply(format_args!("error: {}", error.replace('\n', " "))),
        }
    }
}

fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<String, String> {
    result
        .map(|_| "ok".to_owned())
        .map_err(|error| error.to_string())
}

impl Actor {
    fn pipeline(&self) -> Result<&Pipeline, String> {
        self.pipeline.as_ref().ok_or_else(|| "no pipeline".into())
    }

    fn element(&self, name: &str) -> Result<gst::Element, String> {
        let pipelines = self.pipeline.iter().chain(&self.second);
        let found = pipelines
            .filter_map(|pipeline| pipeline.0.by_name(name))
            .next();
        found.ok_or_else(|| format!("no element {name}"))
    }

    fn app_src(&self) -> Result<AppSrc, String> {
        Ok(self.element("in")?.downcast().unwrap())
    }

    fn sample(&self, number: &str) -> Result<&gst::Sample, String> {
        let number = number.parse().map_err(|_| format!("no number: {number}"))?;
        self.samples
            .get(&number)
            .ok_or_else(|| format!("no sample {number}"))
    }

    fn obey(&mut self, word: &str, rest: &str) -> Result<String, String> {
        let words: Vec<_> = rest.split_ascii_whitespace().collect();
        match (word, &*words) {
            ("prepare", _) => {
                self.pipeline = None;
                self.pipeline = Some(prepare(rest)?);
                Ok("ok".into())
            }
            ("launch", _) => {
                self.pipeline = None;
                let pipeline = self.pipeline.insert(prepare(rest)?);
                ok(pipeline.0.set_state(gst::State::Playing))
            }
            ("second", _) => {
                let pipeline = self.second.insert(prepare(rest)?);
                ok(pipeline.0.set_state(gst::State::Playing))
            }
            ("play", []) => ok(self
                .pipeline()?
                .0
                .set_state(gst::State::Playing)
                .map(|_| ())),
            ("stop", []) => ok(self.pipeline()?.0.set_state(gst::State::Null)),
            ("forget", []) => {
                self.pipeline = None;
                Ok("ok".into())
            }
            ("set", [element, property, value]) => {
                let element = self.element(element)?;
                element.set_property_from_str(property, value);
                Ok("ok".into())
            }
            ("caps", _) => {
                let caps = rest
                    .parse::<gst::Caps>()
                    .map_err(|error| error.to_string())?;
                self.app_src()?.set_caps(Some(&caps));
                Ok("ok".into())
            }
            ("push", [number]) => self.push(number.parse().map_err(|_| "no number")?),
            // Creates a pool of GstCudaMemory with a stream: GStreamer's own pool, or the one that the sink offers.
            ("pool", [kind]) => self.make_pool(kind),
            ("paint", [number]) => self.paint(number.parse().map_err(|_| "no number")?),
            ("cut-painted", []) => {
                let buffer = self.painted.as_mut().ok_or("nothing is painted")?;
                begin_in_the_second_row(buffer.make_mut())?;
                Ok("ok".into())
            }
            ("push-painted", []) => {
                let buffer = self.painted.take().ok_or("nothing is painted")?;
                ok(self.app_src()?.push_buffer(buffer))
            }
            ("copy-late" | "copy-late-elsewhere", [number]) => {
                let sample = self.sample(number)?.clone();
                let number = number.parse().unwrap();
                self.samples.remove(&number);
                let memory = sample.buffer().unwrap().peek_memory(0);
                let copy = if word == "copy-late" {
                    LateCopy::begin(memory)
                } else {
                    LateCopy::begin_elsewhere(memory)
                };
                // The layout of its planes, without the memory.
                let meta = sample.buffer().unwrap().meta::<VideoMeta>();
                let meta = meta.ok_or("no GstVideoMeta")?;
                let layout = (
                    meta.offset().to_vec(),
                    meta.stride().to_vec(),
                    sample.caps_owned().unwrap(),
                );
                self.late.insert(number, (copy, layout));
                Ok("ok".into())
            }
            ("check-late", [number]) => {
                let number = number.parse().map_err(|_| "no number")?;
                let (copy, (offsets, strides, caps)) =
                    self.late.remove(&number).ok_or("no late copy")?;
                let info = VideoInfo::from_caps(&caps).map_err(|error| error.to_string())?;
                let mut buffer = gst::Buffer::from_slice(copy.end());
                let flags = gst_video::VideoFrameFlags::empty();
                let (format, width, height) = (info.format(), info.width(), info.height());
                let buffer_ref = buffer.make_mut();
                VideoMeta::add_full(buffer_ref, flags, format, width, height, &offsets, &strides)
                    .map_err(|error| error.to_string())?;
                let sample = gst::Sample::builder().caps(&caps).buffer(&buffer).build();
                Ok(difference(&sample, number).unwrap_or_else(|| "same".into()))
            }
            // Whether the memory can be mapped for writing.
            ("is-writable", [number]) => {
                let buffer = self.sample(number)?.buffer().unwrap();
                Ok(is_writable(buffer.peek_memory(0)).to_string())
            }
            // Overwrites a frame, as an in-place filter does.
            ("overwrite", [number, with]) => self.overwrite(number, with),
            ("produce", _) => self.produce(&words),
            ("finish", []) => {
                ok(self.app_src()?.end_of_stream())?;
                self.until(gst::MessageType::Eos)
            }
            ("eos", []) => self.until(gst::MessageType::Eos),
            ("error", []) => self.until(gst::MessageType::Error),
            ("take", [number]) => self.take(number.parse().map_err(|_| "no number")?),
            ("check", [number]) => self.check(number, number),
            ("check", [number, wanted]) => self.check(number, wanted),
            ("drop", [number]) => {
                self.sample(number)?;
                self.samples.remove(&number.parse().unwrap());
                Ok("ok".into())
            }
            // The last buffer that a sink has received.
            ("last-sample", [element, number]) => {
                let sample = self
                    .element(element)?
                    .property::<gst::Sample>("last-sample");
                self.samples
                    .insert(number.parse().map_err(|_| "no number")?, sample);
                Ok("ok".into())
            }
            ("caps-of", [number]) => Ok(self.sample(number)?.caps().unwrap().to_string()),
            ("address", [number]) => {
                let buffer = self.sample(number)?.buffer().unwrap();
                let address = device_address(buffer.peek_memory(0));
                Ok(address.ok_or("it cannot be mapped")?.to_string())
            }
            ("layout", [number]) => self.layout(number),
            ("stat", [element, "num-clients"]) => {
                let number = self.element(element)?.property::<u32>("num-clients");
                Ok(number.to_string())
            }
            // The number of slots that all consumers hold together.
            ("stat", [element, "clients-hold"]) => {
                let stats = self.element(element)?.property::<gst::Structure>("stats");
                let clients = stats.get::<gst::Array>("clients");
                let clients = clients.map_err(|error| error.to_string())?;
                let held = clients.iter().map(|client| {
                    let client = client.get::<gst::Structure>().unwrap();
                    client.get::<u32>("held").unwrap()
                });
                Ok(held.sum::<u32>().to_string())
            }
            ("stat", [element, field]) => {
                let stats = self.element(element)?.property::<gst::Structure>("stats");
                let value = stats.value(*field).map_err(|error| error.to_string())?;
                value_to_text(value)
            }
            ("stats", [element]) => Ok(self
                .element(element)?
                .property::<gst::Structure>("stats")
                .to_string()),
            ("watch", [element, pad]) => self.watch(element, pad),
            ("seen", [element, what]) => {
                let seen = self.seen.get(*element).ok_or("not watched")?;
                let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(match *what {
                    "buffers" => seen.buffers,
                    "memories" => seen.memories.len() as u64,
                    "addresses" => seen.addresses.len() as u64,
                    _ => seen.address.unwrap_or(0),
                }
                .to_string())
            }
            ("state", [element, state]) => {
                let state = match *state {
                    "null" => gst::State::Null,
                    "paused" => gst::State::Paused,
                    _ => gst::State::Playing,
                };
                ok(self.element(element)?.set_state(state))
            }
            ("own-context", []) => self.own_context(),
            ("context", [element]) => Ok(format!("{:?}", context_of(&self.element(element)?))),
            _ => Err(format!("not known: {word} {rest}")),
        }
    }

    fn push(&self, number: u8) -> Result<String, String> {
        let app = self.app_src()?;
        let caps = app.caps().ok_or("no caps")?;
        let info = VideoInfo::from_caps(&caps).map_err(|error| error.to_string())?;
        ok(app.push_buffer(painted(&info, number)))
    }

    fn make_pool(&mut self, kind: &str) -> Result<String, String> {
        let sink = self.element("sink")?;
        let caps = self.app_src()?.caps().ok_or("no caps")?;
        let offered = (kind == "offered").then(|| offered_pool(&sink, &caps));
        let context = context_of(&sink).ok_or("no context")?;
        let pool = pool_with_stream(offered, context, &caps, kind == "ordered")?;
        self.pool = Some(pool);
        Ok("ok".into())
    }

    fn paint(&mut self, number: u8) -> Result<String, String> {
        let pool = self.pool.as_ref().ok_or("no pool")?;
        let caps = self.app_src()?.caps().ok_or("no caps")?;
        let mut buffer = pool
            .acquire_buffer(None)
            .map_err(|error| error.to_string())?;
        paint_like(&mut buffer, &caps, number)?;
        self.painted = Some(buffer);
        Ok("ok".into())
    }

    fn overwrite(&self, number: &str, with: &str) -> Result<String, String> {
        let sample = self.sample(number)?;
        let with = with.parse().map_err(|_| "no number")?;
        let caps = sample.caps_owned().unwrap();
        let mut buffer = sample.buffer_owned().unwrap();
        paint_like(&mut buffer, &caps, with)?;
        let written = gst::Sample::builder().buffer(&buffer).caps(&caps).build();
        Ok(difference(&written, with).unwrap_or_else(|| "same".into()))
    }

    /// The commands of a producer without GStreamer.
    fn produce(&mut self, words: &[&str]) -> Result<String, String> {
        let caps = |text: &str| text.parse::<gst::Caps>().map_err(|error| error.to_string());
        match *words {
            ["end"] => {
                self.producer = None;
                Ok("ok".into())
            }
            ["pool", name, text] => {
                let producer = Producer::builder(name).history(8).build();
                let producer = producer.map_err(|error| error.to_string())?;
                let mut sticky = Sticky::new();
                sticky.set("caps", caps(text)?.to_string());
                producer
                    .set_sticky(&sticky)
                    .map_err(|error| error.to_string())?;
                self.producer = Some(producer);
                Ok("ok".into())
            }
            // `layout`: whether the frame has a meta with the layout of its planes.
            [place, layout, number, text] => {
                let producer = self.producer.as_ref().ok_or("no producer")?;
                let caps = caps(text)?;
                let info = VideoInfo::from_caps(&caps).map_err(|error| error.to_string())?;
                let number: u8 = number.parse().map_err(|_| "no number")?;
                let frame = painted(&info, number);
                let bytes = frame.map_readable().unwrap();
                let mut meta = FrameMeta::new(bytes.len());
                meta.pts = Some(u64::from(number) * 40_000_000);
                if layout == "layout" {
                    meta.layout_mut().video = Some(video_layout(&info));
                }
                let mut slot = match place {
                    "device" => {
                        producer.acquire(SlotSpec::new(bytes.len()).on(&Device::new(0).unwrap()))
                    }
                    _ => producer.acquire(bytes.len()),
                }
                .map_err(|error| error.to_string())?;
                match slot.cuda() {
                    Some(on_device) => upload(on_device.ptr(), &bytes),
                    None => slot.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes),
                }
                ok(slot.publish(meta).map_err(|failure| failure.error))
            }
            _ => Err("not known".into()),
        }
    }

    fn take(&mut self, number: u8) -> Result<String, String> {
        let app: AppSink = self.element("app")?.downcast().unwrap();
        match app.try_pull_sample(SOON) {
            Some(sample) => {
                self.samples.insert(number, sample);
                Ok("ok".into())
            }
            None if app.is_eos() => Ok("eos".into()),
            None => Ok("none".into()),
        }
    }

    fn check(&self, number: &str, wanted: &str) -> Result<String, String> {
        let sample = self.sample(number)?;
        let wanted = wanted.parse().map_err(|_| "no number")?;
        Ok(difference(sample, wanted).unwrap_or_else(|| "same".into()))
    }

    /// The layout of a frame's planes, from its GstVideoMeta.
    fn layout(&self, number: &str) -> Result<String, String> {
        let buffer = self.sample(number)?.buffer().unwrap();
        let meta = buffer.meta::<VideoMeta>().ok_or("no GstVideoMeta")?;
        Ok(format!(
            "{:?} {:?} {}",
            meta.offset(),
            meta.stride(),
            buffer.size()
        ))
    }

    /// Waits for a message.
    fn until(&self, kind: gst::MessageType) -> Result<String, String> {
        let bus = self.pipeline()?.0.bus().unwrap();
        let kinds = [kind, gst::MessageType::Error];
        let message = bus
            .timed_pop_filtered(SOON, &kinds)
            .ok_or_else(|| format!("no message of {kind:?}"))?;
        match message.view() {
            gst::MessageView::Error(error) => {
                let text = error.error().message().to_owned();
                if kind == gst::MessageType::Error {
                    Ok(text.replace('\n', " "))
                } else {
                    Err(text)
                }
            }
            _ => Ok("ok".into()),
        }
    }

    /// Gives the pipeline a GstCudaContext that GStreamer created with a new context.
    fn own_context(&self) -> Result<String, String> {
        let kind = "gst.cuda.context";
        let other = prepare("cudaupload name=up ! fakesink")?;
        other
            .0
            .set_state(gst::State::Paused)
            .map_err(|error| error.to_string())?;
        let mut query = gst::query::Context::new(kind);
        let pad = other.by_name("up").static_pad("sink").unwrap();
        let context = pad.query(&mut query).then(|| query.context_owned());
        let context = context.flatten().ok_or("cudaupload has no context")?;
        self.pipeline()?.0.set_context(&context);
        Ok("ok".into())
    }

    /// Records the buffers and events at a pad.
    fn watch(&mut self, element: &str, pad: &str) -> Result<String, String> {
        let seen = Arc::<Mutex<Seen>>::default();
        self.seen.insert(element.to_owned(), seen.clone());
        let pad = self
            .element(element)?
            .static_pad(pad)
            .ok_or("no such pad")?;
        pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            let memory = info.buffer().unwrap().peek_memory(0);
            let address = device_address(memory);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.buffers += 1;
            seen.memories.insert(memory.as_ptr().addr());
            seen.addresses.extend(address);
            seen.address = address;
            gst::PadProbeReturn::Ok
        });
        Ok("ok".into())
    }
}

/// Shifts the rows of a picture, and lets its memory begin with the second row. The last row is lost.
fn begin_in_the_second_row(buffer: &mut gst::BufferRef) -> Result<(), String> {
    let stride = buffer
        .meta::<VideoMeta>()
        .ok_or("no GstVideoMeta")?
        .stride()[0] as usize;
    let rest = buffer.size() - stride;
    let mut map = buffer.map_writable().map_err(|error| error.to_string())?;
    map.copy_within(..rest, stride);
    drop(map);
    buffer.resize(stride..).map_err(|error| error.to_string())
}

fn video_layout(info: &VideoInfo) -> VideoLayout {
    let mut layout = VideoLayout {
        format: Text::new(info.format().to_str()),
        width: info.width(),
        height: info.height(),
        n_planes: info.n_planes(),
        ..VideoLayout::default()
    };
    for plane in 0..info.n_planes() as usize {
        layout.offsets[plane] = info.offset()[plane] as u64;
        layout.strides[plane] = info.stride()[plane];
    }
    layout
}

fn prepare(description: &str) -> Result<Pipeline, String> {
    let element = gst::parse::launch(description).map_err(|error| error.to_string())?;
    Ok(Pipeline(element.downcast().map_err(|_| "no pipeline")?))
}

fn value_to_text(value: &gst::glib::SendValue) -> Result<String, String> {
    if let Ok(text) = value.get::<String>() {
        return Ok(text);
    }
    if let Ok(number) = value.get::<u64>() {
        return Ok(number.to_string());
    }
    if let Ok(number) = value.get::<u32>() {
        return Ok(number.to_string());
    }
    value
        .serialize()
        .map(|text| text.to_string())
        .map_err(|error| error.to_string())
}

/// The address of an element's GstCudaContext. GStreamer's own elements only answer a query for it.
fn context_of(element: &gst::Element) -> Option<usize> {
    let kind = "gst.cuda.context";
    let of = |context: gst::Context| {
        let object = context.structure().get::<gst::Object>(kind).ok()?;
        Some(object.as_ptr().addr())
    };
    element.context(kind).and_then(of).or_else(|| {
        element.pads().into_iter().find_map(|pad| {
            let mut query = gst::query::Context::new(kind);
            pad.query(&mut query)
                .then(|| query.context_owned().and_then(of))?
        })
    })
}
