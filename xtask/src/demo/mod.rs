// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask demo`: decode once, share with three processes, survive kills.

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
use self::stage::Stage;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A video file, or a camera as v4l2:/dev/videoN [default: a clip that the demo encodes itself]
    #[arg(long)]
    input: Option<String>,
    /// How long to show it
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(10..=3600))]
    seconds: u32,
    /// Where the picture goes [default: demo in the target directory]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure()?;
    run_quietly("Building (some minutes at the first time)", build())?;

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
    // Whatever happens in there, the processes end before the stage is taken down.
    let played =
        Show::new(&stage, &input, &picture).and_then(|show| show.play(args.seconds, &mut proof));
    let left = stage.take_down();

    if let Err(error) = played {
        eprintln!("\nxtask: {error}");
        proof.claim(false, "the demo went to its end", "");
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
        Err("the demo did not prove what it should".into())
    }
}

/// The programs of the demo. A debug build: it shares its work with `cargo xtask test` and is there in a third of the
/// time; nothing of ours touches the frames' bytes, so it is as fast where it counts.
fn build() -> Command {
    let mut command = cargo();
    command.args([
        "build",
        "--locked",
        "--package",
        "gstxmem-cdylib",
        "--package",
        "xmem-cli",
    ]);
    command.args([
        "--package",
        "xmem-core",
        "--lib",
        "--bins",
        "--example",
        "xmem-consumer",
    ]);
    command
}
