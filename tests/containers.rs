// SPDX-License-Identifier: MPL-2.0

//! Containers that share one bind-mounted directory and nothing else: `unshare` gives each its own PIDs, mounts, IPC,
//! network, host name, /tmp and /dev/shm, and if asked its own users.

mod support;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use support::*;
use xmem_core::{ConnectError, PoolStats, query};

/// Inside a container the directory lies here, and the pool in it.
const POOL: &str = "/mnt/shared/cam0";
/// Makes a container of namespaces: its first argument is the directory, the others are what to run in it.
const INSIDE: &str = "cd \"$0\" && mount -t tmpfs tmpfs /mnt && mkdir /mnt/shared && mount --bind . /mnt/shared \
    && cd / && mount -t tmpfs -o mode=1777 tmpfs /tmp && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec \"$@\"";
const UNSHARE: &[&str] = &[
    "--pid",
    "--fork",
    "--kill-child",
    "--mount",
    "--ipc",
    "--net",
    "--uts",
    "--mount-proc",
];

/// The user that runs a container.
#[derive(Debug, Clone, Copy)]
enum Runner {
    /// Root, who is root in it too.
    Root,
    /// A user who is root in a user namespace of their own.
    User(u32),
}

/// A command in a container over this directory.
fn contained(dir: &Path, runner: Runner) -> Command {
    let mut command = match runner {
        Runner::Root => Command::new("unshare"),
        Runner::User(uid) => {
            let mut command = Command::new("setpriv");
            command
                .arg(format!("--reuid={uid}"))
                .arg(format!("--regid={uid}"))
                .args(["--clear-groups", "unshare", "--user", "--map-root-user"]);
            command
        }
    };
    command
        .args(UNSHARE)
        .args(["--", "sh", "-c", INSIDE])
        .arg(dir)
        .current_dir("/")
        .env_remove("XMEM_RUNTIME_DIR")
        .env("HOME", "/tmp");
    command
}

/// The directory that is shared, with the plugin in it.
struct Scene {
    pools: Pools,
}

impl Scene {
    /// `None`, with a message: there are no such containers here.
    fn new(runners: &[Runner]) -> Option<Self> {
        let pools = Pools::new();
        let plugin = "libgstxmem.so";
        let program = std::env::current_exe().unwrap();
        let built = program.ancestors().nth(2).unwrap().join(plugin);
        fs::create_dir(pools.file("plugins")).unwrap();
        fs::copy(&built, pools.file("plugins").join(plugin))
            .unwrap_or_else(|error| panic!("{built:?}: {error}: build the plugin first"));
        for path in ["", "plugins", &format!("plugins/{plugin}")] {
            fs::set_permissions(pools.file(path), fs::Permissions::from_mode(0o755)).unwrap();
        }
        for runner in runners {
            let output = contained(pools.path(), *runner).arg("true").output();
            match output {
                Ok(output) if output.status.success() => {}
                Ok(output) => {
                    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    not_run(&format!("no container for {runner:?}: {why}"));
                    return None;
                }
                Err(error) => {
                    not_run(&format!("no container for {runner:?}: {error}"));
                    return None;
                }
            }
        }
        Some(Self { pools })
    }

    /// The pool's socket as seen from outside.
    fn pool(&self) -> String {
        self.pools.file("cam0").to_str().unwrap().to_owned()
    }

    fn stats(&self) -> Option<PoolStats> {
        query(&self.pool()).ok()
    }

    /// A directory in the shared one that this user may write to.
    fn give(&self, name: &str, uid: u32) -> PathBuf {
        let dir = self.pools.file(name);
        fs::create_dir_all(&dir).unwrap();
        chown(&dir, Some(uid), Some(uid)).unwrap();
        dir
    }

    fn launch(&self, name: &str, runner: Runner, pipeline: &str) -> Container {
        let log = self.pools.file(&format!("{name}.log"));
        let output = fs::File::create(&log).unwrap();
        let child = contained(self.pools.path(), runner)
            .arg("gst-launch-1.0")
            .args(pipeline.replace("POOL", POOL).split_ascii_whitespace())
            .env("GST_PLUGIN_PATH", "/mnt/shared/plugins")
            .env("GST_REGISTRY", "/tmp/registry.bin")
            .stdin(Stdio::null())
            .stderr(output.try_clone().unwrap())
            .stdout(output)
            .spawn()
            .unwrap();
        Container { child, log }
    }
}

