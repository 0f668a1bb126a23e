// SPDX-License-Identifier: MPL-2.0

//! Runs commands one after another, and prints the duration of each.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{Result, root, temp_dir};

/// One command, and the advice that is printed if it fails.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
    pub(crate) advice: &'static str,
}

/// The advice for a command whose own message is sufficient.
pub(crate) const SEE_ABOVE: &str = "see the error message above";

impl Step {
    pub(crate) fn new(name: &'static str, command: Command, advice: &'static str) -> Self {
        Self {
            name,
            command,
            advice,
        }
    }
}

/// Runs the steps in order and stops at the first failure.
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
        let status = step
            .command
            .status()
            .map_err(|error| cannot_start(&step.command, error))?;
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

/// A running command. Its output is printed once somebody waits for it.
#[derive(Debug)]
pub(crate) struct Background {
    child: Child,
    output: File,
}

impl Background {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let output = unnamed_file()?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?);
        let child = command.spawn();
        let child = child.map_err(|error| cannot_start(command, error))?;
        Ok(Self { child, output })
    }

    pub(crate) fn wait(mut self) -> Result<ExitStatus> {
        let mut shown = 0;
        loop {
            let status = self.child.try_wait()?;
            shown += print_from(&self.output, shown)?;
            if let Some(status) = status {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A file for the output of a command. A pipe would stay open as long as any background process that the command started.
fn unnamed_file() -> Result<File> {
    let path = temp_dir().join(format!("xmem-output-{}", std::process::id()));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Prints what a file has from an offset on, and returns the number of bytes. The command writes at the file's own offset.
fn print_from(file: &File, offset: u64) -> Result<u64> {
    let mut text = vec![0; 65536];
    let mut printed = 0;
    loop {
        let count = file.read_at(&mut text, offset + printed)?;
        if count == 0 {
            io::stdout().flush()?;
            return Ok(printed);
        }
        io::stdout().write_all(&text[..count])?;
        printed += count as u64;
    }
}

/// The command with the lowest priority: it gets the processors while others wait.
pub(crate) fn patient(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        nice.current_dir(dir);
    }
    nice
}

fn all_of(file: &mut File) -> Result<String> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Runs a command and prints only its purpose and its duration. If it fails, the error contains its output.
pub(crate) fn run_quietly(what: &str, mut command: Command) -> Result {
    print!("{what} ...");
    io::stdout().flush()?;
    let start = Instant::now();
    let Background {
        mut child,
        mut output,
    } = Background::start(&mut command)?;
    let on_terminal = io::stdout().is_terminal();
    let mut shown = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let seconds = start.elapsed().as_secs();
        if on_terminal && seconds > shown {
            shown = seconds;
            print!("\r{what} ... {seconds} s");
            io::stdout().flush()?;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let again = if on_terminal {
        format!("\r{what} ...")
    } else {
        String::new()
    };
    println!("{again} {} s", start.elapsed().as_secs());
    if status.success() {
        return Ok(());
    }
    let text = all_of(&mut output)?;
    let line = words(&command);
    Err(format!("{line} failed ({status}):\n\n{}", text.trim_end()).into())
}

/// Returns the output of a command. Fails if the command fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        return Err(format!("{command:?}: {}\n{out}{err}", output.status).into());
    }
    Ok(text(&output.stdout))
}

/// Whether a command succeeds. Its output is not shown.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

pub(crate) fn cannot_start(command: &Command, error: impl Display) -> String {
    format!("cannot start {}: {error}", command.get_program().display())
}

/// A command line that a user can run in the repository's root, with the environment variables that were set.
pub(crate) fn words(command: &Command) -> String {
    let env = command.get_envs().filter_map(|(name, value)| {
        let value = value?.display().to_string();
        Some(format!("{}={}", name.display(), quoted(&value)))
    });
    let path = Path::new(command.get_program());
    // Cargo is started by its absolute path; a shell finds it by its name.
    let program = match path.file_name() {
        Some(name) if name == "cargo" => Path::new(name),
        _ => path,
    };
    let root = root();
    let elsewhere = command
        .get_current_dir()
        .and_then(|dir| dir.strip_prefix(&root).ok());
    let elsewhere = elsewhere.filter(|dir| *dir != Path::new(""));
    let cd = elsewhere.map(|dir| format!("cd {} &&", quoted(&dir.display().to_string())));
    let args = command
        .get_args()
        .map(|arg| quoted(&arg.display().to_string()));
    cd.into_iter()
        .chain(env)
        .chain([quoted(&program.display().to_string())])
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A word, quoted for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+=./,:@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
