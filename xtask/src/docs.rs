// SPDX-License-Identifier: MPL-2.0

//! The manual as a site with search, by mdBook.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::check::cargo::{SELECTED, build, with};
use crate::step::{self, Step, run_all};
use crate::{Result, cargo, pictures, root, target_dir};

/// mdBook runs if it is on PATH; otherwise this version is installed into the target directory.
const MDBOOK: &str = "0.5.4";

const ADVICE: &str = "see the output above";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only write the reference pages anew, from the sources
    #[arg(long)]
    write: bool,
    /// Only draw the pictures of the demo, `xmem top` and `xmem serve` anew; needs chromium
    #[arg(long, conflicts_with = "write")]
    pictures: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    if args.write {
        return write();
    }
    if args.pictures {
        return pictures::draw();
    }
    let site = target_dir().join("site");
    stage(&site)?;
    let (mdbook, install) = mdbook();
    let mut build = Command::new(mdbook);
    build.arg("build").arg(&site).arg("--dest-dir");
    build.arg(site.join("html"));
    let mut api = cargo();
    api.args(["doc", "--locked", "--no-deps", "-p", "xmem-core", "-p"]);
    api.arg("gst-plugin-xmem");
    let mut copy = Command::new("cp");
    copy.arg("-r")
        .arg(target_dir().join("doc"))
        .arg(site.join("html/rust"));
    let steps = install.into_iter().chain([
        ("the manual", build),
        ("the pages of the crates", api),
        ("both in one folder", copy),
    ]);
    let steps = steps.map(|(name, command)| Step::new(name, command, ADVICE));
    run_all(steps.collect())?;
    let html = site.join("html");
    let mut broken = Vec::new();
    check_links(&html, &mut broken)?;
    if !broken.is_empty() {
        return Err(format!("links that lead nowhere:\n{}", broken.join("\n")).into());
    }
    println!("\n{}", html.join("index.html").display());
    Ok(())
}

/// The tests that compare the reference pages write them.
fn write() -> Result {
    let mut tests = with(with(cargo(), &["test"]), &SELECTED);
    tests.args(["--test=docs", "--test=cli", "--", "reference"]);
    // Some read what others write.
    tests.arg("--test-threads=1");
    tests.env("XMEM_WRITE_REFERENCE", "1");
    let mut python = Command::new("python3");
    python.arg(root().join("crates/xmem-python/tests/test_reference.py"));
    run_all(vec![
        Step::new("build", build().command, ADVICE),
        Step::new("the reference", tests, ADVICE),
        Step::new("the reference of the Python module", python, ADVICE),
    ])
}

/// Lists the links of the pages in a folder whose files do not exist. rustdoc has checked its own.
fn check_links(folder: &Path, broken: &mut Vec<String>) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("html/rust") {
                check_links(&path, broken)?;
            }
            continue;
        }
        // The page for printing has the links of all others, unchanged.
        let is_page = path.extension().is_some_and(|it| it == "html");
        if !is_page || path.ends_with("print.html") || path.ends_with("404.html") {
            continue;
        }
        let page = fs::read_to_string(&path)?;
        let targets = page.split("href=\"").skip(1);
        for target in targets.filter_map(|rest| rest.split('"').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains(':') && !folder.join(file).exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
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
    // Sources that pages link to.
    list.args(["crates/*/examples/*", "bridge/examples/*", "xtask/src/*"]);
    list.args(["tools/xmem-count/ceilings.txt", "crates/xmem-shm/src/*"]);
    list.args(["crates/xmem-capi/include/*", "crates/xmem-capi/abi/*"]);
    list.arg("crates/xmem-core/api.txt");
    for file in step::output(&mut list)?.split_terminator('\0') {
        let to = src.join(file);
        fs::create_dir_all(to.parent().unwrap_or(&src))?;
        if file.ends_with(".md") {
            // mdBook writes these pages to index.html.
            let page = fs::read_to_string(root().join(file))?;
            fs::write(to, page.replace("/README.md", "/index.md"))?;
        } else {
            fs::copy(root().join(file), to)?;
        }
    }
    fs::rename(src.join("docs/book.toml"), site.join("book.toml"))?;
    // mdBook reads the list of pages at the top of the folder.
    let summary = fs::read_to_string(src.join("docs/SUMMARY.md"))?;
    let summary = summary.replace("/index.md", "/README.md");
    let summary = summary.replace("](", "](docs/").replace("](docs/../", "](");
    fs::write(src.join("SUMMARY.md"), summary)?;
    fs::remove_file(src.join("docs/SUMMARY.md"))?;
    Ok(())
}