/// A container that is killed when it is dropped, with all that is in it.
struct Container {
    child: Child,
    log: PathBuf,
}

impl Container {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// `None`: it is still running.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    #[track_caller]
    fn succeeds(&mut self) {
        let status = self.wait();
        assert!(status.success(), "{status}\n{}", self.log());
    }

    fn kill(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::KILL).unwrap();
        self.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const VIDEO: &str = "videotestsrc num-buffers=40 pattern=ball \
    ! video/x-raw,format=I420,width=320,height=240,framerate=30/1";
const LIVE: &str =
    "videotestsrc is-live=true ! video/x-raw,format=I420,width=320,height=240,framerate=60/1";

/// Frames of one container are in the other what they would be in one process.
fn frames_arrive_bit_exact(producer: Runner, consumer: Runner, properties: &str) {
    let Some(scene) = Scene::new(&[producer, consumer]) else {
        return;
    };
    let uid = |runner| match runner {
        Runner::Root => 0,
        Runner::User(uid) => uid,
    };
    // The producer makes its files here; the consumer may only look.
    scene.give("", uid(producer));
    let out = scene.give("out", uid(consumer));
    let mut consumer = scene.launch(
        "consumer",
        consumer,
        "xmemsrc pool=POOL on-producer-lost=eos \
         ! multifilesink next-file=buffer location=/mnt/shared/out/%05d.raw",
    );
    let mut producer = scene.launch(
        "producer",
        producer,
        &format!("{VIDEO} ! xmemsink pool=POOL sync=false {LOSSLESS} {properties}"),
    );
    // One that fails leaves the other waiting.
    until("the end of one container", || {
        producer.ended().or(consumer.ended()).is_some()
    });
    for container in [&mut producer, &mut consumer] {
        if container.ended().is_some() {
            container.succeeds();
        }
    }
    producer.succeeds();
    consumer.succeeds();
    let right: Vec<_> = reference(VIDEO)
        .iter()
        .map(|sample| bytes(sample.buffer().unwrap()))
        .collect();
    let mut files: Vec<_> = fs::read_dir(out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), right.len(), "{}", consumer.log());
    assert_eq!(right.len(), 40);
    for (number, (file, right)) in files.iter().zip(&right).enumerate() {
        assert!(fs::read(file).unwrap() == *right, "frame {number} differs");
    }
    assert!(!scene.pools.file("cam0").exists(), "the socket is left");
    assert!(
        !scene.pools.file("cam0.xmem.lock").exists(),
        "the lock is left"
    );
}

#[test]
fn two_containers_share_frames_over_one_directory() {
    frames_arrive_bit_exact(Runner::Root, Runner::Root, "");
}

#[test]
fn containers_of_two_users_share_frames() {
    let users = (Runner::User(42_101), Runner::User(42_102));
    frames_arrive_bit_exact(users.0, users.1, "socket-mode=0666");
}

/// Each is root in its own container, and an unmapped user in the other.
#[test]
fn root_of_another_container_is_denied() {
    let (owner, other) = (Runner::User(42_101), Runner::User(42_102));
    let Some(scene) = Scene::new(&[owner, other]) else {
        return;
    };
    scene.give("", 42_101);
    for properties in ["", "allow-uids=4711"] {
        let producer = scene.launch(
            "producer",
            owner,
            &format!("{LIVE} ! xmemsink pool=POOL {properties}"),
        );
        until("a producer", || scene.pools.file("cam0").exists());
        let mut consumer = scene.launch("consumer", other, "xmemsrc pool=POOL ! fakesink");
        assert!(!consumer.wait().success());
        let output = consumer.log();
        assert!(output.contains("socket-mode"), "{output}");
        // The same user in a container of its own is admitted.
        let own = scene.launch("own", owner, "xmemsrc pool=POOL ! fakesink");
        until("the same user", || {
            own.log().contains("PLAYING") || own.log().contains("ERROR")
        });
        assert!(!own.log().contains("ERROR"), "{}", own.log());
        producer.kill();
        // As it was killed.
        for name in ["cam0", "cam0.xmem.lock"] {
            fs::remove_file(scene.pools.file(name)).unwrap();
        }
    }
}

