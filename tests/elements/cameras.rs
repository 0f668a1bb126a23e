// SPDX-License-Identifier: MPL-2.0

//! What cameras give that test sources do not: caps of DMA buffers, and memory that is scarce. `cargo xtask camera` tries the
//! same with the kernel's drivers. Here, a sealed memfd in a GstDmaBufMemory is the memory of the driver.

use std::fs;

use crate::descriptors::*;
use crate::support::{process::*, *};
use gst::prelude::*;
use gst_video::{VideoFormat, VideoFrameFlags, VideoMeta};

/// The caps that v4l2src of GStreamer 1.26 prefers for a camera of raw video. Elements upstream of xmemsink, such as
/// decodebin, accept them, and few elements downstream of xmemsrc do.
const DRM: &str =
    "video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=YUYV,width=64,height=64,framerate=30/1";
const PLAIN: &str = "video/x-raw,format=YUY2,width=64,height=64,framerate=30/1";
const ROW: usize = 128;

/// A white frame with rows of this distance. The bytes between the rows are not white.
fn white(memory: gst::Memory, stride: usize) -> gst::Buffer {
    let mut buffer = gst::Buffer::new();
    let content = buffer.get_mut().unwrap();
    content.append_memory(memory);
    for row in content.map_writable().unwrap().chunks_mut(stride) {
        for pixel in row[..ROW].chunks_mut(2) {
            pixel.copy_from_slice(&[235, 128]);
        }
    }
    let strides = [i32::try_from(stride).unwrap()];
    let none = VideoFrameFlags::empty();
    VideoMeta::add_full(content, none, VideoFormat::Yuy2, 64, 64, &[0], &strides).unwrap();
    buffer
}

fn of_driver(stride: usize) -> gst::Memory {
    let size = stride * 64;
    dmabuf_memory(7, size)
}

/// Shares three frames. Returns the pool's caps, and how many frames were copied.
#[track_caller]
fn are_read_in_another_process(caps: &str, frame: impl Fn() -> gst::Buffer) -> (String, u64) {
    let pools = prepared();
    let sender = pools.sender(&caps.parse().unwrap(), LOSSLESS);
    let file = pools.file("rgb");
    let mut consumer = Launch::new(
        &pools,
        "consumer",
        &format!(
            "-q xmemsrc pool={} ! videoconvert ! video/x-raw,format=RGB ! filesink location={}",
            pools.pool("p"),
            file.display()
        ),
    );
    (0..3).for_each(|_| sender.push(frame()));
    sender.finish();
    consumer.succeeds();
    let rgb = fs::read(file).unwrap();
    let dark = rgb.iter().filter(|byte| **byte < 250).count();
    assert_eq!((rgb.len(), dark), (3 * 3 * 64 * 64, 0));
    let stats = stats_of(&pools.pool("p"));
    let (_, caps) = stats.sticky.iter().find(|(key, _)| key == "caps").unwrap();
    (caps.clone(), stats.copied)
}

#[test]
fn linear_dma_buffers_are_read_by_every_consumer() {
    for stride in [ROW, 256] {
        let frame = || white(of_driver(stride), stride);
        for caps in [DRM, &DRM.replace("YUYV", "(string)YUYV:0x0000000000000000")] {
            let (shared, copied) = are_read_in_another_process(caps, frame);
            assert!(
                shared.starts_with("video/x-raw, format=(string)YUY2"),
                "{shared}"
            );
            assert_eq!(copied, 0);
        }
    }
}

/// v4l2src announces DMA buffers for v4l2loopback, which has none.
#[test]
fn frames_that_are_announced_as_dma_buffers_can_lie_elsewhere() {
    let frame = || white(gst::Memory::from_mut_slice(vec![0; ROW * 64]), ROW);
    let (shared, copied) = are_read_in_another_process(DRM, frame);
    assert!(shared.contains("YUY2") && !shared.contains("DMABuf"));
    assert_eq!(copied, 3);
}

