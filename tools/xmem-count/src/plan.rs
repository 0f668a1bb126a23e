// SPDX-License-Identifier: MPL-2.0

//! The cases that are counted.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gst::prelude::*;

use crate::Error;
use crate::figures::{Cost, Row, median, name};
use crate::functions;
use crate::mark::Mark;
use crate::trace::Interval;
use crate::traced::{Environment, Traced};

/// A transport with its settings. `{}` in the descriptions is replaced by the path of a socket.
#[derive(Debug)]
struct Case {
    name: &'static str,
    sink: &'static str,
    /// `None` if the sink is the end of the pipeline.
    source: Option<&'static str>,
    is_foreign: bool,
    code: Code,
}

/// Whose instructions count as ours.
#[derive(Debug, Clone, Copy)]
enum Code {
    Plugin,
    /// Without GStreamer, by xmem-core or by libxmem.
    Rust,
    C,
    /// By xmem-core, with the producer and the consumer in one process.
    Core,
}

impl Code {
    /// The roles of the processes.
    fn roles(self) -> [&'static str; 2] {
        match self {
            Self::Plugin => ["producer", "consumer"],
            Self::Rust | Self::C => ["publish", "read"],
            Self::Core => ["pass", ""],
        }
    }

    /// The stages of a frame in the first process.
    fn parts(self) -> &'static [Mark] {
        match self {
            Self::Core => &[Mark::Acquire, Mark::Push, Mark::Take, Mark::Release],
            _ => &[Mark::Acquire, Mark::Push],
        }
    }
}

const XMEM: Case = Case {
    name: "xmem",
    sink: "xmemsink pool={} pace=never",
    source: Some("xmemsrc pool={}"),
    is_foreign: false,
    code: Code::Plugin,
};

const CASES: &[Case] = &[
    Case {
        name: "fakesink",
        sink: "fakesink sync=false",
        source: None,
        ..XMEM
    },
    Case {
        name: "shm",
        sink: "shmsink socket-path={} shm-size=67108864 sync=false wait-for-connection=false",
        source: Some(
            "shmsrc socket-path={} is-live=true ! \
             capsfilter caps=video/x-raw,format=NV12,width=1920,height=1080,framerate=60/1",
        ),
        ..XMEM
    },
    XMEM,
    Case {
        name: "xmem, lossless",
        sink: "xmemsink pool={} pace=never delivery=lossless",
        ..XMEM
    },
    Case {
        name: "xmem, copied",
        is_foreign: true,
        ..XMEM
    },
    Case {
        name: "direct, rust",
        code: Code::Rust,
        ..DIRECT
    },
    Case {
        name: "direct, c",
        code: Code::C,
        ..DIRECT
    },
    Case {
        name: "core",
        source: None,
        code: Code::Core,
        ..DIRECT
    },
];

const DIRECT: Case = Case {
    sink: "{}",
    source: Some("{}"),
    ..XMEM
};

/// The number of frames before the counted ones. Then each slot has been used, and tables do not grow any more.
const WARM_UP: usize = 24;
/// The number of frames that are counted.
const COUNTED: usize = 9;
/// A process that writes no trace for this time sleeps.
const IDLE_TIME: Duration = Duration::from_millis(50);
/// The time limit for one frame under Valgrind.
const FRAME_TIMEOUT: Duration = Duration::from_secs(60);
/// The time to wait for the first frame before the next one is pushed: the consumer may not be connected yet.
const FIRST: Duration = Duration::from_secs(2);

/// Counts the cases with `filter` in their name. With `functions`, prints the functions that a frame passes through.
pub(crate) fn run(
    plugin: &Path,
    libxmem: &Path,
    filter: &str,
    functions: bool,
) -> Result<Vec<Row>, Error> {
    let own = std::env::current_exe()?;
    gst::init()?;
    let others = ["fakesink", "shmsink"].map(plugin_of);
    let others = others.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(filter)) {
        let start = Instant::now();
        let library = match case.code {
            Code::Plugin => plugin,
            Code::Rust | Code::Core => &own,
            Code::C => libxmem,
        };
        rows.extend(case.count(library, &others, functions)?);
        println!("{}: {:.0} s", case.name, start.elapsed().as_secs_f32());
    }
    Ok(rows)
}

/// The file of the plugin that has an element.
fn plugin_of(element: &str) -> Result<PathBuf, Error> {
    let factory = gst::ElementFactory::find(element);
    let plugin = factory.and_then(|factory| factory.plugin());
    let file = plugin.and_then(|plugin| plugin.filename());
    file.ok_or_else(|| format!("GStreamer has no {element} here").into())
}

