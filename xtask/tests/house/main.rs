// SPDX-License-Identifier: MPL-2.0

//! Checks the sources against the tables of docs/design/structure.md: a module uses only modules of rows below its own, each folder
//! has the listed number of files with `unsafe`, and only the listed files name a chapter. Atomics in shared memory use the types of
//! `xmem_shm::sync`. The model of the protocol names functions that exist, and the settings of nextest name tests that exist.

mod cycles;
mod pages;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The cells of the tables in the page.
fn rows() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/design/structure.md")).unwrap();
    let lines = page.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    lines.map(cells).collect()
}

/// The words of a cell that are in backticks.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Each crate of the table, and each folder that has its own rows, with the row of each of its modules. Row 0 is the top.
fn ladders() -> Vec<(String, HashMap<String, usize>)> {
    let mut ladders: Vec<(String, HashMap<String, usize>)> = Vec::new();
    let mut is_in_table = false;
    for row in rows() {
        match row[0]
            .strip_prefix("**`")
            .and_then(|name| name.strip_suffix("`**"))
        {
            Some(name) => ladders.push((name.to_owned(), HashMap::new())),
            None if row[0] == "module" => is_in_table = true,
            None if matches!(row[0].as_str(), "folder" | "chapter") => is_in_table = false,
            None if !is_in_table => {}
            None => {
                if let Some((_, modules)) = ladders.last_mut() {
                    let at = modules.values().max().map_or(0, |last| last + 1);
                    modules.extend(code(&row[0]).map(|module| (module.to_owned(), at)));
                }
            }
        }
    }
    ladders
}

/// The source folder of a crate.
fn source(name: &str) -> String {
    match name {
        "src" => name.to_owned(),
        name => format!("{name}/src"),
    }
}

/// The Rust files in a folder and its subfolders.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The text of a file without tests and comments. Paths in visibilities such as `pub(in path)` are removed, because they are not
/// dependencies.
fn shipped(text: &str) -> String {
    let shipped = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let lines = shipped
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let shipped = lines.collect::<Vec<_>>().join("\n");
    let mut parts = shipped.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "pub" + part.split_once(')').map_or(part, |(_, rest)| rest)
    })
}

