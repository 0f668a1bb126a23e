// SPDX-License-Identifier: MPL-2.0

//! The manual as a site with search, by mdBook.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{Step, run_all};
use crate::{Result, cargo, root, target_dir};

/// mdBook runs if it is on PATH; otherwise this version is installed into the target directory.
const MDBOOK: &str = "0.5.4";

pub(crate) fn run() -> Result {
    let site = target_dir().join("site");
    stage(&site)?;
    let (mdbook, install) = mdbook();
    let mut build = Command::new(mdbook);
    build.arg("build").arg(&site).arg("--dest-dir").arg("html");
    let mut api = cargo();
    api.args(["doc", "--locked", "--no-deps", "-p", "xmem-core", "-p"]);
    api.arg("gst-plugin-xmem");
    let mut copy = Command::new("cp");
    copy.arg("-r")
        .arg(target_dir().join("doc"))
        .arg(site.join("html/rust"));
    let advice = "see the output above";
    let steps = install.into_iter().chain([
        ("the manual", build),
        ("the pages of the crates", api),
        ("both in one folder", copy),
    ]);
    run_all(
        steps
            .map(|(name, command)| Step {
                name,
                command,
                advice,
            })
            .collect(),
    )?;
    println!("\n{}", site.join("html/index.html").display());
    Ok(())
}

/// The program, and the command that installs it if it is missing.
fn mdbook() -> (PathBuf, Option<(&'static str, Command)>) {
    if Command::new("mdbook").arg("--version").output().is_ok() {
        return ("mdbook".into(), None);
    }
    let tools = target_dir().join("tools");
    let program = tools.join("bin/mdbook");
    let install = (!program.exists()).then(|| {
        let mut install = cargo();
        install
            .args(["install", "--locked", "mdbook", "--version", MDBOOK])
            .args(["--no-default-features", "--features", "search", "--root"])
            .arg(tools);
        ("mdBook", install)
    });
    (program, install)
}

/// Copies the pages and the files that they link to, in the folders of the repository. Pages elsewhere in it keep their links.
fn stage(site: &Path) -> Result {
    if site.exists() {
        fs::remove_dir_all(site)?;
    }
    let src = site.join("src");
    let mut list = Command::new("git");
    list.current_dir(root()).args(["ls-files", "-z", "--"]);
    list.args(["*.md", "docs", "examples", "contrib", "LICENSE", ".ci"]);
    list.args(["crates/*/examples", "crates/xmem-count/ceilings.txt"]);
    let output = list.output()?;
    for file in String::from_utf8(output.stdout)?.split_terminator('\0') {
        let to = src.join(file);
        fs::create_dir_all(to.parent().unwrap_or(&src))?;
        fs::copy(root().join(file), to)?;
    }
    fs::rename(src.join("docs/book.toml"), site.join("book.toml"))?;
    // mdBook reads the list of pages at the top of the folder.
    let summary = fs::read_to_string(src.join("docs/SUMMARY.md"))?;
    let summary = summary.replace("](", "](docs/").replace("](docs/../", "](");
    fs::write(src.join("SUMMARY.md"), summary)?;
    fs::remove_file(src.join("docs/SUMMARY.md"))?;
    Ok(())
}
