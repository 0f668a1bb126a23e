// SPDX-License-Identifier: MPL-2.0

//! Real files: each stream of each file is the same with a pool as without one, buffer by buffer, both encoded and decoded.
//!
//! `cargo xtask test` gets the files from packages (`xtask/src/samples`) before this test. The producer is a process of its own.

mod support;

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use gst::prelude::*;
use support::{
    process::*,
    records::{Record, catcher, caught, difference},
    *,
};

/// The time limit for a file without a pool.
const PATIENCE: gst::ClockTime = gst::ClockTime::from_seconds(20);

/// How far a file is taken apart.
#[derive(Debug, Clone, Copy)]
enum Form {
    Encoded,
    Decoded,
}

impl Form {
    /// The element that takes a file apart.
    fn element(self) -> &'static str {
        match self {
            Self::Encoded => "parsebin",
            Self::Decoded => "decodebin",
        }
    }
}

/// Containers by the extensions of their files. AIFF is left out: with it parsebin sometimes never reaches PAUSED, also without a pool.
const CONTAINERS: [(&str, &[&str]); 18] = [
    ("3gpp", &["3gp", "3g2"]),
    ("ac3", &["ac3"]),
    ("adts", &["aac"]),
    ("asf", &["asf", "wma"]),
    ("avi", &["avi"]),
    ("dsf", &["dsf"]),
    ("flac", &["flac"]),
    ("flv", &["flv"]),
    ("matroska", &["mkv"]),
    ("mp4", &["mp4", "m4a"]),
    ("mpeg audio", &["mp3"]),
    ("mpeg program stream", &["mpeg", "mpg"]),
    ("mpeg transport stream", &["ts"]),
    ("ogg", &["ogg", "ogv", "opus", "spx"]),
    ("quicktime", &["mov"]),
    ("true audio", &["tta"]),
    ("wav", &["wav"]),
    ("wavpack", &["wv"]),
];

fn container(file: &Path) -> Option<&'static str> {
    if file.extension()? == "webm" {
        return Some("webm");
    }
    let extension = file.extension()?.to_str()?;
    let found = CONTAINERS.iter().find(|(_, all)| all.contains(&extension));
    found.map(|(name, _)| *name)
}

/// The folder to which the files were extracted.
fn folder() -> PathBuf {
    target_dir().parent().unwrap().join("samples")
}

/// Larger files take too long.
const LARGEST: u64 = 2_800_000;

/// All files below a folder that belong to a container, smallest last.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if container(&path).is_some() {
                files.push(path);
            }
        }
    }
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |it| it.len());
    files.retain(|path| size(path) <= LARGEST);
    files.sort_by_key(|path| (std::cmp::Reverse(size(path)), path.clone()));
    files
}

/// The streams of a file without a pool. `Err`: GStreamer cannot read the file.
fn without_pool(file: &Path, form: Form) -> Result<Vec<Vec<Record>>, String> {
    type Stream = thread::JoinHandle<Vec<Record>>;
    let pipeline = Pipeline(gst::Pipeline::new());
    let source = gst::ElementFactory::make("filesrc").property("location", file);
    let source = source.build().unwrap();
    let parts = gst::ElementFactory::make(form.element()).build().unwrap();
    pipeline.0.add_many([&source, &parts]).unwrap();
    source.link(&parts).unwrap();
    let streams = Arc::new(Mutex::new(Vec::<Stream>::new()));
    let (all, bin) = (streams.clone(), pipeline.0.downgrade());
    parts.connect_pad_added(move |_, pad| {
        let mut all = all.lock().unwrap();
        let bin = bin.upgrade().unwrap();
        let make = |name: &str, element: &str| {
            let name = format!("{name}{}", all.len());
            gst::ElementFactory::make(element)
                .name(name)
                .build()
                .unwrap()
        };
        let (queue, app) = (make("queue", "queue"), make("app", "appsink"));
        for limit in ["max-size-buffers", "max-size-bytes"] {
            queue.set_property(limit, 0_u32);
        }
        queue.set_property("max-size-time", 0_u64);
        app.set_property("sync", false);
        bin.add_many([&queue, &app]).unwrap();
        queue.link(&app).unwrap();
        let app = catcher(&bin, &app.name());
        queue.sync_state_with_parent().unwrap();
        app.sync_state_with_parent().unwrap();
        pad.link(&queue.static_pad("sink").unwrap()).unwrap();
        all.push(thread::spawn(move || caught(&app)));
    });
    let _ = pipeline.0.set_state(gst::State::Playing);
    let types = [gst::MessageType::Error, gst::MessageType::Eos];
    let message = pipeline
        .0
        .bus()
        .unwrap()
        .timed_pop_filtered(PATIENCE, &types);
    let _ = pipeline.0.set_state(gst::State::Null);
    let streams = std::mem::take(&mut *streams.lock().unwrap());
    let streams = streams.into_iter().map(|it| it.join().unwrap()).collect();
    match message.as_ref().map(|message| message.view()) {
        Some(gst::MessageView::Eos(_)) => Ok(known(streams)),
        Some(gst::MessageView::Error(error)) => Err(error.error().to_string()),
        _ => Err("it does not end".to_owned()),
    }
}

