// SPDX-License-Identifier: MPL-2.0

//! What the processes of these tests do: each has a pipeline, and does what it is told, line by line.
#![allow(unsafe_code)] // memory is mapped for the device, which the bindings do not know

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

use gst::prelude::*;
use gst_app::{AppSink, AppSrc};
use gst_video::VideoInfo;

use crate::child::{hear, role, say};
use crate::pictures::{difference, painted};
use crate::support::{Pipeline, SOON, init};

/// `GST_MAP_CUDA`.
const GST_MAP_CUDA: u32 = gst::ffi::GST_MAP_FLAG_LAST << 1;

/// The address on the device that a memory has.
pub fn device_address(memory: &gst::MemoryRef) -> Option<u64> {
    let memory = memory.as_ptr().cast_mut();
    // SAFETY: a live memory, unmapped as it was mapped.
    unsafe {
        let mut map = MaybeUninit::zeroed();
        let flags = gst::ffi::GST_MAP_READ | GST_MAP_CUDA;
        if gst::ffi::gst_memory_map(memory, map.as_mut_ptr(), flags) == 0 {
            return None;
        }
        let mut map = map.assume_init();
        gst::ffi::gst_memory_unmap(memory, &raw mut map);
        Some(map.data.addr() as u64)
    }
}

/// What came by at a pad.
#[derive(Debug, Default)]
struct Seen {
    buffers: u64,
    /// GstMemory objects, as addresses.
    memories: HashSet<usize>,
    addresses: HashSet<u64>,
    /// The last one's.
    address: Option<u64>,
}

#[derive(Default)]
struct Actor {
    pipeline: Option<Pipeline>,
    /// Another one in the same process.
    second: Option<Pipeline>,
    samples: HashMap<u8, gst::Sample>,
    seen: HashMap<String, Arc<Mutex<Seen>>>,
}

pub fn play() {
    let Some((_, pool)) = role() else { return };
    init();
    let mut actor = Actor::default();
    say("ready");
    loop {
        let line = hear();
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let rest = rest.replace("POOL", &pool);
        match actor.obey(word, &rest) {
            Ok(answer) => say(answer),
            Err(error) => say(format_args!("error: {}", error.replace('\n', " "))),
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
            ("caps-of", [number]) => Ok(self.sample(number)?.caps().unwrap().to_string()),
            ("address", [number]) => {
                let buffer = self.sample(number)?.buffer().unwrap();
                let address = device_address(buffer.peek_memory(0));
                Ok(address.ok_or("it cannot be mapped")?.to_string())
            }
            ("layout", [number]) => self.layout(number),
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

    /// Where the planes of a frame are, by its GstVideoMeta.
    fn layout(&self, number: &str) -> Result<String, String> {
        let buffer = self.sample(number)?.buffer().unwrap();
        let meta = buffer
            .meta::<gst_video::VideoMeta>()
            .ok_or("no GstVideoMeta")?;
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
                let text = format!("{} {}", error.error(), error.debug().unwrap_or_default());
                if kind == gst::MessageType::Error {
                    Ok(text.replace('\n', " "))
                } else {
                    Err(text)
                }
            }
            _ => Ok("ok".into()),
        }
    }

    /// Gives the pipeline a GstCudaContext that GStreamer made for itself, in a context of its own.
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

    /// Notes what comes by at a pad.
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

/// The GstCudaContext of an element, as an address; those of GStreamer tell it only by a query.
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