#[test]
fn containers_may_be_killed_and_started_again() {
    let Some(scene) = Scene::new(&[Runner::Root]) else {
        return;
    };
    let produce = || {
        scene.launch(
            "producer",
            Runner::Root,
            &format!("{LIVE} ! xmemsink pool=POOL history=4"),
        )
    };
    let consume = || {
        scene.launch(
            "consumer",
            Runner::Root,
            "xmemsrc pool=POOL max-held=5 ! queue max-size-buffers=3 ! fakesink sync=false",
        )
    };
    let receives = || {
        scene.stats().is_some_and(|stats| {
            stats
                .consumers
                .iter()
                .any(|consumer| consumer.received > 30)
        })
    };
    let producer = produce();
    let consumer = consume();
    until("frames", receives);
    // Neither sees the other's processes: the producer knows no number of its consumer. Out here its own is seen.
    let stats = scene.stats().unwrap();
    assert_eq!(stats.consumers[0].pid, 0, "{stats:?}");
    let program = fs::read_to_string(format!("/proc/{}/comm", stats.pid)).unwrap();
    assert_eq!(program.trim(), "gst-launch-1.0", "{stats:?}");

    // Its death is noticed nevertheless, and what it held comes back.
    consumer.kill();
    until("the consumer's end", || {
        let stats = scene.stats();
        stats.is_some_and(|stats| stats.consumers.is_empty() && stats.slots_held <= 4)
    });
    let consumer = consume();
    until("frames for the next consumer", receives);

    producer.kill();
    until("the producer's end", || {
        matches!(query(&scene.pool()), Err(ConnectError::NotFound { .. }))
    });
    let producer = produce();
    until("frames from the next producer", receives);
    assert!(!consumer.log().contains("ERROR"), "{}", consumer.log());

    drop((producer, consumer));
}

/// The output of the command `xmem` on the host. `None`: it was not built.
fn xmem(dir: &Path, args: &[&str]) -> Option<String> {
    let program = std::env::current_exe().unwrap();
    let program = program.ancestors().nth(2).unwrap().join("xmem");
    if !program.exists() {
        not_run("`xmem` from the host: build it with cargo build -p xmem-cli");
        return None;
    }
    let output = Command::new(program)
        .args(args)
        .env("XMEM_RUNTIME_DIR", dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// By name, in a runtime directory that is shared.
#[test]
fn the_runtime_directory_may_be_shared() {
    let Some(scene) = Scene::new(&[Runner::Root]) else {
        return;
    };
    let start = |name: &str, pipeline: &str| {
        // The environment passes into the container.
        let script = format!("XMEM_RUNTIME_DIR=/mnt/shared exec gst-launch-1.0 {pipeline}");
        let log = scene.pools.file(&format!("{name}.log"));
        let output = fs::File::create(&log).unwrap();
        let child = contained(scene.pools.path(), Runner::Root)
            .args(["sh", "-c", &script])
            .env("GST_PLUGIN_PATH", "/mnt/shared/plugins")
            .env("GST_REGISTRY", "/tmp/registry.bin")
            .stdin(Stdio::null())
            .stderr(output.try_clone().unwrap())
            .stdout(output)
            .spawn()
            .unwrap();
        Container { child, log }
    };
    let _producer = start("producer", &format!("{LIVE} ! xmemsink pool=cam0"));
    let _consumer = start("consumer", "xmemsrc pool=cam0 ! fakesink");
    let pool = scene.pools.pool("cam0");
    until("frames", || {
        query(&pool).is_ok_and(|stats| stats.consumers.iter().any(|c| c.received > 10))
    });
    // Also outside of the containers, by name and by path.
    for args in [&["list"][..], &["show", "cam0"], &["show", &pool]] {
        if let Some(output) = xmem(scene.pools.path(), args) {
            assert!(
                output.contains("cam0") && output.contains("live"),
                "{output}"
            );
            assert!(
                args[0] == "list" || output.contains("gst-launch"),
                "{output}"
            );
        }
    }
}