impl Case {
    fn count(&self, plugin: &Path, others: &[PathBuf], functions: bool) -> Result<Vec<Row>, Error> {
        let folder = tempfile::Builder::new().prefix("xmem-count-").tempdir()?;
        let roles = self.code.roles();
        let environment = Environment {
            plugin,
            others,
            folder: folder.path(),
        };
        let socket = folder.path().join("socket").display().to_string();
        let sink = self.sink.replace("{}", &socket);
        let foreign = self.is_foreign.then_some("--foreign");
        let args: Vec<&str> = [roles[0], &sink].into_iter().chain(foreign).collect();
        let producer = Traced::start(environment, &args)?;
        let source = self.source.map(|source| source.replace("{}", &socket));
        let consumer = source.map(|source| Traced::start(environment, &[roles[1], &source]));
        let mut pair = Pair {
            producer,
            parts: self.code.parts(),
            consumer: consumer.transpose()?,
        };
        pair.warm_up(environment)?;
        let frames = (0..COUNTED).map(|_| pair.frame());
        let frames = frames.collect::<Result<Vec<_>, _>>()?;
        if let Some(frame) = frames.last().filter(|_| functions) {
            pair.print_functions(self.name, frame)?;
        }
        pair.stop()?;
        let parts = self.code.parts().iter().copied().chain([Mark::Loop]);
        let rows = parts.zip(0..).filter_map(|(part, index)| {
            let costs = frames
                .iter()
                .map(|frame| frame.get(index).map(|part| part.cost));
            Some(Row {
                case: self.name,
                part,
                cost: median(&costs.collect::<Option<Vec<Cost>>>()?),
            })
        });
        Ok(rows.collect())
    }
}

/// The two sides of a transport.
#[derive(Debug)]
struct Pair {
    producer: Traced,
    /// The stages in the producer's process.
    parts: &'static [Mark],
    consumer: Option<Traced>,
}

impl Pair {
    fn warm_up(&mut self, environment: Environment) -> Result<(), Error> {
        self.producer.ready(environment)?;
        if let Some(consumer) = &mut self.consumer {
            consumer.ready(environment)?;
            consumer.next_step()?;
        }
        let start = Instant::now();
        loop {
            self.push()?;
            let consumer = self.consumer.as_ref();
            // The instructions before the first frame are reported without a mark.
            if consumer.is_none_or(|consumer| consumer.counted(None, FIRST).is_ok()) {
                break;
            }
            if start.elapsed() > FRAME_TIMEOUT {
                return Err("no frame came to the consumer".into());
            }
        }
        self.sleep();
        (0..WARM_UP).try_for_each(|_| self.frame().map(drop))
    }

    /// Passes one frame from the pool to the consumer, which sleeps when the frame is published. Returns the cost of each stage.
    fn frame(&mut self) -> Result<Vec<Interval>, Error> {
        let pushed = self.push()?;
        let consumer = self.consumer.iter();
        let received = consumer.map(|consumer| consumer.counted(Some(Mark::Loop), FRAME_TIMEOUT));
        let frame = pushed.into_iter().map(Ok).chain(received).collect();
        self.sleep();
        frame
    }

    fn push(&mut self) -> Result<Vec<Interval>, Error> {
        self.producer.next_step()?;
        let counted = |part: &Mark| self.producer.counted(Some(*part), FRAME_TIMEOUT);
        self.parts.iter().map(counted).collect()
    }

    fn print_functions(&self, case: &str, frame: &[Interval]) -> Result<(), Error> {
        let sides = self.parts.iter().map(|_| &self.producer);
        for (interval, side) in frame.iter().zip(sides.chain(&self.consumer)) {
            println!("\n{case}, {}", interval.from.map_or_else(String::new, name));
            functions::print(side.pid(), &interval.places)?;
        }
        Ok(())
    }

    /// Waits until both sides sleep.
    fn sleep(&self) {
        let sides = || {
            let sides = [Some(&self.producer), self.consumer.as_ref()];
            sides.map(|side| side.map(|side| side.lines.load(Relaxed)))
        };
        let mut before = None;
        while before != Some(sides()) {
            before = Some(sides());
            std::thread::sleep(IDLE_TIME);
        }
    }

    fn stop(self) -> Result<(), Error> {
        self.consumer.map_or(Ok(()), Traced::stop)?;
        self.producer.stop()
    }
}
