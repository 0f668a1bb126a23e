// SPDX-License-Identifier: MPL-2.0

//! `xmem top` in a pseudo-terminal.

use std::fs::File;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use tempfile::TempDir;
use xmem_core::{Canceller, Consumer, Delivery, FrameMeta, Producer, ReadLease, Sticky, Wait};

/// The time limit of each wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal that runs `xmem top`.
struct Terminal {
    master: Arc<OwnedFd>,
    /// Its other side, to read its modes.
    side: File,
    screen: Arc<Mutex<vt100::Parser>>,
    child: Child,
}

impl Terminal {
    fn new(runtime_dir: &Path, columns: u16) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let side = ptsname(&master, Vec::new()).unwrap();
        let side = File::options()
            .read(true)
            .write(true)
            .open(side.to_str().unwrap())
            .unwrap();
        // In a new session. Otherwise it would use the size of the terminal in which the tests run.
        let child = Command::new("setsid")
            .args([
                "--ctty",
                env!("CARGO_BIN_EXE_xmem"),
                "top",
                "--interval",
                "0.05",
            ])
            .env("XMEM_RUNTIME_DIR", runtime_dir)
            .env("TERM", "xterm-256color")
            .stdin(side.try_clone().unwrap())
            .stdout(side.try_clone().unwrap())
            .stderr(side.try_clone().unwrap())
            .spawn()
            .unwrap();
        let (rows, wide) = (NonZero::new(24).unwrap(), NonZero::new(columns).unwrap());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, wide, 0)));
        let master = Arc::new(master);
        let (from, to) = (master.clone(), screen.clone());
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(len @ 1..) = rustix::io::read(&from, &mut piece) {
                to.lock().unwrap().process(&piece[..len]);
            }
        });
        Self {
            master,
            side,
            screen,
            child,
        }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    #[track_caller]
    fn until(&self, is_so: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let text = self.text();
            if is_so(&text) {
                return text;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "never came; the screen:\n{text}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    fn has(&self, part: &str) -> String {
        self.until(|text| text.contains(part))
    }

    fn press(&self, keys: &str) {
        rustix::io::write(&self.master, keys.as_bytes()).unwrap();
    }

    /// Whether the terminal is restored: main screen, visible cursor, line mode with echo.
    fn is_restored(&self) -> bool {
        let parser = self.screen.lock().unwrap();
        let modes = tcgetattr(&self.side).unwrap().local_modes;
        !parser.screen().alternate_screen()
            && !parser.screen().hide_cursor()
            && modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    #[track_caller]
    fn ends(mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        self.until(|_| self.is_restored());
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn path(dir: &TempDir, name: &str) -> String {
    dir.path()
        .join(format!("{name}.sock"))
        .to_str()
        .unwrap()
        .to_owned()
}

fn pool(dir: &TempDir, name: &str) -> Producer {
    let producer = Producer::builder(path(dir, name)).build().unwrap();
    let mut sticky = Sticky::new();
    let caps =
        "video/x-raw, format=(string)NV12, width=(int)64, height=(int)48, framerate=(fraction)30/1";
    sticky.set("caps", caps);
    producer.set_sticky(&sticky).unwrap();
    producer
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// A consumer that holds one frame.
fn holder(dir: &TempDir, name: &str, producer: &Producer) -> (Consumer, ReadLease) {
    let mut consumer = Consumer::builder(path(dir, name))
        .name("holder")
        .connect()
        .unwrap();
    let slot = producer.acquire(64).unwrap();
    slot.publish(FrameMeta::new(64)).unwrap();
    let frame = consumer.receive(Some(PATIENCE)).unwrap();
    (consumer, frame)
}

#[test]
fn pools_are_shown_sorted_opened_and_frozen() {
    let dir = TempDir::new().unwrap();
    let (busy, idle) = (pool(&dir, "zoo"), pool(&dir, "attic"));
    let _held = holder(&dir, "zoo", &busy);
    let top = Terminal::new(dir.path(), 140);
    let text = top.has("zoo");
    let row = text.lines().find(|line| line.starts_with("zoo")).unwrap();
    assert!(
        row.contains("NV12 64x48 30/1") && row.contains("live"),
        "{text}"
    );
    // The same titles as with redirected output.
    let once = Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(["top", "--once"])
        .env("XMEM_RUNTIME_DIR", dir.path())
        .output()
        .unwrap();
    let once = String::from_utf8(once.stdout).unwrap();
    let titles = |text: &str, line: usize| text.lines().nth(line).map(words);
    assert_eq!(titles(&text, 1), titles(&once, 0));
    // Sorted by name, then by rate.
    let is_first = |name: &'static str| {
        move |text: &str| text.lines().nth(2).is_some_and(|it| it.starts_with(name))
    };
    top.until(is_first("attic"));
    top.press("ss");
    let text = top.has("sort: consumers");
    assert!(is_first("zoo")(&text), "{text}");

    // The selection stays on the pool, which is the second one now.
    top.press("\x1b[A\r");
    let text = top.has("holder");
    assert!(
        text.contains("zoo.sock: NV12 64x48 30/1, live, up ") || text.contains("zoo: NV12"),
        "{text}"
    );
    assert!(
        text.contains("frames 1 published, 0 copied, 0 dropped"),
        "{text}"
    );
    // The only consumer has the same latency at each update.
    let text = top.has("latency of the consumers");
    let class = text.lines().find(|line| line.contains("100%"));
    assert!(
        class.is_some_and(|it| it.contains(" ms  100%  ████")),
        "{text}"
    );
    top.press("\r");
    top.has("attic");

    top.press(" ");
    top.has("FROZEN");
    drop(idle);
    let third = pool(&dir, "third");
    let before = top.text();
    assert!(before.contains("attic"), "{before}");
    top.press(" ");
    let text = top.until(|text| text.contains("third") && !text.contains("attic"));
    assert!(!text.contains("FROZEN"), "{text}");
    drop(third);
    top.press("q");
    assert!(top.ends().success());
}

#[test]
fn a_narrow_screen_has_the_columns_that_fit() {
    let dir = TempDir::new().unwrap();
    let producer = pool(&dir, "cam0");
    let _held = holder(&dir, "cam0", &producer);
    let top = Terminal::new(dir.path(), 40);
    let text = top.has("cam0");
    let titles = text.lines().nth(1).unwrap();
    assert!(
        titles.contains("FPS") && !titles.contains("FORMAT"),
        "{text}"
    );
    assert!(text.lines().nth(2).unwrap().contains("live"), "{text}");
    top.press("\r");
    let text = top.has("holder");
    assert!(
        text.contains("HELD") && !text.contains("RECEIVED"),
        "{text}"
    );
    // The open pool disappears and comes back.
    drop(producer);
    top.has("closed, no statistics");
    let _producer = pool(&dir, "cam0");
    top.has("frames 0 published");
    top.press("\x03");
    assert!(top.ends().success());
}

#[test]
fn the_consumer_that_delays_a_lossless_pool_is_named() {
    let dir = TempDir::new().unwrap();
    let builder = Producer::builder(path(&dir, "film")).delivery(Delivery::Lossless);
    let producer = builder.build().unwrap();
    let stopped = Consumer::builder(path(&dir, "film"))
        .name("stopped")
        .connect()
        .unwrap();
    let cancel = Canceller::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while producer
                .wait_for_room(Wait::FOREVER.unless(&cancel))
                .is_ok()
            {
                let slot = producer.acquire_wait(64, Wait::FOREVER).unwrap();
                slot.publish(FrameMeta::new(64)).unwrap();
            }
        });
        let top = Terminal::new(dir.path(), 140);
        let text = top.has("stopped");
        assert!(text.contains("lossless"), "{text}");
        top.press("\r");
        top.has("waits  for stopped");
        cancel.cancel();
    });
    drop(stopped);
}

