// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask demo`: decode once, share the frames with three processes, and kill a consumer and the producer.

mod input;
mod pool;
mod process;
mod proof;
mod screen;
mod show;
mod stage;

use std::path::PathBuf;
use std::process::Command;

use crate::step::run_quietly;
use crate::{Result, cargo, packages, target_dir};

use self::input::Input;
use self::proof::Proof;
use self::show::Show;

pub(crate) use self::process::Process;
pub(crate) use self::stage::Stage;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A video file, or a camera as v4l2:/dev/videoN [default: a clip that the demo encodes]
    #[arg(long)]
    input: Option<String>,
    /// Duration in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(10..=3600))]
    seconds: u32,
    /// Directory for the picture [default: demo in the target directory]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Also write the demo as an SVG that moves, for the manual
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl Args {
    /// As without arguments, but recorded.
    pub(crate) fn recorded(file: PathBuf) -> Self {
        Self {
            input: None,
            seconds: 15,
            output: None,
            record: Some(file),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure(&[])?;
    run_quietly("Building (takes some minutes the first time)", build())?;

    let output = args
        .output
        .clone()
        .unwrap_or_else(|| target_dir().join("demo"));
    std::fs::create_dir_all(&output)
        .map_err(|error| format!("cannot make {}: {error}", output.display()))?;
    let picture = std::path::absolute(output.join("frame.png"))?;

    let stage = Stage::set_up()?;
    let input = Input::prepare(args.input.as_deref(), args.seconds, &stage)?;
    let mut proof = Proof::default();
    // On an error the processes end, too, before `take_down` removes the directory.
    let played =
        Show::new(&stage, &input, &picture).and_then(|show| show.play(args.seconds, &mut proof));
    let left = stage.take_down();

    match (played, &args.record) {
        (Ok(recording), Some(file)) => recording.write(file)?,
        (Ok(_), None) => {}
        (Err(error), _) => {
            eprintln!("\nxtask: {error}");
            proof.claim(false, "the demo ran to its end", "");
        }
    }
    proof.claim(
        left.is_none(),
        "nothing is left behind",
        left.as_deref().unwrap_or_default(),
    );
    println!("\n{proof}");
    if proof.holds() {
        println!("\nNext, check that everything works on this machine:\n\n    cargo xtask test\n");
        Ok(())
    } else {
        Err("the demo failed: see `NOT proved` above".into())
    }
}

/// Builds what the demo starts, and no more. A debug build takes a third of the time. xmem does not read or write the frames' bytes, so
/// the speed of the demo is about the same.
fn build() -> Command {
    let mut command = cargo();
    command.args("build --locked --package gstxmem-cdylib --package xmem-demo".split(' '));
    command
}
