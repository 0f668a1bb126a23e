// SPDX-License-Identifier: MPL-2.0

//! Checks the documentation: its command lines run, and its reference is what the elements say of themselves.
//!
//! The GStreamer command lines of one block are run together, as separate processes. Cameras, screens and files of the reader are
//! replaced by stand-ins. A pool without a producer in the block gets a producer here, and a pool without a consumer gets a
//! consumer. A line passes if it ends with success, or if frames pass through its pools.

mod reference;
#[path = "../support/mod.rs"]
mod support;

use std::{fs, net::UdpSocket, os::unix::process::CommandExt, path::Path};

use rustix::process::{Pid, Signal, kill_process_group};
use support::{process::*, *};

/// The caps are not written as such between `!`, because a filter with several caps may follow.
const CAMERA: &str =
    "videotestsrc is-live=true ! capsfilter caps=video/x-raw,width=320,height=240,framerate=30/1";
/// Replacements for devices that the machine may not have.
const STAND_INS: &[(&str, &str)] = &[
    ("v4l2src io-mode=userptr", CAMERA),
    ("v4l2src", CAMERA),
    ("pulsesrc", "audiotestsrc is-live=true"),
    ("=autovideosink", "=fakesink"),
    ("autovideosink", "fakesink sync=true"),
    ("autoaudiosink", "fakesink sync=true"),
];
const PROGRAMS: &[&str] = &["gst-launch-1.0", "gst-play-1.0", "gst-device-monitor-1.0"];
const MAKES: &str = "gst-launch-1.0 videotestsrc is-live=true \
     ! video/x-raw,format=I420,width=320,height=240,framerate=30/1 ! xmemsink pool=";

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The command lines of each block between lines that begin with `from` and `to`.
fn blocks(text: &str, from: &str, to: &str) -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().map(|line| line.trim_start_matches(" * "));
    while lines.any(|line| line == from) {
        let block: Vec<_> = lines
            .by_ref()
            .take_while(|line| !line.starts_with(to))
            .collect();
        let joined = block.join("\n").replace("\\\n", " ");
        let commands: Vec<_> = joined
            .lines()
            .map(|line| line.split(" # ").next().unwrap_or(line).trim().to_owned())
            .filter(|line| PROGRAMS.iter().any(|program| line.starts_with(program)))
            .collect();
        if !commands.is_empty() {
            blocks.push(commands);
        }
    }
    blocks
}

/// The pools that follow each of these prefixes in a command.
fn pools_behind(prefixes: &[&str], command: &str) -> Vec<String> {
    let mut pools = Vec::new();
    for prefix in prefixes {
        for (at, _) in command.match_indices(prefix) {
            let name: String = command[at + prefix.len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric())
                .collect();
            pools.push(name);
        }
    }
    pools
}

fn made_by(command: &str) -> Vec<String> {
    pools_behind(&["xmemsink pool="], command)
}

fn read_by(command: &str) -> Vec<String> {
    pools_behind(&["xmemsrc pool=", "xmem://"], command)
}

/// A shell command in a separate process group.
struct Running {
    command: String,
    launch: Launch,
}

impl Running {
    fn new(pools: &Pools, number: usize, written: &str) -> Self {
        let mut line = written.to_owned();
        for (word, stand_in) in STAND_INS {
            line = line.replace(word, stand_in);
        }
        let mut shell = command(pools, "sh");
        shell
            .args(["-c", &format!("exec {line}")])
            .current_dir(pools.path())
            .process_group(0);
        Self {
            command: line,
            launch: Launch::start(pools, &format!("command-{number}"), &mut shell),
        }
    }

    fn has_ended(&mut self) -> bool {
        let ended = self.launch.has_ended();
        if ended {
            self.check();
        }
        ended
    }

    /// Interrupts the command as a user would, and checks how it ends.
    fn stop(&mut self) {
        if !self.launch.has_ended() {
            let group = Pid::from_raw(self.launch.pid().cast_signed()).unwrap();
            kill_process_group(group, Signal::INT).unwrap();
        }
        self.launch.wait();
        let log = self.launch.log();
        // After the interrupt rtspsrc sometimes reports that the connection has ended.
        let (running, ending) = log.split_once("handling interrupt").unwrap_or((&log, ""));
        assert!(
            errors(running).next().is_none()
                && !errors(ending).any(|line| line.contains("GstXmem")),
            "{}\n{log}",
            self.command
        );
    }

    fn check(&mut self) {
        let status = self.launch.wait();
        let log = self.launch.log();
        assert!(
            status.success() && errors(&log).next().is_none(),
            "{}\n{status}\n{log}",
            self.command
        );
    }
}