/// Streams of unknown content count as empty: no caps tell which of their frames can be decoded alone.
fn known(mut streams: Vec<Vec<Record>>) -> Vec<Vec<Record>> {
    for stream in &mut streams {
        if stream
            .first()
            .is_some_and(|it| it.codec() == "application/x-unknown")
        {
            stream.clear();
        }
    }
    streams
}

/// The same streams through a pool each.
fn with_pools(file: &Path, form: Form, right: &[Vec<Record>]) -> Result<(), String> {
    let pools = prepared();
    let mut producer = format!(
        "-q filesrc location={} ! {} name=parts",
        file.display(),
        form.element()
    );
    let mut consumers = Vec::new();
    for (number, stream) in right.iter().enumerate() {
        let sink = if stream.is_empty() {
            "fakesink sync=false".to_owned()
        } else {
            format!("xmemsink pool={number} {LOSSLESS} sync=false")
        };
        write!(
            producer,
            " parts. ! queue max-size-buffers=0 max-size-bytes=0 max-size-time=0 ! {sink}"
        )
        .unwrap();
        let pool = pool_path(&pools, &number.to_string());
        consumers.push((!stream.is_empty()).then(|| {
            let consumer = pools.launch(&format!(
                "xmemsrc pool={pool} timestamp-mode=passthrough on-producer-lost=eos connection-timeout=30000000000 \
                 ! appsink name=app sync=false"
            ));
            if consumer.0.set_state(gst::State::Playing).is_err() {
                let bus = consumer.0.bus().unwrap();
                let error = bus.pop_filtered(&[gst::MessageType::Error]);
                panic!("{}: {error:?}", file.display());
            }
            let app = catcher(&consumer.0, "app");
            let caught = thread::spawn(move || caught(&app));
            (consumer, caught)
        }));
    }
    let mut producer = Launch::new(&pools, "producer", &producer);
    let status = producer.wait();
    let types = [gst::MessageType::Error, gst::MessageType::Eos];
    let streams = consumers.into_iter().map(|it| {
        it.map_or_else(Vec::new, |(consumer, caught)| {
            let _ = consumer
                .0
                .bus()
                .unwrap()
                .timed_pop_filtered(PATIENCE, &types);
            // Ends the wait for the next sample, also after an error.
            let _ = consumer.0.set_state(gst::State::Null);
            caught.join().unwrap()
        })
    });
    let streams: Vec<_> = streams.collect();
    for (number, (right, stream)) in right.iter().zip(&streams).enumerate() {
        if let Some(difference) = difference(right, stream) {
            return Err(format!("stream {number}: {difference}\n{}", producer.log()));
        }
    }
    match status.success() {
        true => Ok(()),
        false => Err(format!("{status}: {}", producer.log())),
    }
}

/// What became of a file.
struct Outcome {
    file: String,
    container: &'static str,
    codecs: BTreeSet<String>,
    /// In each form. `None`: not even without a pool.
    results: [Option<Result<usize, String>>; 2],
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |result: &Option<Result<usize, String>>| match result {
            None => "-".to_owned(),
            Some(Ok(buffers)) => buffers.to_string(),
            Some(Err(_)) => "DIFFERENT".to_owned(),
        };
        let [encoded, decoded] = self.results.each_ref().map(text);
        let codecs: Vec<_> = self.codecs.iter().map(String::as_str).collect();
        let codecs = codecs.join(", ");
        let Self {
            file, container, ..
        } = self;
        write!(f, "{file} | {container} | {codecs} | {encoded} | {decoded}")
    }
}

fn play(file: &Path) -> Outcome {
    let mut codecs = BTreeSet::new();
    let results = [Form::Encoded, Form::Decoded].map(|form| {
        let right = without_pool(file, form).ok()?;
        if matches!(form, Form::Encoded) {
            codecs.extend(right.iter().flatten().map(Record::codec));
        }
        let count = right.iter().map(Vec::len).sum();
        (count > 0).then(|| with_pools(file, form, &right).map(|()| count))
    });
    Outcome {
        file: file.strip_prefix(folder()).unwrap().display().to_string(),
        container: container(file).unwrap(),
        codecs,
        results,
    }
}

#[test]
fn each_file_is_the_same_through_a_pool() {
    init();
    let files = files(&folder());
    let missing = std::fs::read_dir(folder()).into_iter().flatten();
    let missing = missing.map(|entry| entry.unwrap().path());
    let mut missing = missing.filter(|path| path.extension().is_some_and(|it| it == "missing"));
    let is_complete = !files.is_empty() && missing.next().is_none();
    if files.is_empty() {
        return not_run(
            "there are no files: `cargo xtask test` gets them where it reaches the package registries",
        );
    }
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    // Some files never end.
    let workers = 6 * thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = play(file);
                    println!("{outcome}");
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    let mut failed = Vec::new();
    let (mut count, mut containers, mut codecs) = (0, BTreeSet::new(), BTreeSet::new());
    for it in &outcomes {
        for result in it.results.iter().flatten() {
            match result {
                Ok(_) => {}
                Err(why) => failed.push(format!("{}: {why}", it.file)),
            }
        }
        if it.results.iter().any(Option::is_some) {
            count += 1;
            containers.insert(it.container);
            codecs.extend(&it.codecs);
        }
    }
    println!(
        "{count} files, {} containers, {} codecs",
        containers.len(),
        codecs.len()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    if is_complete {
        assert!(count >= 30 && containers.len() >= 12 && codecs.len() >= 15);
    } else {
        not_run("the files of some packages are missing");
    }
}
