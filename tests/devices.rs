// SPDX-License-Identifier: MPL-2.0

//! The device provider, in this process and in `gst-device-monitor-1.0`.

// The runtime directory is set by an environment variable.
#![allow(unsafe_code)]

mod support;

use gst::prelude::*;
use rustix::process::Signal;
use support::{process::*, *};

const GRAY: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";
const WIDER: &str = "video/x-raw,format=GRAY8,width=128,height=32,framerate=30/1";
const AUDIO: &str = "audio/x-raw,format=S16LE,rate=48000,channels=1,layout=interleaved";

/// The next message of a device provider about a pool. Messages about other devices are skipped.
fn next(bus: &gst::Bus, kind: gst::MessageType) -> gst::Device {
    let message = bus.timed_pop(SOON).expect("a message");
    assert_eq!(message.type_(), kind, "{message:?}");
    match message.view() {
        gst::MessageView::DeviceAdded(message) => message.device(),
        gst::MessageView::DeviceRemoved(message) => message.device(),
        gst::MessageView::DeviceChanged(message) => message.device_changed().0,
        _ => unreachable!(),
    }
}

fn properties_of(device: &gst::Device) -> gst::Structure {
    device.properties().unwrap()
}

fn caps(text: &str) -> gst::Caps {
    text.parse().unwrap()
}

fn push(sender: &Sender) {
    sender.push(gst::Buffer::from_slice([1; 64 * 64]));
}

/// The only test that uses the provider in this process, because the runtime directory applies to the whole process.
#[test]
fn pools_come_change_and_go() {
    let pools = prepared();
    let socket = pool_path(&pools, "cam0");
    // SAFETY: nothing else of this program reads or writes the environment in threads of its own: the other test sets
    // the environment of its children only.
    unsafe { std::env::set_var("XMEM_RUNTIME_DIR", run_dir(&pools)) };
    let factory = gst::DeviceProviderFactory::find("xmemdeviceprovider").unwrap();
    assert!(factory.has_classes(Some("Video/Source")));
    let provider = factory.get().unwrap();
    assert!(provider.devices().is_empty());

    let sender = pools.sender(&GRAY.parse().unwrap(), &format!("pool={socket}"));
    push(&sender);
    sender.until_published(1);
    // Probed without starting the provider.
    let probed: Vec<_> = provider.devices().into_iter().collect();
    assert_eq!(probed.len(), 1);
    let probed = &probed[0];
    assert_eq!(probed.display_name(), "cam0");
    assert_eq!(probed.device_class(), "Video/Source");
    assert!(probed.caps().unwrap().can_intersect(&caps(GRAY)));
    let properties = properties_of(probed);
    assert_eq!(properties.get::<String>("device.api").unwrap(), "xmem");
    assert_eq!(properties.get::<String>("device.path").unwrap(), socket);
    assert_eq!(properties.get::<String>("xmem.pool").unwrap(), "cam0");
    assert_eq!(
        properties.get::<u32>("xmem.pid").unwrap(),
        std::process::id()
    );
    assert_eq!(properties.get::<String>("xmem.delivery").unwrap(), "live");

    // Existing pools are known when the call returns.
    let bus = provider.bus();
    provider.start().unwrap();
    let first = provider.devices().into_iter().next().unwrap();
    assert_eq!(next(&bus, gst::MessageType::DeviceAdded), first);

    // Other caps of the same kind.
    sender.app.set_caps(Some(&WIDER.parse().unwrap()));
    push(&sender);
    let changed = next(&bus, gst::MessageType::DeviceChanged);
    assert!(changed.caps().unwrap().can_intersect(&caps(WIDER)));
    assert!(!changed.caps().unwrap().can_intersect(&caps(GRAY)));
    let devices: Vec<_> = provider.devices().into_iter().collect();
    assert_eq!(devices, std::slice::from_ref(&changed));
    drop(devices);

    // For listeners that requested one kind only, caps of another kind are another device.
    sender.app.set_caps(Some(&AUDIO.parse().unwrap()));
    push(&sender);
    assert_eq!(next(&bus, gst::MessageType::DeviceRemoved), changed);
    let audio = next(&bus, gst::MessageType::DeviceAdded);
    assert_eq!(audio.device_class(), "Audio/Source");

    // The created element plays the pool.
    let element = audio.create_element(Some("mine")).unwrap();
    assert_eq!(element.name(), "mine");
    assert_eq!(element.property::<String>("pool"), "cam0");
    let pipeline = Pipeline(gst::Pipeline::new());
    let fakesink = gst::ElementFactory::make("fakesink").build().unwrap();
    pipeline.0.add_many([&element, &fakesink]).unwrap();
    element.link(&fakesink).unwrap();
    pipeline.play();
    until("connected", || stat(&element, "budget") > 0);
    assert!(
        audio.reconfigure_element(&element).is_err(),
        "it is running"
    );
    pipeline.stop();
    element.set_property("pool", "other");
    audio.reconfigure_element(&element).unwrap();
    assert_eq!(element.property::<String>("pool"), "cam0");
    assert!(audio.reconfigure_element(&fakesink).is_err());

    drop(sender);
    assert_eq!(next(&bus, gst::MessageType::DeviceRemoved), audio);
    assert!(provider.devices().is_empty());

    // The provider keeps no reference to them.
    let weak: Vec<_> = [&first, &changed, &audio, probed]
        .map(|device| device.downgrade())
        .into();
    drop((first, changed, audio));
    until("the devices are gone", || {
        weak[..3].iter().all(|device| device.upgrade().is_none())
    });

    provider.stop();
    // After a restart the provider finds new pools. Stopping it ends its thread.
    let _sender = pools.sender(&GRAY.parse().unwrap(), &format!("pool={socket}"));
    provider.start().unwrap();
    assert_eq!(provider.devices().len(), 1);
    provider.stop();
    for _ in 0..20 {
        provider.start().unwrap();
        provider.stop();
    }
    until("no thread is left", || {
        !std::fs::read_dir("/proc/self/task")
            .unwrap()
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
            .any(|name| name.starts_with("xmem-devices"))
    });
}

