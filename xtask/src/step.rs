// SPDX-License-Identifier: MPL-2.0

//! Commands that are run one after another, each with its time.

use std::process::Command;
use std::time::Instant;

use crate::Result;

/// One command and what to do when it fails.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
    pub(crate) advice: &'static str,
}

/// Runs the steps in order and stops at the first that fails.
pub(crate) fn run_all(steps: Vec<Step>) -> Result {
    let count = steps.len();
    for (index, mut step) in steps.into_iter().enumerate() {
        println!(
            "\n[{}/{count}] {}: {}",
            index + 1,
            step.name,
            words(&step.command)
        );
        let start = Instant::now();
        let status = step.command.status().map_err(|error| {
            format!(
                "cannot start {}: {error}",
                step.command.get_program().display()
            )
        })?;
        let seconds = start.elapsed().as_secs_f32();
        if !status.success() {
            return Err(format!(
                "{} failed after {seconds:.1} s ({status}): {}",
                step.name, step.advice
            )
            .into());
        }
        println!("[{}/{count}] {}: {seconds:.1} s", index + 1, step.name);
    }
    Ok(())
}

/// A command as one would type it, with the environment that was set for it.
fn words(command: &Command) -> String {
    let env = command.get_envs().filter_map(|(name, value)| {
        let (name, value) = (name.display(), value?.display().to_string());
        Some(if value.contains(' ') {
            format!("{name}='{value}'")
        } else {
            format!("{name}={value}")
        })
    });
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str());
    let args = command.get_args().map(|arg| arg.display().to_string());
    env.chain([program.display().to_string()])
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}