/// The modules below `path` that the text uses.
fn named(shipped: &str, path: &str) -> Vec<String> {
    let paths = cycles::paths(shipped).into_iter();
    let inside = paths.filter_map(|(named, _)| Some(named.strip_prefix(path)?.to_owned()));
    inside
        .map(|inside| inside.split("::").next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn modules_use_only_rows_below() {
    let ladders = ladders();
    assert_eq!(ladders.len(), 6, "the table was not found");
    let mut wrong = Vec::new();
    let mut dependencies = 0;
    for (name, modules) in &ladders {
        let (dir, path) = match name.split_once("/src/") {
            Some((_, folder)) => (
                name.clone(),
                format!("crate::{}::", folder.replace('/', "::")),
            ),
            None => (source(name), "crate::".to_owned()),
        };
        let dir = root().join(dir);
        for file in sources(&dir) {
            let inside = file.strip_prefix(&dir).unwrap();
            let module = inside.iter().next().unwrap().to_str().unwrap();
            let module = module.strip_suffix(".rs").unwrap_or(module);
            // Skip the root of the crate or folder, and the code that is built only for fuzzing.
            if matches!(module, "lib" | "mod" | "fuzzing") {
                continue;
            }
            let text = shipped(&fs::read_to_string(&file).unwrap());
            let Some(own) = modules.get(module) else {
                wrong.push(format!(
                    "{name}: the table does not have the module {module}"
                ));
                continue;
            };
            for other in named(&text, &path) {
                let Some(at) = modules.get(&other) else {
                    continue;
                };
                dependencies += usize::from(other != module);
                let is_beside =
                    at == own && other != module && !may_depend_on_each_other(module, &other);
                if at < own || is_beside {
                    wrong.push(format!("{}: {module} uses {other}", file.display()));
                }
            }
        }
    }
    assert!(dependencies > 50, "the sources were not read");
    assert!(
        wrong.is_empty(),
        "modules that use a module of a row above or of the same row:\n{}",
        wrong.join("\n")
    );
}

/// The largest number of files of a crate that may depend on each other in a cycle.
const LARGEST_CYCLE: usize = 5;

/// Crates without rows in the table.
const OTHER_CRATES: [&str; 8] = [
    "bridge",
    "tools/xmem-bench",
    "crates/xmem-capi",
    "crates/xmem-cli",
    "tools/xmem-count",
    "tools/xmem-faults",
    "tools/xmem-gpu",
    "xtask",
];

#[test]
fn dependency_cycles_are_small() {
    let mut largest = 0;
    let names = ladders().into_iter().map(|(name, _)| name);
    let crates = names.filter(|name| !name.contains("/src/"));
    let others = OTHER_CRATES.map(str::to_owned);
    for name in crates.chain(others).map(|name| source(&name)) {
        let cycle = cycles::largest(&root().join(&name));
        largest = largest.max(cycle.len());
        assert!(
            cycle.len() <= LARGEST_CYCLE,
            "{name}: these files depend on each other in a cycle: {}",
            cycle.join(", ")
        );
    }
    assert!(largest > 0, "no cycle found: the imports were not read");
}

/// Pairs of modules that implement one subject together and may depend on each other.
fn may_depend_on_each_other(one: &str, other: &str) -> bool {
    [["device", "stream"], ["driver", "result"]]
        .iter()
        .any(|pair| pair.contains(&one) && pair.contains(&other))
}

#[test]
fn only_the_listed_files_name_a_chapter() {
    let modules = cycles::modules(&root().join("crates/xmem-core/src"));
    let names = |path: &str| -> Vec<String> { path.split('/').map(str::to_owned).collect() };
    let rows = rows();
    let table = rows.iter().skip_while(|row| row[0] != "chapter").skip(2);
    let table: Vec<_> = table.take_while(|row| row[0].starts_with('`')).collect();
    assert_eq!(table.len(), 4, "the table was not found");
    for row in table {
        let chapter = names(code(&row[0]).next().unwrap());
        let listed = code(&row[1]).map(names).collect();
        let naming = cycles::naming(&modules, &chapter);
        assert_eq!(naming, listed, "these files name {}", chapter.join("/"));
    }
}

/// The files of the core and of the shared format, each with its text.
fn core_and_format() -> Vec<(PathBuf, String)> {
    let files = SHARING.iter().flat_map(|dir| sources(&root().join(dir)));
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        (file, text)
    };
    files.map(read).collect()
}

/// A function, type, constant or field, such as `Guard::claim` or `publish::commit`. The first name is a type or a file.
fn is_defined(files: &[(PathBuf, String)], owner: &str, item: &str) -> bool {
    let has_owner = |file: &Path, text: &str| match owner.starts_with(char::is_uppercase) {
        true => [" {", "<", "("]
            .iter()
            .any(|end| text.contains(&format!(" {owner}{end}"))),
        false => file.iter().any(|name| name == owner) || file.file_stem().unwrap() == owner,
    };
    let definitions = [
        ("fn ", "("),
        ("fn ", "<"),
        ("struct ", ""),
        ("enum ", " "),
        ("const ", ":"),
        (" ", ": "),
    ];
    files.iter().any(|(file, text)| {
        let mut texts = definitions
            .iter()
            .map(|(before, after)| format!("{before}{item}{after}"));
        has_owner(file, text) && texts.any(|definition| text.contains(&definition))
    })
}

#[test]
fn the_model_names_functions_that_exist() {
    let files = core_and_format();
    let model = sources(&root().join("crates/xmem-shm/tests/exhaustive"));
    let model: String = model
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
    let words = model.split(['`', '"']);
    let paths = words.filter(|word| word.contains("::") && word.chars().all(is_name));
    let is_right = |path: &&str| {
        let mut names = path.rsplit("::");
        let (item, owner) = (names.next().unwrap(), names.next().unwrap());
        is_defined(&files, owner, item)
    };
    let (right, wrong): (Vec<_>, Vec<_>) = paths.partition(is_right);
    assert!(right.len() > 50, "the names were not found");
    assert!(wrong.is_empty(), "the model names {wrong:?}");
}

#[test]
fn unsafe_code_matches_the_table() {
    let rows = rows();
    let table = rows.iter().skip_while(|row| row[0] != "folder").skip(2);
    let table = table.take_while(|row| row.len() == 3 && row[0].starts_with('`'));
    let mut folders = 0;
    for row in table {
        let folder = code(&row[0]).next().unwrap();
        let allows = |file: &PathBuf| {
            let text = fs::read_to_string(file).unwrap();
            text.contains("allow(unsafe_code)")
        };
        let found = sources(&root().join(folder))
            .iter()
            .filter(|file| allows(file))
            .count();
        assert_eq!(found.to_string(), row[1], "files with `unsafe` in {folder}");
        folders += 1;
    }
    assert_eq!(folders, 8, "the table was not found");
}

/// nextest ignores a setting for a test that it does not find.
#[test]
fn the_settings_of_nextest_name_tests_that_exist() {
    let settings = fs::read_to_string(root().join(".config/nextest.toml")).unwrap();
    let names = settings.split("test(").skip(1);
    let names: Vec<_> = names.filter_map(|rest| rest.split(')').next()).collect();
    assert_eq!(names.len(), 3, "the names were not found");
    let files = ["tests", "crates/xmem-core/tests"].map(|dir| sources(&root().join(dir)));
    for name in names {
        let path = name.trim_matches(['/', '^', '=']);
        let (module, test) = path.rsplit_once("::").unwrap_or(("", path));
        let exists = files.iter().flatten().any(|file| {
            let text = fs::read_to_string(file).unwrap();
            file.file_stem().unwrap() == module && text.contains(&format!("fn {test}"))
        });
        assert!(exists, "no test has the name {path}");
    }
}

/// Crates with atomics in memory that other processes read and write.
const SHARING: [&str; 2] = ["crates/xmem-shm/src", "crates/xmem-core/src"];

/// Files that may use the types of `std`: the module that re-exports them, and counters of test builds.
const TAKE_FROM_STD: [&str; 2] = ["xmem-shm/src/sync.rs", "xmem-shm/src/fault/armed.rs"];

#[test]
fn shared_atomics_use_the_types_that_loom_replaces() {
    let is_wrong = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let mut statements = text.split(';');
        let from_std = |statement: &str| {
            statement
                .split_once("std::sync::atomic")
                .is_some_and(|(_, names)| {
                    ["AtomicU32", "AtomicU64", "fence", "::*"]
                        .iter()
                        .any(|name| names.contains(name))
                })
        };
        !TAKE_FROM_STD.iter().any(|allowed| file.ends_with(allowed)) && statements.any(from_std)
    };
    let files = SHARING.iter().flat_map(|dir| sources(&root().join(dir)));
    let wrong: Vec<_> = files.filter(is_wrong).collect();
    assert!(wrong.is_empty(), "use xmem_shm::sync in {wrong:?}");
}