fn run(pools: &Pools, block: &[String]) {
    println!("{}", block.join("\n"));
    let mut commands = block.to_vec();
    let made: Vec<_> = block.iter().flat_map(|line| made_by(line)).collect();
    let read: Vec<_> = block.iter().flat_map(|line| read_by(line)).collect();
    for pool in read.iter().filter(|pool| !made.contains(pool)) {
        let line = format!("{MAKES}{pool}");
        if !commands.contains(&line) {
            commands.insert(0, line);
        }
    }
    for pool in made.iter().filter(|pool| !read.contains(pool)) {
        commands.push(format!("gst-launch-1.0 xmemsrc pool={pool} ! fakesink"));
    }
    let mut running: Vec<_> = commands
        .iter()
        .enumerate()
        .map(|(number, line)| Running::new(pools, number, line))
        .collect();
    let mut flows = |pool: &str| {
        let alive = running
            .iter_mut()
            .filter_map(|running| (!running.has_ended()).then_some(&*running))
            .map(|running| read_by(&running.command))
            .map(|read| read.iter().filter(|name| *name == pool).count())
            .sum::<usize>();
        let flowing = pool_stats(pools, pool).map_or(0, |stats| {
            let consumers = stats.consumers.iter();
            consumers.filter(|consumer| consumer.received >= 5).count()
        });
        flowing >= alive
    };
    for pool in made.iter().chain(&read) {
        until(&format!("frames in {pool}: {}", block.join("\n")), || {
            flows(pool)
        });
    }
    // A program that does not use a pool, such as gst-device-monitor-1.0, ends by itself.
    for running in &mut running {
        if made_by(&running.command).is_empty() && read_by(&running.command).is_empty() {
            running.check();
        }
    }
    // Consumers first: they would report the loss of their producer.
    running.sort_by_key(|running| !made_by(&running.command).is_empty());
    for running in &mut running {
        running.stop();
    }
}

/// Creates a file that the documentation refers to.
fn film(pools: &Pools) {
    let file = pools.file("film.mp4").to_str().unwrap().to_owned();
    pools.run(&format!(
        "videotestsrc num-buffers=60 ! video/x-raw,format=I420,width=320,height=240,framerate=60/1 \
         ! x264enc speed-preset=ultrafast ! h264parse ! mp4mux ! filesink location={file}"
    ));
}

fn run_all(blocks: &[Vec<String>], expected: usize) {
    assert!(
        blocks.len() >= expected,
        "only {} blocks with commands were found",
        blocks.len()
    );
    let pools = prepared();
    film(&pools);
    blocks.iter().for_each(|block| run(&pools, block));
}

#[test]
fn readme() {
    run_all(&blocks(&page("README.md"), "```sh", "```"), 1);
}

#[test]
fn start() {
    run_all(&blocks(&page("docs/start.md"), "```sh", "```"), 2);
}

#[test]
fn cookbook() {
    run_all(&blocks(&cookbook_and_player().0, "```sh", "```"), 7);
}

#[test]
fn xmemsink() {
    run_all(&blocks(&page("docs/xmemsink.md"), "```sh", "```"), 2);
}

#[test]
fn xmemsrc() {
    let text = page("docs/xmemsrc.md") + &page("docs/reference/cases.md");
    run_all(&blocks(&text, "```sh", "```"), 7);
}

#[test]
fn sharing() {
    run_all(&blocks(&page("docs/sharing.md"), "```sh", "```"), 1);
}

/// A port that no program has, as far as can be seen.
fn free_port() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port().to_string()
}

/// The cookbook without the recipe for another host, and this recipe.
fn cookbook_and_player() -> (String, String) {
    let page = page("docs/cookbook.md");
    let (before, rest) = page.split_once("\n## A player on another host\n").unwrap();
    let (recipe, after) = rest.split_once("\n## ").unwrap();
    (format!("{before}\n## {after}"), recipe.to_owned())
}

/// The blocks for two hosts. Both are this one, and the ports are free ones: that of RTSP is the last result.
fn two_hosts_here() -> (Vec<Vec<String>>, String) {
    let (_, player) = cookbook_and_player();
    let mut blocks = blocks(&(page("docs/two-hosts.md") + &player), "```sh", "```");
    let ports = ["5006", "7001", "8554"].map(|port| (port, free_port()));
    for line in blocks.iter_mut().flatten() {
        for (port, free) in &ports {
            *line = line.replace(port, free);
        }
        for host in ["hostA", "hostB"] {
            *line = line.replace(host, "127.0.0.1");
        }
    }
    let [.., (_, rtsp)] = ports;
    (blocks, rtsp)
}

/// Whether a block receives over RTSP, for which a server is needed.
fn is_rtsp(block: &[String]) -> bool {
    block.iter().any(|line| line.contains("rtspsrc"))
}

#[test]
fn two_hosts() {
    let (mut blocks, _) = two_hosts_here();
    blocks.retain(|block| !is_rtsp(block));
    run_all(&blocks, 3);
}

#[test]
fn rtsp() {
    let (blocks, port) = two_hosts_here();
    let block = blocks.iter().find(|block| is_rtsp(block)).unwrap();
    let programs = page("docs/cookbook.md");
    let mut lines = programs.lines();
    let served = lines.find(|line| line.starts_with("( xmemsrc ")).unwrap();
    let pools = prepared();
    let _camera = Running::new(&pools, 100, &format!("{MAKES}cam0"));
    let Some(_server) = rtsp_server(&pools, &port, served) else {
        return;
    };
    run(&pools, block);
}

#[test]
fn comments() {
    let files = [
        "src/xmemsink/imp.rs",
        "src/xmemsrc/imp.rs",
        "src/deviceprovider/imp.rs",
    ];
    let blocks: Vec<_> = files
        .iter()
        .flat_map(|file| {
            let found = blocks(&page(file), "|[", "]|");
            assert!(!found.is_empty(), "no commands in {file}");
            found
        })
        .collect();
    run_all(&blocks, 5);
}
