// SPDX-License-Identifier: MPL-2.0

//! What Meson installs, as programs of others find it. cargo-c installs the same files (`cargo xtask package`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::{HERE, Lab, Running, has, libraries, not_run};

/// Installs the library to a prefix of its own. `None`: a program for that is missing.
fn installed(lab: &Lab) -> Option<PathBuf> {
    for program in ["meson", "ninja", "cargo"] {
        if !has(program) {
            not_run(&format!("{program} is missing"));
            return None;
        }
    }
    let (prefix, build) = (lab.file("prefix"), lab.file("build"));
    let setup = Command::new("meson")
        .arg("setup")
        .arg(&build)
        .arg(Path::new(HERE).join("../.."))
        .arg("--prefix")
        .arg(&prefix)
        .args(["--libdir=lib", "-Dplugin=disabled", "-Dcommand=disabled"])
        .arg(format!("-Dlibxmem-built={}", libraries().display()))
        .output();
    succeeds("meson setup", setup);
    let install = Command::new("meson")
        .args(["install", "-C"])
        .arg(&build)
        .output();
    succeeds("meson install", install);
    Some(prefix)
}

fn succeeds(what: &str, output: std::io::Result<std::process::Output>) {
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}:\n{text}{errors}");
}

/// The project of somebody else: two examples, which find the library by the lines of `rules`.
fn project(lab: &Lab, rules: &str, content: &str) -> PathBuf {
    let folder = lab.file("project");
    fs::create_dir(&folder).unwrap();
    for name in ["publish.c", "follow.cpp"] {
        fs::copy(
            Path::new(HERE).join("examples").join(name),
            folder.join(name),
        )
        .unwrap();
    }
    fs::write(folder.join(rules), content).unwrap();
    folder
}

/// Runs the examples, which find the library in the prefix.
fn check(lab: &Lab, prefix: &Path, built: &Path) {
    let command = |name: &str| {
        let mut command = Command::new(built.join(name));
        command
            .arg(lab.pool())
            .env("LD_LIBRARY_PATH", prefix.join("lib"));
        command
    };
    let publisher = Running::new(command("publish"));
    let mut reader = command("follow");
    reader.arg("1");
    let (lines, succeeded) = Running::new(reader).end();
    assert!(succeeded, "{lines:?}");
    publisher.kill();
}

#[test]
fn cmake_finds_the_library() {
    let lab = Lab::new();
    if !has("cmake") {
        not_run("cmake is missing");
        return;
    }
    let Some(prefix) = installed(&lab) else {
        return;
    };
    let folder = project(
        &lab,
        "CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.18)\n\
         project(other C CXX)\n\
         set(CMAKE_CXX_STANDARD 17)\n\
         find_package(xmem 0.2 QUIET)\n\
         if(xmem_FOUND)\n\
         message(FATAL_ERROR \"0.1 is not 0.2\")\n\
         endif()\n\
         find_package(xmem 0.1 REQUIRED)\n\
         find_package(Threads REQUIRED)\n\
         add_executable(publish publish.c)\n\
         add_executable(follow follow.cpp)\n\
         target_link_libraries(publish PRIVATE xmem::xmem)\n\
         target_link_libraries(follow PRIVATE xmem::xmem Threads::Threads)\n",
    );
    let built = lab.file("built");
    let setup = Command::new("cmake")
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()))
        .arg("-S")
        .arg(&folder)
        .arg("-B")
        .arg(&built)
        .output();
    succeeds("cmake", setup);
    let build = Command::new("cmake").arg("--build").arg(&built).output();
    succeeds("cmake --build", build);
    check(&lab, &prefix, &built);
}

#[test]
fn meson_finds_the_library() {
    let lab = Lab::new();
    let Some(prefix) = installed(&lab) else {
        return;
    };
    let folder = project(
        &lab,
        "meson.build",
        "project('other', 'c', 'cpp', default_options: ['cpp_std=c++17'])\n\
         xmem = dependency('xmem', version: '>= 0.1')\n\
         executable('publish', 'publish.c', dependencies: xmem)\n\
         executable('follow', 'follow.cpp', dependencies: [xmem, dependency('threads')])\n",
    );
    let built = lab.file("built");
    let setup = Command::new("meson")
        .arg("setup")
        .arg(&built)
        .arg(&folder)
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .output();
    succeeds("meson setup", setup);
    let build = Command::new("meson")
        .args(["compile", "-C"])
        .arg(&built)
        .output();
    succeeds("meson compile", build);
    check(&lab, &prefix, &built);
}

/// CMake has no other way to know the version: the file is installed as it is.
#[test]
fn cmake_gets_the_version_of_the_library() {
    let file = Path::new(HERE).join("cmake/xmem-config-version.cmake");
    let text = fs::read_to_string(file).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(text.contains(&format!("set(PACKAGE_VERSION \"{version}\")")));
    let minor = env!("CARGO_PKG_VERSION_MINOR");
    assert!(text.contains(&format!("PACKAGE_FIND_VERSION_MINOR EQUAL {minor} ")));
}
