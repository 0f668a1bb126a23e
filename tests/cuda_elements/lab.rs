// SPDX-License-Identifier: MPL-2.0

//! A machine with stand-in devices, a pool, and child processes with pipelines that use both.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use xmem_cuda_standin::Machine;

use crate::child::Child;
use crate::support::{Pools, not_run, until};

/// The plugins of the child processes. Scanning all installed plugins in each test would take too long.
const PLUGINS: [&str; 8] = [
    "coreelements",
    "app",
    "videotestsrc",
    "videoconvertscale",
    "videorate",
    "nvcodec",
    "debugutilsbad",
    "autoconvert",
];

/// The driver's functions for copies on a device.
pub const COPIES: [&str; 6] = [
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyPeerAsync",
    "cuMemcpyPeer",
    "cuMemcpyAsync",
    "cuMemcpy",
];

pub struct Lab {
    pools: Pools,
    pub machine: Machine,
}

impl Lab {
    /// Returns `None` and prints a message if the elements are not installed.
    pub fn new() -> Option<Self> {
        let pools = Pools::new();
        if gst::version() < (1, 24, 0, 0) {
            not_run("GStreamer is older than 1.24, and has no CUDA memory that can be shared");
            return None;
        }
        let Some(from) = plugin_dir().filter(|dir| dir.join("libgstnvcodec.so").exists()) else {
            not_run("GStreamer's CUDA elements are not installed");
            return None;
        };
        let to = pools.file("plugins");
        std::fs::create_dir(&to).unwrap();
        for plugin in PLUGINS {
            let name = format!("libgst{plugin}.so");
            symlink(from.join(&name), to.join(name)).unwrap();
        }
        let machine = Machine::new(pools.file("machine"));
        Some(Self { pools, machine })
    }

    /// Adds a setting of the stand-in.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.machine = self.machine.with(name, value);
        self
    }

    pub fn pool(&self) -> String {
        self.pools.pool("p")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.pools.file(name)
    }

    /// A process that uses the devices and has no pipeline yet.
    pub fn actor(&self) -> Actor {
        self.actor_with(&[])
    }

    /// As `actor`, with environment variables.
    pub fn actor_with(&self, variables: &[(&str, &str)]) -> Actor {
        let mut command = Command::new(std::env::current_exe().unwrap());
        self.machine.prepare(&mut command);
        command
            .env("GST_PLUGIN_SYSTEM_PATH_1_0", self.pools.file("plugins"))
            .env_remove("GST_PLUGIN_PATH")
            .env_remove("GST_PLUGIN_PATH_1_0")
            .env("GST_REGISTRY_1_0", self.pools.file("registry.bin"))
            .envs(variables.iter().copied());
        let mut child = Child::from(command, "actor", &self.pool());
        assert_eq!(child.reply(), "ready");
        Actor(child)
    }

    /// A process with this pipeline, started. `POOL` is replaced by the pool.
    #[track_caller]
    pub fn launch(&self, pipeline: &str) -> Actor {
        let mut actor = self.actor();
        actor.run(&format!("launch {pipeline}"), "ok");
        actor
    }

    /// A process with a source whose frames the test paints. `caps` must not have memory features.
    #[track_caller]
    pub fn producer(&self, caps: &str, sink: &str) -> Actor {
        self.launch(&producer(caps, sink))
    }

    /// A process with xmemsrc and a sink from which the test takes frames one by one.
    #[track_caller]
    pub fn consumer(&self, properties: &str, behind: &str) -> Actor {
        self.launch(&consumer(properties, behind))
    }

    /// A process that reads frames on the device, one that downloads them by another element, and one whose source does.
    #[track_caller]
    pub fn consumers(&self) -> [Actor; 3] {
        [
            self.consumer("", ""),
            self.consumer("", "cudadownload ! video/x-raw !"),
            self.consumer("download=true", ""),
        ]
    }

    /// The number of calls of these driver functions in a process.
    pub fn calls(&self, actor: &Actor, names: &[&str]) -> u64 {
        let calls = self.machine.calls(actor.0.pid());
        names.iter().filter_map(|name| calls.get(*name)).sum()
    }

    /// Asserts that no process made a forbidden call and no operation on a device failed.
    #[track_caller]
    pub fn assert_allowed(&self) {
        assert_eq!(self.machine.violations(), Vec::<String>::new());
        assert_eq!(self.machine.errors(), Vec::<String>::new());
    }
}