/// Tiles, and formats without a name, can only be read with the help of a device.
#[test]
fn other_dma_buffers_keep_their_caps() {
    for drm_format in ["YUYV:0x0100000000000002", "XXXX"] {
        let pools = Pools::new();
        let caps = DRM.replace("YUYV", &format!("(string){drm_format}"));
        let caps: gst::Caps = caps.parse().unwrap();
        let sender = pools.sender(&caps, "");
        let receiver = pools.receiver("").connected();
        sender.push(white(of_driver(ROW), ROW));
        let sample = receiver.next().unwrap();
        assert_eq!(sample.caps_owned().unwrap(), caps);
    }
}

#[test]
fn a_source_that_can_do_without_the_feature_does() {
    let pools = Pools::new();
    let sender = pools.sender(&PLAIN.parse().unwrap(), "");
    let pad = sender.sink().static_pad("sink").unwrap();
    let both: gst::Caps = format!("{DRM};{PLAIN};image/jpeg").parse().unwrap();
    let answer = pad.query_caps(Some(&both));
    let first = answer.features(0).unwrap();
    assert!(!first.contains("memory:DMABuf"), "{answer}");
    assert_eq!(answer, both, "nothing is refused");
    let only: gst::Caps = DRM.parse().unwrap();
    assert_eq!(pad.query_caps(Some(&only)), only);
}

/// A driver's buffers, of which there are few. They wait for their memory to come back, as those of v4l2src do.
mod scarce {
    use gst::{glib, subclass::prelude::*};
    use std::sync::{Condvar, Mutex};

    use super::*;

    #[derive(Debug, Default)]
    pub struct Ring {
        /// The buffers that are here, if the pool does not tell how many it has.
        here: Mutex<Vec<gst::Buffer>>,
        returned: Condvar,
        is_silent: Mutex<bool>,
    }

    #[glib::object_subclass]
    impl ObjectSubclass for Ring {
        const NAME: &'static str = "ScarceBufferPool";
        type Type = Pool;
        type ParentType = gst::BufferPool;
    }

    impl ObjectImpl for Ring {}
    impl GstObjectImpl for Ring {}

    impl BufferPoolImpl for Ring {
        fn alloc_buffer(
            &self,
            _: Option<&gst::BufferPoolAcquireParams>,
        ) -> Result<gst::Buffer, gst::FlowError> {
            Ok(white(of_driver(ROW), ROW))
        }

        fn acquire_buffer(
            &self,
            params: Option<&gst::BufferPoolAcquireParams>,
        ) -> Result<gst::Buffer, gst::FlowError> {
            if !*self.is_silent.lock().unwrap() {
                return self.parent_acquire_buffer(params);
            }
            let here = self.here.lock().unwrap();
            let mut here = self.returned.wait_while(here, |it| it.is_empty()).unwrap();
            Ok(here.remove(0))
        }

        fn release_buffer(&self, buffer: gst::Buffer) {
            if !*self.is_silent.lock().unwrap() {
                return self.parent_release_buffer(buffer);
            }
            self.here.lock().unwrap().push(buffer);
            self.returned.notify_one();
        }
    }

    glib::wrapper! {
        pub struct Pool(ObjectSubclass<Ring>) @extends gst::BufferPool, gst::Object;
    }

    impl Pool {
        /// `is_silent`: its configuration has no maximum, as that of libcamerasrc.
        pub fn of(buffers: u32, is_silent: bool) -> Self {
            let pool: Self = glib::Object::new();
            let mut config = pool.config();
            let most = if is_silent { 0 } else { buffers };
            let caps: gst::Caps = PLAIN.parse().unwrap();
            config.set_params(Some(&caps), (ROW * 64) as u32, 0, most);
            pool.set_config(config).unwrap();
            pool.set_active(true).unwrap();
            if is_silent {
                let made = (0..buffers).map(|_| pool.acquire_buffer(None).unwrap());
                let made: Vec<_> = made.collect();
                *pool.imp().is_silent.lock().unwrap() = true;
                drop(made);
            }
            pool
        }
    }
}

