// SPDX-License-Identifier: MPL-2.0

//! Containers that share only one bind-mounted directory. `unshare` creates separate PID, mount, IPC, network and host name
//! namespaces, /tmp and /dev/shm for each, and optionally user namespaces.

mod support;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use support::{
    process::{Launch, errors},
    *,
};
use xmem_core::discovery::query;
use xmem_core::{ConnectError, PoolStats};

/// The pool's path inside a container.
const POOL: &str = "/mnt/shared/cam0";
/// Creates a container. The first argument is the shared directory, the others are the command.
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

/// The user that starts a container.
#[derive(Debug, Clone, Copy)]
enum Runner {
    /// Root, without a user namespace.
    Root,
    /// A user that is root in a user namespace.
    User(u32),
}

/// A command in a container with this shared directory.
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

/// The shared directory, with the plugin.
struct Scene {
    pools: Pools,
}

impl Scene {
    /// Returns `None` and prints a message if the machine cannot create such containers.
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

    /// The path of the pool's socket outside of the containers.
    fn pool(&self) -> String {
        self.pools.file("cam0").to_str().unwrap().to_owned()
    }

    fn stats(&self) -> Option<PoolStats> {
        query(self.pool()).ok()
    }

    /// Creates a subdirectory that this user may write to.
    fn give(&self, name: &str, uid: u32) -> PathBuf {
        let dir = self.pools.file(name);
        fs::create_dir_all(&dir).unwrap();
        chown(&dir, Some(uid), Some(uid)).unwrap();
        dir
    }

    fn launch(&self, name: &str, runner: Runner, pipeline: &str) -> Launch {
        let pipeline = pipeline.replace("POOL", POOL);
        let mut command = vec!["gst-launch-1.0"];
        command.extend(pipeline.split_ascii_whitespace());
        self.start(name, runner, &command)
    }

    /// A container. It is killed with all its processes when it is dropped.
    fn start(&self, name: &str, runner: Runner, command: &[&str]) -> Launch {
        let mut container = contained(self.pools.path(), runner);
        container
            .args(command)
            .env("GST_PLUGIN_PATH_1_0", "/mnt/shared/plugins")
            .env("GST_REGISTRY_1_0", "/tmp/registry.bin")
            .stdin(Stdio::null());
        Launch::start(&self.pools, name, &mut container)
    }
}

const VIDEO: &str = "videotestsrc num-buffers=40 pattern=ball \
    ! video/x-raw,format=I420,width=320,height=240,framerate=30/1";
const LIVE: &str =
    "videotestsrc is-live=true ! video/x-raw,format=I420,width=320,height=240,framerate=60/1";

/// Frames that are shared between containers are the same as in one process.
fn frames_arrive_bit_exact(producer: Runner, consumer: Runner, properties: &str) {
    let Some(scene) = Scene::new(&[producer, consumer]) else {
        return;
    };
    let uid = |runner| match runner {
        Runner::Root => 0,
        Runner::User(uid) => uid,
    };
    // The producer creates its files here. The consumer only has read access.
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
    // If one container fails, the other would wait.
    until("the end of one container", || {
        producer.has_ended() || consumer.has_ended()
    });
    for container in [&mut producer, &mut consumer] {
        if container.has_ended() {
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

/// Each process is root in its own container, and an unmapped user in the other.
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
        assert_contains(&output, "socket-mode");
        // The same user in a separate container is admitted.
        let own = scene.launch("own", owner, "xmemsrc pool=POOL ! fakesink");
        until("the same user", || {
            own.log().contains("PLAYING") || errors(&own.log()).next().is_some()
        });
        assert!(errors(&own.log()).next().is_none(), "{}", own.log());
        drop(producer);
        // The killed producer left its files.
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
    // Processes are not visible across the containers, so the producer does not know the consumer's process ID. Here, outside, the
    // producer's is visible.
    let stats = scene.stats().unwrap();
    assert_eq!(stats.consumers[0].pid, 0, "{stats:?}");
    let program = fs::read_to_string(format!("/proc/{}/comm", stats.pid)).unwrap();
    assert_eq!(program.trim(), "gst-launch-1.0", "{stats:?}");

    // The consumer's death is detected nevertheless, and its slots become free.
    drop(consumer);
    until("the consumer's end", || {
        let stats = scene.stats();
        stats.is_some_and(|stats| stats.consumers.is_empty() && stats.slots_held <= 4)
    });
    let consumer = consume();
    until("frames for the next consumer", receives);

    drop(producer);
    until("the producer's end", || {
        matches!(query(scene.pool()), Err(ConnectError::NotFound { .. }))
    });
    let producer = produce();
    until("frames from the next producer", receives);
    assert!(
        errors(&consumer.log()).next().is_none(),
        "{}",
        consumer.log()
    );

    drop((producer, consumer));
}

/// The kernel ignores a signal without a handler for the first process of a container.
#[test]
fn commands_end_at_a_signal_as_the_first_process() {
    let (Some(scene), Some(program)) = (Scene::new(&[Runner::Root]), program()) else {
        return;
    };
    let program = program.to_str().unwrap();
    let listen = "--listen=127.0.0.1:0";
    for (command, says, signal) in [
        (["serve", listen], "http://", Signal::TERM),
        (["metrics", listen], "http://", Signal::TERM),
        (["watch", "cam0"], "waiting for it", Signal::INT),
    ] {
        let [name, argument] = command;
        let mut container = scene.start(name, Runner::Root, &[program, name, argument]);
        until("it runs", || container.log().contains(says));
        let unshare = container.pid();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        let first = children.unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(first).unwrap(), signal).unwrap();
        let code = container.wait().code();
        assert_eq!(code, Some(128 + signal.as_raw()), "{name}");
    }
}

/// The command `xmem` on the host. `None` if it was not built.
fn program() -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap();
    let program = program.ancestors().nth(2).unwrap().join("xmem");
    if !program.exists() {
        not_run("`xmem` from the host: build it with cargo build -p xmem-cli");
        return None;
    }
    Some(program)
}

/// Its output.
fn xmem(dir: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(program()?)
        .args(args)
        .env("XMEM_RUNTIME_DIR", dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Uses a pool by name, in a shared runtime directory.
#[test]
fn the_runtime_directory_may_be_shared() {
    let Some(scene) = Scene::new(&[Runner::Root]) else {
        return;
    };
    let start = |name: &str, pipeline: &str| {
        // Environment variables are passed into the container.
        let script = format!("XMEM_RUNTIME_DIR=/mnt/shared exec gst-launch-1.0 {pipeline}");
        scene.start(name, Runner::Root, &["sh", "-c", &script])
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
            assert_contains(&output, "cam0");
            assert_contains(&output, "live");
            assert!(
                args[0] == "list" || output.contains("gst-launch"),
                "{output}"
            );
        }
    }
}
