// SPDX-License-Identifier: MPL-2.0

//! The pictures of the manual that show programs: the demo, `xmem top`, and the page of `xmem serve`. The programs draw them.

use std::io::{Read, Write};
use std::num::NonZero;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::check::cargo::with;
use crate::demo::{self, Process, Stage};
use crate::recording::{Line, Look, Recording, Run};
use crate::step::run_quietly;
use crate::{Result, cargo, root};

/// The terminal in which `xmem top` runs.
const COLUMNS: NonZero<u16> = NonZero::new(108).unwrap();
const ROWS: NonZero<u16> = NonZero::new(22).unwrap();
/// The keys that are pressed, each after this time.
const KEYS: [(u64, &str); 4] = [(2, "j"), (3, "k"), (5, "\r"), (13, "q")];

/// Producers and consumers with the names of a real installation.
const PIPELINES: [(&str, &str); 8] = [
    (
        "entrance",
        "videotestsrc is-live=true ! video/x-raw,format=NV12,width=1280,height=720,framerate=30/1 ! timeoverlay \
         font-desc=Sans,40 ! xmemsink pool=entrance",
    ),
    (
        "yard",
        "videotestsrc is-live=true pattern=ball ! video/x-raw,format=RGB,width=640,height=480,framerate=15/1 ! \
         xmemsink pool=yard",
    ),
    (
        "sound",
        "audiotestsrc is-live=true ! audio/x-raw,format=S16LE,rate=48000,channels=1 ! xmemsink pool=sound",
    ),
    (
        "recorder",
        "xmemsrc pool=entrance client-name=recorder ! queue ! fakesink",
    ),
    (
        "detector",
        "xmemsrc pool=entrance client-name=detector newest-only=true ! identity sleep-time=50000 ! fakesink",
    ),
    (
        "preview",
        "xmemsrc pool=entrance client-name=preview ! fakesink sync=true",
    ),
    (
        "counter",
        "xmemsrc pool=yard client-name=counter max-rate=5/1 ! fakesink",
    ),
    (
        "listener",
        "xmemsrc pool=sound client-name=recorder ! fakesink",
    ),
];

pub(crate) fn draw() -> Result {
    let images = root().join("docs/images");
    demo::run(&demo::Args::recorded(images.join("demo.svg")))?;
    run_quietly(
        "Building the command",
        with(cargo(), &["build", "--locked", "--package", "xmem-cli"]),
    )?;
    let stage = Stage::set_up()?;
    let mut running = Vec::new();
    for (name, pipeline) in PIPELINES {
        let mut command = stage.command("gst-launch-1.0");
        command.arg("--quiet").args(pipeline.split_whitespace());
        running.push(Process::start(&stage, name, command)?);
    }
    let mut serve = stage.command(Stage::built("xmem"));
    serve.args(["serve", "--listen", "127.0.0.1:0"]);
    let serve = Process::start(&stage, "serve", serve)?;
    let address = wait_for_address(&serve)?;
    // Until the statistics have settled.
    thread::sleep(Duration::from_secs(5));
    for (file, scheme) in [("serve.png", 1), ("serve-dark.png", 0)] {
        let mut browser = stage.command("chromium");
        browser
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--hide-scrollbars", "--window-size=1100,700"])
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .arg("--virtual-time-budget=5000")
            .arg(format!("--screenshot={}", images.join(file).display()))
            .arg(format!(
                "--user-data-dir={}",
                stage.path("chromium").display()
            ))
            .arg(&address);
        run_quietly("Opening the page of xmem serve in chromium", browser)?;
    }
    drop(serve);
    record_top(&stage)?.write(&images.join("top.svg"))?;
    for process in &mut running {
        process.check()?;
    }
    Ok(())
}

/// Waits until `xmem serve` has printed its address.
fn wait_for_address(serve: &Process) -> Result<String> {
    for _ in 0..100 {
        let log = serve.log();
        let mut words = log.split_whitespace();
        if let Some(address) = words.find(|word| word.starts_with("http://")) {
            return Ok(address.to_owned());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Err(format!("xmem serve printed no address: {}", serve.log()).into())
}

/// Runs `xmem top` in a terminal, and presses keys. `script` is the terminal.
fn record_top(stage: &Stage) -> Result<Recording> {
    let mut script = stage.command("script");
    let top = Stage::built("xmem");
    let shell = format!(
        "stty rows {ROWS} cols {COLUMNS}; exec {} top",
        top.display()
    );
    script.args(["--quiet", "--command", &shell, "/dev/null"]);
    script.env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn()?;
    let (Some(mut keys), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("script has no pipes".into());
    };
    let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
    let to = screen.clone();
    let reader = thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(len @ 1..) = output.read(&mut piece) {
            to.lock().unwrap().process(&piece[..len]);
        }
    });
    let mut recording = Recording::new(usize::from(COLUMNS.get()));
    let start = Instant::now();
    let mut pressed = KEYS.iter().peekable();
    while child.try_wait()?.is_none() {
        let time = start.elapsed();
        let lines = lines(screen.lock().unwrap().screen());
        if !lines.is_empty() {
            recording.add(time, lines);
        }
        if let Some((_, key)) = pressed.next_if(|(at, _)| time.as_secs() >= *at) {
            keys.write_all(key.as_bytes())?;
        }
        thread::sleep(Duration::from_millis(100));
    }
    let _ = reader.join();
    Ok(recording)
}

/// The runs of equal look of each line of the alternate screen, on which `xmem top` draws.
fn lines(screen: &vt100::Screen) -> Vec<Line> {
    if !screen.alternate_screen() {
        return Vec::new();
    }
    let line = |row| {
        let mut line = Line::new();
        for column in 0..COLUMNS.get() {
            let Some(cell) = screen.cell(row, column) else {
                continue;
            };
            let look = match cell {
                it if it.inverse() => Look::Reversed,
                it if it.bold() => Look::Bold,
                it if it.dim() => Look::Dim,
                it if it.fgcolor() != vt100::Color::Default => Look::Alarm,
                _ => Look::Plain,
            };
            let text = if cell.has_contents() {
                cell.contents()
            } else {
                " "
            };
            match line.last_mut() {
                Some(run) if run.look == look => run.text.push_str(text),
                _ => line.push(Run {
                    column: column.into(),
                    text: text.to_owned(),
                    look,
                }),
            }
        }
        for run in line.iter_mut().filter(|run| run.look != Look::Reversed) {
            run.text.truncate(run.text.trim_end().len());
        }
        line.retain(|run| !run.text.is_empty());
        line
    };
    (0..ROWS.get()).map(line).collect()
}