/// The pipeline of [`Lab::producer`].
pub fn producer(caps: &str, sink: &str) -> String {
    format!(
        "appsrc name=in format=time caps=\"{caps}\" ! cudaupload name=up \
         ! video/x-raw(memory:CUDAMemory) ! xmemsink name=sink pool=POOL sync=false {sink}"
    )
}

/// The pipeline of [`Lab::consumer`]. `behind` are elements in between, each followed by `!`.
pub fn consumer(properties: &str, behind: &str) -> String {
    format!(
        "xmemsrc name=src pool=POOL {properties} ! {behind} appsink name=app sync=false max-buffers=1 enable-last-sample=false"
    )
}

/// The folder of GStreamer's plugins.
fn plugin_dir() -> Option<PathBuf> {
    let plugin = gst::Registry::get().find_plugin("coreelements")?;
    Some(plugin.filename()?.parent()?.to_owned())
}

/// A process with a pipeline. It is killed when it is dropped.
pub struct Actor(pub Child);

impl Actor {
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Runs a command and returns the reply.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.0.send(line);
        self.0.reply()
    }

    /// Runs a command and asserts its reply.
    #[track_caller]
    pub fn run(&mut self, line: &str, answer: &str) {
        assert_eq!(self.ask(line), answer, "to {line:?}");
    }

    #[track_caller]
    pub fn number(&mut self, line: &str) -> u64 {
        let answer = self.ask(line);
        answer
            .parse()
            .unwrap_or_else(|_| panic!("{answer:?} to {line:?}"))
    }

    /// A field of an element's statistics.
    #[track_caller]
    pub fn stat(&mut self, element: &str, field: &str) -> u64 {
        self.number(&format!("stat {element} {field}"))
    }

    /// Waits until a field has this value.
    #[track_caller]
    pub fn until_stat(&mut self, element: &str, field: &str, value: u64) {
        let mut last = 0;
        until(&format!("{field} of {element} is {value}"), || {
            last = self.stat(element, field);
            last == value
        });
    }

    /// Waits until a field is at most this value. Slots become free shortly after the last release.
    #[track_caller]
    pub fn until_at_most(&mut self, element: &str, field: &str, most: u64) {
        until(&format!("{field} of {element} is {most} at most"), || {
            self.stat(element, field) <= most
        });
    }

    /// Waits until the source has found the producer.
    #[track_caller]
    pub fn connected(mut self) -> Self {
        until("connected", || self.stat("src", "budget") > 0);
        self
    }

    /// Pushes the frame with this number.
    #[track_caller]
    pub fn push(&mut self, number: u8) {
        self.run(&format!("push {number}"), "ok");
    }

    /// Takes the next frame, asserts that it is complete and has this number, and keeps it.
    #[track_caller]
    pub fn takes(&mut self, number: u8) {
        self.run(&format!("take {number}"), "ok");
        self.has(number);
    }

    /// As `takes`, and releases the frame.
    #[track_caller]
    pub fn passes(&mut self, number: u8) {
        self.takes(number);
        self.drops(number);
    }

    /// Asserts that a kept frame is unchanged.
    #[track_caller]
    pub fn has(&mut self, number: u8) {
        self.run(&format!("check {number}"), "same");
    }

    /// Releases a kept frame.
    #[track_caller]
    pub fn drops(&mut self, number: u8) {
        self.run(&format!("drop {number}"), "ok");
    }
}