#[test]
fn gst_device_monitor_follows() {
    let pools = prepared();
    let mut monitor = command(&pools, "gst-device-monitor-1.0");
    let monitor = Launch::start(
        &pools,
        "monitor",
        monitor.args(["--follow", "Video/Source"]),
    );
    until("it monitors", || {
        monitor.log().contains("Monitoring devices")
    });
    let live = |pool: &str| {
        Launch::new(
            &pools,
            pool,
            &format!("videotestsrc is-live=true ! {GRAY} ! xmemsink pool={pool}"),
        )
    };
    // A stopped process does not answer but still exists.
    let frozen = live("frozen");
    until("the first", || {
        monitor
            .log()
            .contains("gst-launch-1.0 xmemsrc pool=frozen ! ...")
    });
    frozen.signal(Signal::STOP);
    let killed = live("killed");
    until("the second", || {
        let log = monitor.log();
        log.contains("gst-launch-1.0 xmemsrc pool=killed ! ...") && log.contains("GRAY8")
    });
    let mut stopped = live("stopped");
    until("the third", || {
        monitor.log().contains("xmemsrc pool=stopped ! ...")
    });
    assert!(
        !monitor.log().contains("Device removed"),
        "{}",
        monitor.log()
    );
    killed.signal(Signal::KILL);
    until("the second is gone", || {
        monitor.log().matches("Device removed").count() == 1
    });
    stopped.signal(Signal::INT);
    stopped.wait();
    until("the third is gone", || {
        monitor.log().matches("Device removed").count() == 2
    });
    frozen.signal(Signal::CONT);
    frozen.signal(Signal::KILL);
    until("the first is gone", || {
        monitor.log().matches("Device removed").count() == 3
    });
}
