// SPDX-License-Identifier: MPL-2.0

//! The crates in the programs and libraries: their licences, and a list of them in the format CycloneDX.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::release::Release;
use crate::step::output;
use crate::{Result, cargo};

/// A crate that is part of a program or library.
#[derive(Debug)]
pub(super) struct Part {
    name: String,
    version: String,
    licence: String,
    /// The folder of its sources.
    sources: PathBuf,
    /// The programs and libraries that it is in.
    users: BTreeSet<&'static str>,
    /// The parts that it depends on.
    needs: Vec<String>,
    is_own: bool,
}

impl Part {
    pub(super) fn is_in(&self, user: &str) -> bool {
        !self.is_own && self.users.contains(user)
    }

    pub(super) fn line(&self) -> String {
        format!("{} {}: {}", self.name, self.version, self.licence)
    }

    fn address(&self) -> String {
        address(&self.name, &self.version)
    }

    /// The texts of its licences.
    fn texts(&self) -> Result<Vec<String>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.sources)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().to_uppercase());
            let words = ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
            let is_licence = |name: String| words.iter().any(|word| name.starts_with(word));
            if path.is_file() && name.is_some_and(is_licence) {
                files.push(path);
            }
        }
        files.sort();
        let read = |path: &PathBuf| Ok(fs::read_to_string(path)?.trim().replace('\r', ""));
        files.iter().map(read).collect()
    }
}

/// The crates of everything that is shipped, in alphabetical order.
pub(super) fn all(release: &Release) -> Result<Vec<Part>> {
    let mut users: BTreeMap<String, BTreeSet<&'static str>> = BTreeMap::new();
    let mut manifests = BTreeSet::new();
    for (manifest, name) in release.crates() {
        manifests.insert(manifest);
        for part in tree(manifest, name)? {
            users.entry(part).or_default().insert(name);
        }
    }
    let mut parts = BTreeMap::new();
    for manifest in manifests {
        for part in described(manifest, &users)? {
            parts.insert(part.address(), part);
        }
    }
    Ok(parts.into_values().collect())
}

/// The addresses of the crates that are linked into a crate. Those that only run in the compiler are not.
fn tree(manifest: &str, name: &str) -> Result<Vec<String>> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--manifest-path", manifest, "-p", name]);
    tree.args("-e normal,no-proc-macro --prefix none -f {p}".split(' '));
    let text = output(&mut tree)?;
    let addresses = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some(address(words.next()?, words.next()?.strip_prefix('v')?))
    });
    Ok(addresses.collect())
}

/// What cargo knows about those crates of a workspace that have users.
fn described(
    manifest: &str,
    users: &BTreeMap<String, BTreeSet<&'static str>>,
) -> Result<Vec<Part>> {
    let mut metadata = cargo();
    metadata.args("metadata --locked --format-version 1 --manifest-path".split(' '));
    let metadata: Value = serde_json::from_str(&output(metadata.arg(manifest))?)?;
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let addresses: BTreeMap<String, String> = packages
        .clone()
        .map(|it| {
            (
                word(&it["id"]),
                address(&word(&it["name"]), &word(&it["version"])),
            )
        })
        .collect();
    let nodes = metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten();
    let needs: BTreeMap<String, Vec<String>> = nodes
        .map(|node| {
            let needs = node["dependencies"].as_array().into_iter().flatten();
            let needs = needs.filter_map(|id| addresses.get(id.as_str()?));
            let needs = needs.filter(|need| users.contains_key(*need)).cloned();
            (word(&node["id"]), needs.collect())
        })
        .collect();
    let parts = packages.filter_map(|it| {
        let id = word(&it["id"]);
        let users = users.get(addresses.get(&id)?)?.clone();
        let sources = PathBuf::from(word(&it["manifest_path"]))
            .parent()?
            .to_owned();
        Some(Part {
            name: word(&it["name"]),
            version: word(&it["version"]),
            // An older way to write it.
            licence: word(&it["license"]).replace('/', " OR "),
            sources,
            users,
            needs: needs.get(&id).cloned().unwrap_or_default(),
            is_own: it["source"].is_null(),
        })
    });
    Ok(parts.collect())
}

/// The address of a crate in lists of components: <https://github.com/package-url/purl-spec>
fn address(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

/// The licences of these crates. A text that many have is printed once.
pub(super) fn texts(parts: &[&Part]) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in parts {
        let mut own = part.texts()?;
        if own.is_empty() {
            own.push("The sources of these crates contain only the name of their licence.".into());
        }
        for text in own {
            texts.entry(text).or_default().push(part.line());
        }
    }
    let rule = "-".repeat(80);
    let chapters = texts
        .into_iter()
        .map(|(text, users)| format!("{}\n{rule}\n\n{text}\n", users.join("\n")));
    Ok(chapters.collect::<Vec<_>>().join("\n\n"))
}

/// The file with the licences of all parts that others made.
pub(super) fn licences(release: &Release) -> PathBuf {
    release.packages().join("third-party-licences.txt")
}

/// Writes the list of all parts and their licences beside the packages.
pub(super) fn write(release: &Release, parts: &[Part]) -> Result {
    let own = release.packages();
    let foreign: Vec<&Part> = parts.iter().filter(|part| !part.is_own).collect();
    let version = &release.version;
    write_text(&licences(release), &texts(&foreign)?)?;
    let components = parts.iter().map(|part| {
        json!({
            "type": "library", "bom-ref": part.address(), "name": part.name, "version": part.version, "purl": part.address(),
            "licenses": [{"expression": part.licence}],
        })
    });
    let needs = parts
        .iter()
        .map(|part| json!({"ref": part.address(), "dependsOn": part.needs}));
    let list = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": release.date("+%Y-%m-%dT%H:%M:%SZ")?,
            "component": {
                "type": "application", "bom-ref": "xmem", "name": "xmem", "version": version,
                "licenses": [{"license": {"id": "MPL-2.0"}}],
            },
        },
        "components": components.collect::<Vec<_>>(),
        "dependencies": needs.collect::<Vec<_>>(),
    });
    write_text(
        &own.join(format!("xmem-{version}.cdx.json")),
        &serde_json::to_string_pretty(&list)?,
    )
}

fn write_text(path: &Path, text: &str) -> Result {
    fs::write(path, format!("{}\n", text.trim_end()))?;
    Ok(())
}
