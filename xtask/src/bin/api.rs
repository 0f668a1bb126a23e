// SPDX-License-Identifier: MPL-2.0

//! Compares the public names of xmem-core with the list in the repository, so that a change of them is seen. The list has the types of
//! xmem-shm and xmem-cuda that xmem-core passes on.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(env::args().any(|arg| arg == "--write")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(write: bool) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/xmem-core/api.txt");
    let list = list()?;
    if write {
        return Ok(fs::write(path, list)?);
    }
    let known = fs::read_to_string(path)?;
    if known == list {
        return Ok(());
    }
    let lines = |text| str::lines(text).collect::<HashSet<&str>>();
    let (before, after) = (lines(&known), lines(&list));
    for line in known.lines().filter(|line| !after.contains(line)) {
        println!("- {line}");
    }
    for line in list.lines().filter(|line| !before.contains(line)) {
        println!("+ {line}");
    }
    Err("the public names of xmem-core differ from crates/xmem-core/api.txt".into())
}

fn list() -> Result<String> {
    let core = rustdoc("xmem-core", &["--features", "cuda"])?;
    let passed_on = sources(&core)?;
    let mut list = lines(&core)?;
    for package in ["xmem-shm", "xmem-cuda"] {
        let all = lines(&rustdoc(package, &[])?)?;
        list.extend(all.into_iter().filter(|line| {
            let name = subject(line);
            passed_on.iter().any(|of| {
                let rest = name.strip_prefix(of.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
        }));
    }
    Ok(list.join("\n") + "\n")
}

/// Describes a crate as JSON.
fn rustdoc(package: &str, features: &[&str]) -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/api");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["rustdoc", "--quiet", "--locked", "--lib"]);
    cargo.args(["--package", package]);
    cargo.args(features).arg("--target-dir").arg(&target);
    cargo.args(["--", "-Z", "unstable-options", "--output-format", "json"]);
    // The format is not stable, so each version of `public-api` reads that of some versions of Rust.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    if !cargo.status()?.success() {
        return Err(format!("rustdoc failed for {package}").into());
    }
    Ok(target.join(format!("doc/{}.json", package.replace('-', "_"))))
}

/// The names in other crates of what a crate passes on.
fn sources(json: &Path) -> Result<Vec<String>> {
    let json: Value = serde_json::from_slice(&fs::read(json)?)?;
    let items = json["index"].as_object().into_iter().flatten();
    let sources = items.filter_map(|(_, item)| item["inner"]["use"]["source"].as_str());
    Ok(sources.map(str::to_owned).collect())
}

/// A line for each public item.
fn lines(json: &Path) -> Result<Vec<String>> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()?;
    Ok(api.items().map(ToString::to_string).collect())
}

/// The name that a line is about.
fn subject(line: &str) -> &str {
    let line = line.split_once(" for ").map_or(line, |(_, of)| of);
    let mut names = line.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
    names
        .find(|name| name.starts_with("xmem_"))
        .unwrap_or_default()
}