#[test]
fn a_signal_restores_the_terminal() {
    let dir = TempDir::new().unwrap();
    let top = Terminal::new(dir.path(), 80);
    top.has("no pools in");
    assert!(!top.is_restored());
    kill_process(Pid::from_child(&top.child), Signal::TERM).unwrap();
    assert!(top.ends().success());
}

#[test]
fn once_prints_and_ends() {
    let dir = TempDir::new().unwrap();
    let xmem = |args: &[&str]| {
        let mut xmem = Command::new(env!("CARGO_BIN_EXE_xmem"));
        xmem.args(args).env("XMEM_RUNTIME_DIR", dir.path());
        let output = xmem.output().unwrap();
        (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
            output.status.code(),
        )
    };
    let (text, _, code) = xmem(&["top", "--once"]);
    assert!(
        text.starts_with("no pools in ") && code == Some(0),
        "{text}"
    );
    let producer = pool(&dir, "cam0");
    let _held = holder(&dir, "cam0", &producer);
    let (text, _, _) = xmem(&["top", "--once"]);
    assert!(text.lines().nth(1).unwrap().starts_with("cam0"), "{text}");
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("old.sock")).unwrap());
    let (text, _, _) = xmem(&["top", "--once", "--format", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json[0]["consumers"][0]["held"], 1);
    assert_eq!(json[0]["state"], "live");
    assert_eq!(
        (&json[1]["pool"], &json[1]["state"]),
        (&"old".into(), &"stale".into())
    );
    // Without a terminal.
    let (_, error, code) = xmem(&["top"]);
    assert!(
        error.contains("there is no terminal: use `xmem top --once`"),
        "{error}"
    );
    assert_eq!(code, Some(1));
}
