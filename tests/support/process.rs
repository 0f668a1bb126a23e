// SPDX-License-Identifier: MPL-2.0

//! GStreamer's programs, which load the plugin as a library.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
};

use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};

use super::{Pools, not_run, until};

/// The target folder of cargo: the parent of the test programs' folder.
pub fn target_dir() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().to_owned()
}

/// A folder with the plugin alone, and a plugin registry beside it, for all tests of this user with this GStreamer: a scan of all
/// plugins takes half a second.
fn plugins() -> &'static (PathBuf, PathBuf) {
    static PLUGINS: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    PLUGINS.get_or_init(|| {
        let target = target_dir();
        let plugin = target.join("libgstxmem.so");
        assert!(
            plugin.exists(),
            "no {}: `cargo build -p gstxmem-cdylib` makes it",
            plugin.display()
        );
        let is_writable = access(&target, Access::WRITE_OK).is_ok();
        let parent = if is_writable {
            target.join("tmp")
        } else {
            glib::user_cache_dir().join("xmem-tests")
        };
        let (major, minor, micro, _) = gst::version();
        let dir = parent.join(format!("gstreamer-{major}.{minor}.{micro}"));
        fs::create_dir_all(dir.join("plugin")).unwrap();
        // Other tests do the same at the same time.
        let _ = std::os::unix::fs::symlink(plugin, dir.join("plugin/libgstxmem.so"));
        let plugins = (dir.join("plugin"), dir.join("registry.bin"));
        // If it is there but out of date, each program renews it.
        if !plugins.1.exists() {
            let status = Command::new("gst-inspect-1.0")
                .arg("xmemsink")
                .env("GST_PLUGIN_PATH_1_0", &plugins.0)
                .env("GST_REGISTRY_1_0", &plugins.1)
                .stdout(Stdio::null())
                .status()
                .unwrap();
            assert!(status.success(), "gst-inspect-1.0 does not find xmemsink");
        }
        plugins
    })
}

/// A directory for one test that contains a runtime directory, `run`.
#[track_caller]
pub fn prepared() -> Pools {
    let pools = Pools::new();
    fs::create_dir(run_dir(&pools)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(run_dir(&pools), mode).unwrap();
    pools
}

pub fn run_dir(pools: &Pools) -> PathBuf {
    pools.file("run")
}

/// The path of a pool in the runtime directory, which is its name in this process.
pub fn pool_path(pools: &Pools, name: &str) -> String {
    let path = run_dir(pools).join(format!("{name}.sock"));
    path.to_str().unwrap().to_owned()
}

/// A playlist, and where GStreamer would connect to if it played it.
pub fn playlist() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let text = format!(
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://{address}/a.ts\n#EXT-X-ENDLIST\n"
    );
    (listener, text)
}

/// A pool with caps whose producer publishes nothing.
#[track_caller]
pub fn silent_producer(pools: &Pools, name: &str) -> xmem_core::Producer {
    let producer = xmem_core::Producer::builder(pool_path(pools, name));
    let producer = producer.build().unwrap();
    let mut sticky = xmem_core::Sticky::new();
    sticky.set(
        "caps",
        "video/x-raw,format=NV12,width=64,height=48,framerate=30/1",
    );
    producer.set_sticky(&sticky).unwrap();
    producer
}

/// The statistics of a pool of the runtime directory.
pub fn pool_stats(pools: &Pools, name: &str) -> Option<xmem_core::PoolStats> {
    xmem_core::discovery::query(pool_path(pools, name)).ok()
}

/// A command with the plugin and the runtime directory of this test.
#[track_caller]
pub fn command(pools: &Pools, program: impl AsRef<Path>) -> Command {
    let program = program.as_ref();
    let (plugin, registry) = plugins();
    let mut command = Command::new(program);
    command
        // With the suffix, because GStreamer ignores the other variable where a user has set this one.
        .env("GST_PLUGIN_PATH_1_0", plugin)
        // The user's plugin registry is not changed.
        .env("GST_REGISTRY_1_0", registry)
        .env("XMEM_RUNTIME_DIR", run_dir(pools))
        .stdin(Stdio::null());
    command
}

/// `xmem` with these arguments, as `command`.
#[track_caller]
pub fn xmem(pools: &Pools, args: &[&str]) -> Command {
    let mut xmem = command(pools, target_dir().join("xmem"));
    xmem.args(args);
    xmem
}

/// The errors that a program of GStreamer reports. Lines of the debug log, which users turn on, begin with the time.
pub fn errors(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| line.starts_with("ERROR"))
}

/// A process. It is killed when it is dropped.
pub struct Launch(Child, PathBuf);

impl Launch {
    /// `gst-launch-1.0` with its output in a file of this name. The line may begin with options.
    #[track_caller]
    pub fn new(pools: &Pools, name: &str, line: &str) -> Self {
        let mut launch = command(pools, "gst-launch-1.0");
        launch.args(line.split_ascii_whitespace());
        Self::start(pools, name, &mut launch)
    }

    /// A command with its output in a file of this name.
    #[track_caller]
    pub fn start(pools: &Pools, name: &str, command: &mut Command) -> Self {
        let log = pools.file(&format!("{name}.log"));
        let output = fs::File::create(&log).unwrap();
        let child = command
            .stderr(output.try_clone().unwrap())
            .stdout(output)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()));
        Self(child, log)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.1).unwrap()).into_owned()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }

    #[track_caller]
    pub fn succeeds(&mut self) {
        let status = self.wait();
        assert!(status.success(), "{status}\n{}", self.log());
    }

    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves a launch line at a port, as `/cam0`.
const RTSP_SERVER: &str = r#"
import sys
import gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer
Gst.init(None)
server = GstRtspServer.RTSPServer(service=sys.argv[1])
factory = GstRtspServer.RTSPMediaFactory(launch=sys.argv[2], shared=True)
server.get_mount_points().add_factory("/cam0", factory)
server.attach(None)
print("ready", flush=True)
GLib.MainLoop().run()
"#;

/// A server of `rtsp://127.0.0.1:PORT/cam0`. `None`: the machine has no gst-rtsp-server, and a message about it was printed.
pub fn rtsp_server(pools: &Pools, port: &str, served: &str) -> Option<Launch> {
    // Debian's, for which the package is made.
    let mut server = command(pools, "/usr/bin/python3");
    server.args(["-c", RTSP_SERVER, port, served]);
    let mut server = Launch::start(pools, "server", &mut server);
    until("the server", || {
        server.log().contains("ready") || server.has_ended()
    });
    if server.log().contains("ready") {
        return Some(server);
    }
    let log = server.log();
    assert!(
        log.contains("not available") || log.contains("No module"),
        "{log}"
    );
    not_run("no gst-rtsp-server for Python (Debian's gir1.2-gst-rtsp-server-1.0)");
    None
}
