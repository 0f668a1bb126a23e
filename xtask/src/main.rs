// SPDX-License-Identifier: MPL-2.0

//! The project's development commands. Each command installs missing system packages with apt-get where it can.

mod api;
mod apt;
mod arm;
mod bench;
mod camera;
mod check;
mod compat;
mod count;
mod demo;
mod dist;
mod docs;
mod faults;
mod fuzz;
mod gpu_bundle;
mod package;
mod packages;
mod pictures;
mod python;
mod quick;
mod recording;
mod samples;
mod sanitize;
mod soak;
mod step;
mod test;
mod toolchain;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand};

/// The error text is printed on the terminal.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lint and test what was changed since the last commit
    Quick(quick::Args),
    /// Run all tests that prove the product on this machine
    Test(test::Args),
    /// Run a demonstration: one decoder, three consumers, and SIGKILL for a consumer and the producer
    Demo(demo::Args),
    /// Compare xmem with other ways to share frames between processes
    Bench(bench::Args),
    /// Count the cost of one frame: instructions, cache lines, locks, allocations, system calls
    Count(count::Args),
    /// Inject random faults (kill, stop, fork, failing system calls) into the processes of a pool
    Faults(faults::Args),
    /// Run four pools with sixteen consumers for a long time, and check for leaks
    Soak(soak::Args),
    /// Share cameras of the kernel's own driver in a virtual machine
    Camera,
    /// Fuzz the code that parses data from other processes
    Fuzz(fuzz::Args),
    /// Run tests under AddressSanitizer and Valgrind
    Sanitize(sanitize::Args),
    /// Install the Debian that `cargo xtask test --full` needs
    #[command(hide = true)]
    Debian,
    /// Compare the public names of xmem-core with the list in the repository
    Api(api::Args),
    /// Write the manual as a site to target/site/html
    Docs(docs::Args),
    /// Build the Python module into a virtual environment, and test it there
    Python(python::Args),
    /// Install the plugin with cargo-c and with Meson into separate prefixes, and check both installations
    Package,
    /// Make the packages of a release: for Debian, PyPI and crates, with checksums and licences
    Dist(dist::Args),
    /// Pack the programs that gpu/run needs on a machine with a GPU and without Rust
    GpuBundle,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Quick(args) => quick::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Count(args) => count::run(&args),
        Command::Faults(args) => faults::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Camera => camera::run(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Sanitize(args) => sanitize::run(&args),
        Command::Debian => compat::install(),
        Command::Api(args) => api::run(&args),
        Command::Docs(args) => docs::run(&args),
        Command::Python(args) => python::run(&args),
        Command::Package => package::run(),
        Command::Dist(args) => dist::run(&args),
        Command::GpuBundle => gpu_bundle::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The table of results is the last output. It already names the failed tests.
        Err(error) if error.is::<check::Failed>() => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("\nxtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map(Path::to_owned).unwrap_or(here)
}

/// The cargo that started this program.
fn cargo() -> std::process::Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.current_dir(root());
    command
}

/// The target directory of cargo, which variables and the configuration of the user can change.
fn target_dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let ask = || {
        let mut metadata = cargo();
        metadata.args(["metadata", "--no-deps", "--format-version=1", "--quiet"]);
        let json: serde_json::Value =
            serde_json::from_slice(&metadata.output().ok()?.stdout).ok()?;
        Some(json["target_directory"].as_str()?.into())
    };
    DIR.get_or_init(|| ask().unwrap_or_else(|| root().join("target")))
        .clone()
}

/// The folder for temporary files of tests and of the demo.
fn temp_dir() -> PathBuf {
    let all = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()];
    let mut all = all.into_iter();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    all.find(|dir| suits_tests(dir) && runs_programs(dir, &mounts))
        .unwrap_or_else(|| "/tmp".into())
}

/// The path of a socket is limited to 108 bytes, some tests start processes of other users, and many write a path into a command or a
/// pipeline, where a space would end it.
fn suits_tests(dir: &Path) -> bool {
    let others_may_enter =
        |dir: &Path| std::fs::metadata(dir).is_ok_and(|it| it.permissions().mode() & 1 != 0);
    let is_plain = dir.as_os_str().as_bytes().iter().all(u8::is_ascii_graphic);
    is_plain && dir.as_os_str().len() <= 40 && dir.ancestors().all(others_may_enter)
}

/// Whether the mount of a folder lets programs run there: tests compile some.
fn runs_programs(dir: &Path, mounts: &str) -> bool {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.nth(1)?))
    });
    let above = mounts.filter(|(place, _)| dir.starts_with(place));
    // Of several mounts at one place, the last one counts.
    let mount = above.max_by_key(|(place, _)| place.len());
    mount.is_none_or(|(_, options)| options.split(',').all(|option| option != "noexec"))
}

/// The folder of what cargo builds for the tests. This program is there, too: with `build.target` it is not `debug` in the target
/// directory.
fn built_dir() -> PathBuf {
    let program = std::env::current_exe().ok();
    let folder = program.and_then(|program| Some(program.parent()?.to_owned()));
    folder.unwrap_or_else(|| target_dir().join("debug"))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::{runs_programs, suits_tests};

    #[test]
    fn the_mount_of_a_folder_counts() {
        let mounts = "/dev/a / ext4 rw,noexec 0 0\ntmpfs /tmp tmpfs rw 0 0\ntmpfs /tmp/b tmpfs rw 0 0\n\
                      tmpfs /tmp/b tmpfs rw,noexec 0 0\n";
        for (dir, runs) in [
            ("/var/tmp", false),
            ("/tmp", true),
            ("/tmp/c", true),
            ("/tmp/b", false),
        ] {
            assert_eq!(runs_programs(Path::new(dir), mounts), runs, "{dir}");
        }
    }

    #[test]
    fn long_private_and_missing_folders_do_not_suit_tests() {
        let dir = Path::new("/tmp").join(format!("xtask-{}", std::process::id()));
        let long = dir.join("long".repeat(10));
        std::fs::create_dir_all(&long).unwrap();
        let set = |mode| set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        set_permissions(&long, Permissions::from_mode(0o755)).unwrap();
        set(0o755);
        let open = [suits_tests(&dir), suits_tests(&long)];
        set(0o700);
        let private = suits_tests(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!((open, private), ([true, false], false));
        assert!(!suits_tests(&dir) && !suits_tests(Path::new("/a b")));
    }
}
