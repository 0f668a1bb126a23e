// SPDX-License-Identifier: MPL-2.0

//! `xmem camera`: a pool as a camera of PipeWire, which pipewiresrc shows. PipeWire and WirePlumber run in a session of each test.

mod support;

use std::{fs, path::Path, process::Command};

use rustix::process::{Pid, Signal, kill_process};
use support::{process::*, *};

const WIDTH: usize = 320;
const HEIGHT: usize = 240;

/// A command in the session of this test.
fn in_session(pools: &Pools, mut command: Command) -> Command {
    let bus = pools.file("bus");
    command
        .env("XDG_RUNTIME_DIR", pools.path())
        .env("HOME", pools.path())
        .env(
            "DBUS_SESSION_BUS_ADDRESS",
            format!("unix:path={}", bus.display()),
        )
        .env_remove("PIPEWIRE_RUNTIME_DIR");
    for key in ["XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
        command.env_remove(key);
    }
    command
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn has_element(pools: &Pools) -> bool {
    let mut inspect = command(pools, "gst-inspect-1.0");
    let inspect = inspect.args(["--exists", "--atleast-version=0.0", "pipewiresink"]);
    inspect.status().unwrap().success()
}

/// A bus, PipeWire and WirePlumber. `None`: a message that they are missing was printed.
fn session(pools: &Pools) -> Option<[Launch; 3]> {
    let programs = ["dbus-daemon", "pipewire", "wireplumber", "pw-dump"];
    let missing: Vec<_> = programs.into_iter().filter(|it| !has(it)).collect();
    if !missing.is_empty() || !has_element(pools) {
        let missing = missing.join(", ");
        not_run(&format!(
            "no PipeWire (missing: {missing}, or the package gstreamer1.0-pipewire)"
        ));
        return None;
    }
    let start = |name: &str, args: &[String]| {
        let mut program = in_session(pools, Command::new(name));
        Launch::start(pools, name, program.args(args))
    };
    let bus = pools.file("bus");
    let address = format!("--address=unix:path={}", bus.display());
    let options = ["--session".into(), "--nofork".into(), address];
    let mut dbus = start("dbus-daemon", &options);
    until("the bus", || bus.exists() || dbus.has_ended());
    if dbus.has_ended() {
        // It runs only for users that have a name.
        not_run(&dbus.log().replace('\n', " "));
        return None;
    }
    let pipewire = start("pipewire", &[]);
    until("PipeWire", || pools.file("pipewire-0").exists());
    let wireplumber = start("wireplumber", &[]);
    Some([dbus, pipewire, wireplumber])
}

/// What PipeWire says of its objects.
fn objects(pools: &Pools) -> String {
    let output = in_session(pools, Command::new("pw-dump")).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A program that shows the camera: it writes gray pictures.
fn viewer(pools: &Pools, name: &str) -> Launch {
    let mut viewer = in_session(pools, command(pools, "gst-launch-1.0"));
    let pipeline = format!(
        "pipewiresrc target-object=xmem.p ! video/x-raw,width={WIDTH},height={HEIGHT} ! videoconvert ! video/x-raw,format=GRAY8 \
         ! filesink buffer-mode=unbuffered location={}",
        pools.file(&format!("{name}.raw")).display()
    );
    Launch::start(pools, name, viewer.args(pipeline.split_ascii_whitespace()))
}

/// The brightness of the picture that the program has shown last.
fn brightness(pools: &Pools, viewer: &str) -> Option<usize> {
    let bytes = fs::read(pools.file(&format!("{viewer}.raw"))).ok()?;
    let picture = bytes.chunks_exact(WIDTH * HEIGHT).next_back()?;
    Some(picture.iter().map(|it| usize::from(*it)).sum::<usize>() / picture.len())
}

fn white(pools: &Pools, size: &str) -> Launch {
    Launch::new(
        pools,
        "producer",
        &format!("videotestsrc is-live=true pattern=white ! video/x-raw,{size} ! xmemsink pool=p"),
    )
}

/// The words of the unit file, with a small picture.
fn camera(pools: &Pools) -> Launch {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/xmem-camera@.service");
    let unit = fs::read_to_string(unit).unwrap();
    let mut lines = unit.lines();
    let line = lines.find_map(|line| line.strip_prefix("ExecStart=/usr/bin/xmem "));
    let line = line.unwrap().replace("%i", "p");
    let mut args: Vec<_> = line.split(' ').collect();
    let size = format!("{WIDTH}x{HEIGHT}");
    args.extend(["--rate", "15", "--size", &size]);
    Launch::start(pools, "camera", &mut in_session(pools, xmem(pools, &args)))
}

#[test]
fn a_camera_is_shown_over_restarts_of_the_producer() {
    let pools = prepared();
    let Some(_session) = session(&pools) else {
        return;
    };
    // Before there is a producer.
    let mut camera = camera(&pools);
    until("the node", || objects(&pools).contains("\"xmem.p\""));
    let nodes = objects(&pools);
    assert_contains(&nodes, "\"Video/Source\"");
    let mut second = in_session(&pools, xmem(&pools, &["camera", "p"]));
    let output = second.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert_contains(&text, "PipeWire has a camera xmem.p already");
    let mut first = viewer(&pools, "first");
    let is_dark = |viewer| brightness(&pools, viewer).is_some_and(|it| it < 60);
    // It keeps the sides of the picture: the second producer's is between black bars.
    let is_bright = |viewer| brightness(&pools, viewer).is_some_and(|it| it > 100);
    until("no signal", || is_dark("first"));
    for size in ["width=640,height=480", "width=320,height=160"] {
        let mut producer = white(&pools, size);
        until("a picture", || is_bright("first"));
        producer.signal(Signal::KILL);
        producer.wait();
        until("no signal", || is_dark("first"));
    }
    // A second program, and another one after both have left.
    let _producer = white(&pools, "width=640,height=480");
    let second = viewer(&pools, "second");
    until("two pictures", || is_bright("first") && is_bright("second"));
    assert!(
        !first.has_ended() && !camera.has_ended(),
        "{}",
        camera.log()
    );
    drop((first, second));
    until("the node", || objects(&pools).contains("\"xmem.p\""));
    let third = viewer(&pools, "third");
    until("a picture", || is_bright("third"));
    drop(third);
    camera.signal(Signal::INT);
    camera.succeeds();
    until("no node", || !objects(&pools).contains("\"xmem.p\""));

    let doctor = in_session(&pools, xmem(&pools, &["doctor"]))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert_contains(&text, "runs, so `xmem camera` can show pools");
}

#[test]
fn a_camera_has_the_name_of_its_pool() {
    let pools = prepared();
    let Some(_session) = session(&pools) else {
        return;
    };
    let names = ["кухня", "10", "hall 1"];
    let nodes = [
        "xmem.%D0%BA%D1%83%D1%85%D0%BD%D1%8F",
        "xmem.10",
        "xmem.hall%201",
    ];
    for (node, name) in nodes.iter().zip(names) {
        let mut camera = in_session(&pools, xmem(&pools, &["camera", name, "--size", "320x240"]));
        let mut camera = Launch::start(&pools, "camera", &mut camera);
        let mut seen = String::new();
        until("the node", || {
            assert!(!camera.has_ended(), "{}", camera.log());
            seen = objects(&pools);
            seen.contains(&format!("\"node.name\": \"{node}\""))
        });
        let description =
            ["", "\""].map(|quote| format!("\"node.description\": {quote}{name}{quote}"));
        assert!(description.iter().any(|it| seen.contains(it)), "{seen}");
        camera.signal(Signal::INT);
        camera.succeeds();
    }
}

/// The program behind the camera hangs, as GStreamer's sink for PipeWire can.
#[test]
fn a_camera_that_hangs_is_started_again() {
    let pools = prepared();
    let Some(_session) = session(&pools) else {
        return;
    };
    let _producer = white(&pools, "width=640,height=480");
    let mut camera = camera(&pools);
    until("the node", || objects(&pools).contains("\"xmem.p\""));
    let first = viewer(&pools, "first");
    let is_bright = |viewer| brightness(&pools, viewer).is_some_and(|it| it > 100);
    until("a picture", || is_bright("first"));
    let tool = || Some(pool_stats(&pools, "p")?.consumers.first()?.pid);
    let hanging = tool().unwrap();
    let pid = Pid::from_raw(hanging as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    until("another one", || tool().is_some_and(|it| it != hanging));
    drop(first);
    let second = viewer(&pools, "second");
    until("a picture", || is_bright("second"));
    drop(second);
    camera.signal(Signal::INT);
    camera.succeeds();
    let log = camera.log();
    assert_contains(&log, "PipeWire takes no picture");
}

#[test]
fn errors_give_the_remedy() {
    let pools = prepared();
    let fails = |args: &[&str], code: i32, part: &str| {
        let output = xmem(&pools, args)
            .env("GST_PLUGIN_SYSTEM_PATH_1_0", pools.path())
            .env("GST_REGISTRY_1_0", pools.file("empty.bin"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert_contains(&text, part);
    };
    fails(&["camera", "p"], 1, "package gstreamer1.0-pipewire");
    let device = ["camera", "p", "--v4l2", "/dev/none"];
    fails(
        &device,
        1,
        "`sudo modprobe v4l2loopback video_nr=10 exclusive_caps=1` (package v4l2loopback-dkms)",
    );
    fails(&["camera", "p", "--size", "3x3"], 2, "such as 640x480");
    fails(&["camera", "p", "--rate", "0"], 2, "1..=240");
    if !has_element(&pools) {
        return not_run("no pipewiresink (Debian's gstreamer1.0-pipewire)");
    }
    // In a session without PipeWire.
    let camera = in_session(&pools, xmem(&pools, &["camera", "p"]));
    until_it_says(
        &pools,
        camera,
        "PipeWire must run in this session: `systemctl --user start",
    );
    let camera = xmem(&pools, &["camera", "p", "--v4l2", "/dev/null"]);
    until_it_says(&pools, camera, "must be one of v4l2loopback");
}

/// The command tries again, so that a program that starts later is found.
fn until_it_says(pools: &Pools, mut camera: Command, text: &str) {
    let mut camera = Launch::start(pools, "camera", &mut camera);
    until(text, || camera.log().contains(text) || camera.has_ended());
    let log = camera.log();
    assert_contains(&log, text);
    assert_contains(&log, "starting it again in");
    camera.signal(Signal::INT);
    camera.succeeds();
}