/// Publishes frames as fast as buffers return. Returns when this many were published.
fn film(pool: &scarce::Pool, sender: &Sender, frames: u64) {
    let sink = sender.sink();
    let end = stat(&sink, "published") + stat(&sink, "dropped") + frames;
    let app = sender.app.clone();
    let pool = pool.clone();
    let camera = std::thread::spawn(move || {
        for _ in 0..frames {
            // It waits for a buffer without a limit.
            let buffer = pool.acquire_buffer(None).unwrap();
            app.push_buffer(buffer).unwrap();
        }
    });
    until("the camera is not stopped", || {
        stat(&sink, "published") + stat(&sink, "dropped") >= end
    });
    camera.join().unwrap();
}

/// Consumers that take as many frames as they may, each of them others, and then are stopped.
fn stopped_consumers(pools: &Pools, pool: &scarce::Pool, sender: &Sender) -> Vec<Launch> {
    let path = pools.pool("p");
    let pipeline = format!(
        "-q xmemsrc pool={path} client-name=hoarder ! queue min-threshold-buffers=1000 max-size-buffers=0 max-size-bytes=0 \
         max-size-time=0 ! fakesink"
    );
    let hoarder = |number: usize| {
        let consumer = Launch::new(pools, &format!("hoarder{number}"), &pipeline);
        let is_full = || {
            let consumers = stats_of(&path).consumers;
            let full = consumers
                .iter()
                .filter(|it| it.name == "hoarder" && it.held >= 8);
            full.count() == number
        };
        until("a consumer that holds 8 frames", || {
            film(pool, sender, 1);
            is_full() || stat(&sender.sink(), "dropped") > 0
        });
        consumer.signal(rustix::process::Signal::STOP);
        consumer
    };
    (1..=4).map(hoarder).collect()
}

/// The warnings that upstream has few buffers left.
fn warnings(pipeline: &Pipeline) -> Vec<String> {
    let mut warnings = pipeline.warnings();
    warnings.retain(|text| text.contains("upstream has"));
    warnings
}

#[test]
fn stopped_consumers_do_not_stop_a_camera() {
    for (buffers, is_silent) in [(4, false), (6, false), (32, false), (4, true), (16, true)] {
        let pools = prepared();
        let camera = scarce::Pool::of(buffers, is_silent);
        let sender = pools.sender(&PLAIN.parse().unwrap(), "");
        let healthy = pools.receiver("").connected();
        let stopped = stopped_consumers(&pools, &camera, &sender);
        film(&camera, &sender, 100);
        assert!(healthy.next().is_some());
        let sink = sender.sink();
        assert_eq!(stat(&sink, "dropped"), 0);
        let scarce = stat(&sink, "scarce");
        assert!(scarce > 0 && scarce == stat(&sink, "copied"), "{buffers}");
        let warnings = warnings(&sender.pipeline);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains(&format!("copied: upstream has {buffers} buffers")),
            "{warnings:?}"
        );
        let mut show = xmem(&pools, &["show", &pools.pool("p")]);
        let output = show.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_contains(&text, &format!("scarce   {scarce} frames"));
        // With the consumers, their buffers come back.
        drop(stopped);
        until("one consumer", || sink.property::<u32>("num-clients") == 1);
        // The healthy consumer still holds some, as it does not read them.
        until("frames that are not copied", || {
            let before = stat(&sink, "zero-copy");
            film(&camera, &sender, 20);
            buffers < 8 || stat(&sink, "zero-copy") == before + 20
        });
    }
}

/// Frames are shared in the memory of the driver while it has enough.
#[test]
fn a_camera_with_enough_buffers_is_not_copied() {
    let pools = prepared();
    let camera = scarce::Pool::of(32, false);
    let sender = pools.sender(&PLAIN.parse().unwrap(), "copy=forbid");
    let receiver = pools.receiver("").connected();
    for _ in 0..100 {
        film(&camera, &sender, 1);
        assert_dma_buffer(&receiver.next().unwrap());
    }
    assert_eq!(stat(&sender.sink(), "scarce"), 0);
    assert_eq!(stat(&sender.sink(), "dropped"), 0);
}

