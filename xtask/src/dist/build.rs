// SPDX-License-Identifier: MPL-2.0

//! Builds the programs and libraries, and puts them into a tree as on the machine of a user.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::release::{Release, install, names};
use crate::step::{output, run_quietly};
use crate::{Result, cargo, root, target_dir};

/// The name by which programs look for libxmem: crates/xmem-capi/build.rs gives it to the library.
const SONAME: &str = "libxmem.so.0";

/// The folder for cargo. Other settings would build everything in the common one again.
pub(super) fn target() -> PathBuf {
    target_dir().join("dist/build")
}

/// A command of cargo whose result does not depend on where the sources are.
pub(super) fn reproducible(mut command: Command) -> Result<Command> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .ok_or("no home directory: set CARGO_HOME")?;
    // The name of such a folder begins with the host of the registry, and depends on its address.
    let registries = names(&home.join("registry/src")).unwrap_or_default();
    let registries = registries
        .iter()
        // `cargo publish --dry-run` leaves one without a host for each target folder. Nothing is built from it later, but a new flag
        // would build everything again.
        .filter(|name| !name.starts_with('-'))
        .map(|name| home.join("registry/src").join(name));
    let mut flags = vec![remap(&root(), "/usr/src/xmem")];
    flags.extend(registries.map(|folder| remap(&folder, "/usr/src/cargo")));
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    command.env("CARGO_TARGET_DIR", target());
    Ok(command)
}

fn remap(from: &Path, to: &str) -> String {
    format!("--remap-path-prefix={}={to}", from.display())
}

/// Builds everything but the Python module.
pub(super) fn all(release: &Release) -> Result {
    let build = |what, args: &[&str]| -> Result {
        let mut command = reproducible(cargo())?;
        command.args(["build", "--release", "--locked"]).args(args);
        run_quietly(&format!("Building {what}"), command)
    };
    build(
        "the plugin, the command and libxmem",
        &["-p", "gstxmem-cdylib", "-p", "xmem-cli", "-p", "xmem-capi"],
    )?;
    if release.with_bridge {
        build("the bridge", &["--manifest-path", "bridge/Cargo.toml"])?;
    }
    Ok(())
}

/// Copies what was built to where Debian has it. Returns the folder that holds `usr`.
pub(super) fn tree(release: &Release) -> Result<PathBuf> {
    let dir = release.empty("tree")?;
    let usr = dir.join("usr");
    let built = target().join("release");
    install(&built.join("libgstxmem.so"), &plugin(&dir)?)?;
    library_files(release, &built, &usr)?;
    command_files(&built, &usr)?;
    let mut units = vec![
        ("system", "xmem-share@.service"),
        ("user", "xmem-camera@.service"),
    ];
    if release.with_bridge {
        install(&built.join("xmem-bridge"), &usr.join("bin/xmem-bridge"))?;
        let bridge = ["xmem-bridge-export@.service", "xmem-bridge-import@.service"];
        units.extend(bridge.map(|unit| ("system", unit)));
    }
    for (whose, unit) in units {
        let to = usr.join("lib/systemd").join(whose).join(unit);
        install(&root().join("contrib").join(unit), &to)?;
    }
    Ok(dir)
}

/// The plugin in the tree.
pub(super) fn plugin(tree: &Path) -> Result<PathBuf> {
    let lib = tree.join("usr/lib").join(multiarch()?);
    Ok(lib.join("gstreamer-1.0/libgstxmem.so"))
}

/// The name of this machine's folder for libraries.
fn multiarch() -> Result<String> {
    let mut architecture = Command::new("dpkg-architecture");
    architecture.arg("--query=DEB_HOST_MULTIARCH");
    Ok(output(&mut architecture)?.trim().to_owned())
}

fn library_files(release: &Release, built: &Path, usr: &Path) -> Result {
    let multiarch = multiarch()?;
    let lib = usr.join("lib").join(&multiarch);
    let version = &release.version;
    let file = format!("libxmem.so.{version}");
    install(&built.join("libxmem.so"), &lib.join(&file))?;
    symlink(&file, lib.join(SONAME))?;
    symlink(SONAME, lib.join("libxmem.so"))?;
    let sources = root().join("crates/xmem-capi");
    for (folder, to) in [("include", "include"), ("cmake", "share/cmake/xmem")] {
        for name in names(&sources.join(folder))? {
            install(&sources.join(folder).join(&name), &usr.join(to).join(&name))?;
        }
    }
    fs::create_dir_all(lib.join("pkgconfig"))?;
    let description = format!(
        "prefix=/usr\nlibdir=${{prefix}}/lib/{multiarch}\nincludedir=${{prefix}}/include\n\nName: xmem\nDescription: Pools of frames \
         in shared memory\nVersion: {version}\nLibs: -L${{libdir}} -lxmem\nCflags: -I${{includedir}}\n"
    );
    fs::write(lib.join("pkgconfig/xmem.pc"), description)?;
    Ok(())
}

/// The command, its manual pages and its completions, in the folders of Debian.
fn command_files(built: &Path, usr: &Path) -> Result {
    let program = usr.join("bin/xmem");
    install(&built.join("xmem"), &program)?;
    let share = usr.join("share");
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    output(Command::new(&program).arg("man").arg(pages))?;
    for (shell, file) in [
        ("bash", "bash-completion/completions/xmem"),
        ("zsh", "zsh/vendor-completions/_xmem"),
        ("fish", "fish/vendor_completions.d/xmem.fish"),
    ] {
        let file = share.join(file);
        fs::create_dir_all(file.parent().ok_or("a file without a folder")?)?;
        let script = output(Command::new(&program).args(["completions", shell]))?;
        fs::write(file, script)?;
    }
    Ok(())
}
