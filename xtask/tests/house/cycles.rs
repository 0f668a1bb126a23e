// SPDX-License-Identifier: MPL-2.0

//! Finds dependency cycles between the files of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{shipped, sources};

/// A module, as the list of names in its path from the crate's root.
type Module = Vec<String>;

/// The modules of a crate, each with the text of its file.
pub(crate) fn modules(dir: &Path) -> BTreeMap<Module, String> {
    let module = |file: &Path| {
        let inside = file.strip_prefix(dir).unwrap().with_extension("");
        let mut names: Module = inside
            .iter()
            .map(|name| name.to_str().unwrap().to_owned())
            .collect();
        if matches!(names.last().map(String::as_str), Some("mod" | "lib")) {
            names.pop();
        }
        names
    };
    let files = sources(dir).into_iter();
    files
        .map(|file| (module(&file), shipped(&fs::read_to_string(&file).unwrap())))
        .collect()
}

/// The paths of an import: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<String> {
    let Some((before, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        return vec![path.split_whitespace().collect()];
    };
    let (mut depth, mut start, mut paths) = (0, 0, Vec::new());
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let branch = rest[start..at].trim();
                if !branch.is_empty() {
                    paths.extend(expand(&format!("{}{branch}", before.trim_start())));
                }
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    paths
}

/// A path in a text, and whether `pub use` re-exports it.
pub(crate) type Named = (String, bool);

/// The paths in the imports and in the code of a text.
pub(crate) fn paths(text: &str) -> Vec<Named> {
    let mut paths = Vec::new();
    for statement in text.split(';') {
        let import = statement.rsplit_once("use ").filter(|(before, _)| {
            let line = before.rsplit('\n').next().unwrap_or_default().trim();
            line.is_empty() || line.starts_with("pub")
        });
        let code = import.map_or(statement, |(before, tree)| {
            let is_reexport = before
                .rsplit('\n')
                .next()
                .unwrap_or_default()
                .contains("pub");
            let tree = tree.replace('\n', " ");
            paths.extend(expand(&tree).into_iter().map(|path| (path, is_reexport)));
            before
        });
        let words = code.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | ':')));
        let inner = words.filter(|word| word.contains("::") && !word.starts_with(':'));
        paths.extend(inner.map(|path| (path.trim_end_matches(':').to_owned(), false)));
    }
    paths
}

/// A path as the list of names from the crate's root. `None` for a path of another crate, or of the module itself.
fn absolute(modules: &BTreeMap<Module, String>, module: &Module, path: &str) -> Option<Module> {
    let mut names: Vec<&str> = path.split("::").collect();
    let mut from = module.clone();
    let child = [module.as_slice(), &[names[0].to_owned()]].concat();
    if modules.contains_key(&child) {
        names.insert(0, "self");
    }
    match names[0] {
        "crate" => from.clear(),
        "self" => {}
        "super" => {
            while names.first() == Some(&"super") {
                from.pop();
                names.remove(0);
            }
            names.insert(0, "super");
        }
        _ => return None,
    }
    from.extend(names[1..].iter().map(|name| (*name).to_owned()));
    Some(from)
}

/// The modules outside of `chapter` that name it in a path.
pub(crate) fn naming(modules: &BTreeMap<Module, String>, chapter: &[String]) -> BTreeSet<Module> {
    let names_it = |(module, text): &(&Module, &String)| {
        let mut paths = paths(text)
            .into_iter()
            .filter_map(|(path, _)| absolute(modules, module, &path));
        !module.starts_with(chapter) && paths.any(|path| path.starts_with(chapter))
    };
    let naming = modules.iter().filter(names_it);
    naming.map(|(module, _)| module.clone()).collect()
}

/// The largest dependency cycle of a crate's files.
pub(crate) fn largest(dir: &Path) -> Vec<String> {
    let modules = modules(dir);
    let mut reexports = BTreeMap::new();
    for (module, text) in &modules {
        for (path, is_reexport) in paths(text) {
            if let (true, Some(target)) = (is_reexport, absolute(&modules, module, &path))
                && let Some(name) = target.last()
            {
                reexports.insert((module.clone(), name.clone()), target.clone());
            }
        }
    }
    // The file that defines the item of a path. Follows re-exports of folders.
    let resolve = |mut path: Module| -> Option<Module> {
        for _ in 0..4 {
            let len = (0..=path.len())
                .rev()
                .find(|len| modules.contains_key(&path[..*len]))?;
            let found = path[..len].to_vec();
            match path
                .get(len)
                .and_then(|name| reexports.get(&(found.clone(), name.clone())))
            {
                Some(next) if *next != path => {
                    path = [next.clone(), path[len + 1..].to_vec()].concat()
                }
                _ => return Some(found),
            }
        }
        None
    };
    let uses = |module: &Module, text: &str| -> BTreeSet<Module> {
        let named = paths(text)
            .into_iter()
            .filter(|(_, is_reexport)| !is_reexport);
        let paths = named.filter_map(|(path, _)| absolute(&modules, module, &path));
        let found = paths.filter_map(resolve);
        // Skip the root, which only declares modules.
        found
            .filter(|other| other != module && !other.is_empty())
            .collect()
    };
    let graph: BTreeMap<&Module, BTreeSet<Module>> = modules
        .iter()
        .map(|(module, text)| (module, uses(module, text)))
        .collect();
    let reach = |from: &Module| {
        let mut seen: BTreeSet<&Module> = BTreeSet::new();
        let mut next: Vec<&Module> = graph[from].iter().collect();
        while let Some(module) = next.pop() {
            if seen.insert(module) {
                next.extend(&graph[module]);
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = graph
        .keys()
        .map(|module| (*module, reach(module)))
        .collect();
    let cycle = |of: &Module| -> Vec<String> {
        let both = reached[of]
            .iter()
            .filter(|other| reached[*other].contains(of));
        both.map(|module| module.join("::")).collect()
    };
    graph
        .keys()
        .map(|module| cycle(module))
        .max_by_key(Vec::len)
        .unwrap_or_default()
}