fn assert_dma_buffer(sample: &gst::Sample) {
    let memory = sample.buffer().unwrap().peek_memory(0);
    assert!(memory.is_memory_type::<gst_allocators::DmaBufMemory>());
}

/// Frames that may not be copied are dropped: the camera goes on in any case.
#[test]
fn frames_of_a_scarce_camera_that_may_not_be_copied_are_dropped() {
    let tiled = DRM.replace("YUYV", "(string)YUYV:0x0100000000000002");
    for (caps, properties) in [(PLAIN, "copy=forbid"), (tiled.as_str(), "")] {
        let pools = prepared();
        let camera = scarce::Pool::of(8, false);
        let sender = pools.sender(&caps.parse().unwrap(), properties);
        let _stopped = stopped_consumers(&pools, &camera, &sender);
        film(&camera, &sender, 100);
        let sink = sender.sink();
        assert_eq!(stat(&sink, "copied"), 0);
        let dropped = stat(&sink, "dropped");
        assert!(dropped > 0 && stat(&sink, "scarce") == dropped);
        let warnings = warnings(&sender.pipeline);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("dropped: upstream has 8 buffers"));
    }
}

/// Elements such as capssetter pass on a copy of the buffer with the same memory. Behind a tee, two pools borrow from one camera.
#[test]
fn buffers_are_counted_behind_other_elements() {
    for elements in [
        "identity single-segment=true",
        "capssetter caps=video/x-raw,pixel-aspect-ratio=1/1",
        "tee name=t t. ! queue ! xmemsink name=other pool=POOL2 sync=false t. ! queue",
    ] {
        let pools = prepared();
        let camera = scarce::Pool::of(12, false);
        let elements = elements.replace("POOL2", &pools.pool("other"));
        let pipeline = pools.launch(&format!(
            "appsrc name=app format=time ! {elements} ! xmemsink name=sink pool=POOL sync=false"
        ));
        let app: gst_app::AppSrc = pipeline.by_name("app").downcast().unwrap();
        app.set_caps(Some(&PLAIN.parse().unwrap()));
        pipeline.play();
        let sender = Sender { pipeline, app };
        let stopped = stopped_consumers(&pools, &camera, &sender);
        film(&camera, &sender, 100);
        assert!(stat(&sender.sink(), "scarce") > 0, "{elements}");
        drop(stopped);
    }
}

/// GstBaseSrc sends EOS after its error. The consumers wait for the next producer.
#[test]
fn an_error_is_not_the_end_of_the_stream() {
    let source = "videotestsrc is-live=true ! video/x-raw,width=64,height=48,format=GRAY8";
    for (source, is_failure) in [
        (format!("{source} ! identity error-after=20"), true),
        (format!("{source} ! identity error-after=20 ! queue"), true),
        (
            source.replace("is-live=true", "is-live=true num-buffers=20"),
            false,
        ),
    ] {
        let pools = prepared();
        let mut consumer = Launch::new(
            &pools,
            "consumer",
            &format!("-q xmemsrc pool={} ! fakesink sync=false", pools.pool("p")),
        );
        let receiver = pools.receiver("");
        let first = pools.launch(&format!("{source} ! xmemsink name=sink pool=POOL"));
        let both = |it: &Pipeline| it.sink().property::<u32>("num-clients") == 2;
        first.settle(gst::State::Ready);
        until("two consumers", || both(&first));
        first.play();
        if !is_failure {
            while receiver.next().is_some() {}
            consumer.succeeds();
            continue;
        }
        first.wait_error();
        // The EOS is posted when the sink has it.
        until("the end", || {
            let pad = first.sink().static_pad("sink").unwrap();
            pad.pad_flags().contains(gst::PadFlags::EOS)
        });
        first.stop();
        let second = pools.launch("videotestsrc is-live=true ! xmemsink name=sink pool=POOL");
        second.play();
        until("a frame", || {
            receiver.next().is_some() && receiver.stat("reconnects") == 1
        });
        until("both consumers are back", || both(&second));
        assert!(!consumer.has_ended(), "{}", consumer.log());
    }
}
