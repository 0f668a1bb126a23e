// SPDX-License-Identifier: MPL-2.0

//! The Python module: its virtual environment, its wheel, its tests and its benchmarks.

use std::path::PathBuf;
use std::process::Command;

use crate::check::cargo::{BUILD, SELECTED, strict, with};
use crate::check::{Check, Harness, Rights, python as interpreter};
use crate::step::{self, Step};
use crate::{Result, built_dir, cargo, packages, root, target_dir};

/// The packages of the environment, and PyTorch, which is large.
const REQUIREMENTS: [&str; 2] = [
    "crates/xmem-python/tests/requirements.txt",
    "crates/xmem-python/tests/requirements-torch.txt",
];

const ENVIRONMENT: &str = "Python environment";
const MODULE: &str = "Python module";

/// The subject of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Comparison {
    Frames,
    Objects,
}

impl Comparison {
    fn step(self) -> Step {
        let (name, script) = match self {
            Self::Frames => ("comparison, frames", "transports.py"),
            Self::Objects => ("comparison, objects", "channel.py"),
        };
        let command = python(&[&format!("crates/xmem-python/bench/{script}")]);
        Step::new(name, command, "see the traceback above")
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare the module with other ways to pass frames or objects to another process, and run no tests
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        num_args = 0..=1,
        default_missing_value = "frames,objects"
    )]
    bench: Option<Vec<Comparison>>,
    /// Arguments for pytest, or for the comparison if exactly one is selected
    #[arg(last = true)]
    args: Vec<String>,
}

/// `cargo xtask python`: builds and tests only the Python module.
pub(crate) fn run(args: &Args) -> Result {
    packages::ensure(&[packages::PYTHON_NEEDS])?;
    let mut steps = Vec::from(build(args.bench.is_some(), true));
    if let Some(comparisons) = &args.bench {
        if comparisons.len() > 1 && !args.args.is_empty() {
            return Err("arguments need one comparison: --bench frames or --bench objects".into());
        }
        steps.extend(comparisons.iter().map(|it| it.step()));
    } else {
        steps.push(Step {
            name: "plugin",
            command: with(with(cargo(), &["build"]), &SELECTED),
            advice: "see the compiler's error message above",
        });
        steps.push(tests(Rights::Me));
    }
    if let Some(last) = steps.last_mut() {
        last.command.args(&args.args);
    }
    step::run_all(steps)
}

/// Builds the release wheel and returns its path.
pub(crate) fn wheels() -> Result<Vec<PathBuf>> {
    packages::ensure(&[packages::PYTHON_NEEDS])?;
    step::run_all(build(true, true).into())?;
    let entries = std::fs::read_dir(dir().join("wheels"))?;
    let wheels = entries.map(|entry| Ok(entry?.path()));
    wheels.collect()
}

/// The steps of `cargo xtask test` that install the module. The first one has begun.
pub(crate) fn module(with_torch: bool) -> [Check; 2] {
    let [environment, module] = build(false, with_torch);
    [
        Check::from(environment).in_background(),
        Check::from(module).needing(&[ENVIRONMENT]),
    ]
}

/// The module's tests. They need the built plugin.
pub(crate) fn pytest(rights: Rights) -> Check {
    Check::of_tests(Harness::Pytest, rights, tests(rights)).needing(&[BUILD, MODULE])
}

fn dir() -> PathBuf {
    target_dir().join("python")
}

fn venv() -> PathBuf {
    dir().join("venv")
}

fn script(name: &str) -> Command {
    let mut command = Command::new("sh");
    command.current_dir(root());
    command.arg(root().join("xtask/src/python").join(name));
    command.arg(venv());
    // Packages and options for another Python, such as those of ROS. The user's other settings of pip may name a mirror.
    command
        .env_remove("PYTHONHOME")
        .env_remove("PYTHONPATH")
        .env("PIP_USER", "0");
    command
}

fn python(args: &[&str]) -> Command {
    let mut command = Command::new(interpreter());
    command.current_dir(root()).args(args);
    command
}

fn build(is_release: bool, with_torch: bool) -> [Step; 2] {
    let mut environment = script("environment.sh");
    let wanted = REQUIREMENTS.iter().take(1 + usize::from(with_torch));
    environment.args(wanted.map(|file| root().join(file)));
    let mut module = script("module.sh");
    module.arg(dir().join("wheels"));
    if is_release {
        // A separate target directory, so that GStreamer does not find a Python library where users look for the plugin.
        module.args(["release".as_ref(), dir().as_os_str()]);
    } else {
        module.args(["dev".as_ref(), target_dir().as_os_str()]);
    }
    [
        Step {
            name: ENVIRONMENT,
            command: environment,
            advice: "see pip's error message above; Python 3.11 or newer with venv and pip is needed",
        },
        Step {
            name: MODULE,
            command: module,
            advice: "see the compiler's error message above",
        },
    ]
}

fn tests(rights: Rights) -> Step {
    let mut command = rights.program(&interpreter());
    command
        .current_dir(root().join("crates/xmem-python"))
        // A cache directory would belong to root or to one of the test users.
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .env("XMEM_PLUGIN_DIR", built_dir())
        .env(
            "XMEM_STANDIN_LIBRARY",
            built_dir().join("libxmem_cuda_standin.so"),
        )
        .env("XMEM_WHEELS", dir().join("wheels"))
        // The threads that NumPy starts in each process would take as long as the rest of its import.
        .env("OPENBLAS_NUM_THREADS", "1")
        // Options of the user that do not fit the environment.
        .env_remove("PYTEST_ADDOPTS")
        .env("PIP_USER", "0")
        // Hundreds of processes import the helpers. They would compile them each, or leave files beside the sources.
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .env("PYTHONPYCACHEPREFIX", dir().join("bytecode"));
    Step::new("Python tests", strict(command), "")
}
