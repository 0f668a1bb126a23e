// SPDX-License-Identifier: MPL-2.0

//! Links of the pages lead to files and headings, and messages on the page about trouble exist in the sources.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::root;

/// The files below a folder with this extension, without built ones.
fn files(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                files(&path, extension, found);
            }
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
}

/// The lines outside of blocks of code.
fn text(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        is_code ^= line.starts_with("```");
        !is_code && !line.starts_with("```")
    })
}

/// The anchors that hosts of Markdown give to the headings of a page.
fn anchors(page: &str) -> HashSet<String> {
    let headings = text(page).filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.replace(' ', "-");
        kept.chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
            .collect()
    };
    headings.map(anchor).collect()
}

/// The targets of the links of a page.
fn links(page: &str) -> Vec<String> {
    let text: Vec<_> = text(page).collect();
    let text = text.join("\n");
    let targets = text.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split_whitespace().next().unwrap_or("").to_owned())
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut pages = Vec::new();
    files(&root(), "md", &mut pages);
    let (mut broken, mut checked) = (Vec::new(), 0);
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let is_there = match fs::read_to_string(&target) {
                Ok(text) => anchor.is_empty() || anchors(&text).contains(anchor),
                Err(_) => anchor.is_empty() && target.exists(),
            };
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(checked > 200, "only {checked} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Sources that pages name by their path from the root.
#[test]
fn named_sources_exist() {
    let mut pages = Vec::new();
    files(&root().join("docs"), "md", &mut pages);
    let text: String = pages
        .iter()
        .map(|page| fs::read_to_string(page).unwrap())
        .collect();
    let is_source = |word: &&str| {
        let from_root = [
            "src/",
            "crates/",
            "tests/",
            "tools/",
            "xtask/",
            "bridge/",
            "examples/",
        ];
        word.ends_with(".rs") && from_root.iter().any(|folder| word.starts_with(folder))
    };
    let named: HashSet<_> = text.split('`').filter(is_source).collect();
    assert!(named.len() > 30, "{named:?}");
    for name in named {
        assert!(root().join(name).exists(), "there is no {name}");
    }
}

#[test]
fn messages_on_the_page_about_trouble_exist() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let messages: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("### \"")?.strip_suffix('"'))
        .collect();
    assert!(messages.len() > 5, "{messages:?}");
    let mut sources = Vec::new();
    files(&root().join("src"), "rs", &mut sources);
    files(&root().join("crates"), "rs", &mut sources);
    let all: String = sources
        .iter()
        .map(|source| fs::read_to_string(source).unwrap())
        .collect();
    // A message may be broken into lines.
    let words = |text: &str| {
        let words: Vec<_> = text.split_whitespace().filter(|it| *it != "\\").collect();
        words.join(" ")
    };
    let all = words(&all);
    for message in messages {
        assert!(all.contains(message), "no source has {message:?}");
    }
}

/// The tables of the way of a frame name functions that exist, and are counted right.
#[test]
fn the_way_of_a_frame_exists() {
    let page = fs::read_to_string(root().join("docs/design/elements.md")).unwrap();
    let (_, way) = page.split_once("\n## The way of a frame\n").unwrap();
    let (way, _) = way.split_once("\n## ").unwrap();
    let mut tables = 0;
    for half in way.split("\nFrom ").skip(1) {
        let (sentence, table) = half.split_once(":\n").unwrap();
        let (mut functions, mut files) = (0, 0);
        for row in table.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let file = cells[1].trim_matches('`');
            let source = fs::read_to_string(root().join(file)).unwrap();
            for name in cells[2].split(", ").map(|name| name.trim_matches('`')) {
                let exists = ["(", "<"]
                    .iter()
                    .any(|end| source.contains(&format!("fn {name}{end}")));
                assert!(exists, "{file} has no function {name}");
                functions += 1;
            }
            files += 1;
        }
        let counted = format!("{functions} functions in {files} files");
        assert!(
            sentence.ends_with(&counted),
            "{sentence}: these are {counted}"
        );
        tables += 1;
    }
    assert_eq!(tables, 2);
}
