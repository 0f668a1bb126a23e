// SPDX-License-Identifier: MPL-2.0

//! The binary interface: a change of it changes the files in `abi`, which VERSION.md describes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::lab::{HERE, Lab, has, libraries, not_run};

const DUMP: &str = "abi/libxmem.abi";
const SYMBOLS: &str = "abi/symbols.txt";

pub(crate) fn header() -> String {
    fs::read_to_string(Path::new(HERE).join("include/xmem.h")).unwrap()
}

/// The functions that the header declares: their names, and their declarations without the semicolon.
pub(crate) fn functions(header: &str) -> Vec<(&str, &str)> {
    let lines = header.match_indices('\n').filter_map(|(at, _)| {
        let line = &header[at + 1..];
        let rest = line
            .strip_prefix("xmem_result ")
            .or(line.strip_prefix("const char *"))?;
        let (name, _) = rest.split_once('(')?;
        let (declaration, _) = line.split_once(';')?;
        Some((name, declaration))
    });
    let found: Vec<_> = lines
        .filter(|(name, _)| name.starts_with("xmem_"))
        .collect();
    assert!(found.len() > 30, "{found:?}");
    found
}

#[test]
fn the_library_exports_the_functions_of_the_list() {
    let header = header();
    let declared: BTreeSet<&str> = functions(&header).into_iter().map(|it| it.0).collect();
    assert!(
        declared.len() <= 45,
        "a small interface: {}",
        declared.len()
    );
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(libraries().join("libxmem.so"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<&str> = text.lines().filter_map(|it| it.split(' ').nth(2)).collect();
    assert_eq!(exported, declared, "what xmem.h declares");
    let list = fs::read_to_string(Path::new(HERE).join(SYMBOLS)).unwrap();
    let listed: BTreeSet<&str> = list.lines().collect();
    assert_eq!(exported, listed, "what abi/symbols.txt lists");
}

/// Dumps the interface of a header. libabigail reads it in a hollow library, because the types of the real one are Rust's.
fn dump(lab: &Lab, header: &str) -> PathBuf {
    let folder = lab.file("include");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("xmem.h"), header).unwrap();
    let mut source = String::from("#include <xmem.h>\n");
    for (_, declaration) in functions(header) {
        source += &format!("{declaration} {{ return 0; }}\n");
    }
    fs::write(lab.file("hollow.c"), source).unwrap();
    // The dump names the source.
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        let output = command.args(args).current_dir(lab.file("")).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    // Options and results are numbers, so that no function has their enum.
    let all_types = "-fno-eliminate-unused-debug-types";
    let name = "-Wl,-soname,libxmem.so.0";
    let shared = ["-shared", "-fPIC", name, "-Iinclude", "-o", "hollow.so"];
    run(
        "gcc",
        &[&["-std=c11", "-g", all_types, "hollow.c"][..], &shared].concat(),
    );
    let only = ["--load-all-types", "--headers-dir", "include"];
    let short = ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs"];
    let files = ["--out-file", "hollow.abi", "hollow.so"];
    run("abidw", &[&only[..], &short, &files].concat());
    lab.file("hollow.abi")
}

/// Compares a header with the committed interface.
fn compare(lab: &Lab, header: &str) -> Output {
    Command::new("abidiff")
        .arg("--non-reachable-types")
        .arg(Path::new(HERE).join(DUMP))
        .arg(dump(lab, header))
        .output()
        .unwrap()
}

fn can_compare() -> bool {
    if !cfg!(target_arch = "x86_64") {
        not_run("the committed interface is that of x86-64");
        return false;
    }
    if !has("abidiff") {
        not_run("abidiff is missing: install abigail-tools");
        return false;
    }
    true
}

/// `XMEM_ABI=write` writes the files anew.
#[test]
fn the_types_are_those_of_the_dump() {
    if !can_compare() {
        return;
    }
    let (lab, header) = (Lab::new(), header());
    if std::env::var_os("XMEM_ABI").is_some_and(|it| it == "write") {
        fs::copy(dump(&lab, &header), Path::new(HERE).join(DUMP)).unwrap();
        let names: BTreeSet<&str> = functions(&header).into_iter().map(|it| it.0).collect();
        let names: String = names.iter().map(|name| format!("{name}\n")).collect();
        fs::write(Path::new(HERE).join(SYMBOLS), names).unwrap();
    }
    let output = compare(&lab, &header);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.is_empty(),
        "the binary interface changed. If VERSION.md allows that, run this test with XMEM_ABI=write\n{text}"
    );
}

#[test]
fn every_kind_of_change_is_seen() {
    if !can_compare() {
        return;
    }
    let (lab, header) = (Lab::new(), header());
    for (from, to) in [
        // An argument, a result, a function that is gone, and one that is new.
        (
            "int64_t timeout, xmem_frame *frame)",
            "int32_t timeout, xmem_frame *frame)",
        ),
        (
            "const char *xmem_error(void)",
            "xmem_result xmem_error(void)",
        ),
        ("xmem_result xmem_frame_release(xmem_frame frame);", ""),
        (
            "const char *xmem_version(void);",
            "const char *xmem_version(void);\nconst char *xmem_new(void);",
        ),
        // Fields: another order, another type. A constant.
        (
            "    uint64_t received;\n    uint64_t missed; ",
            "    uint64_t missed;\n    uint64_t received; ",
        ),
        ("size_t stride;", "uint32_t stride;"),
        ("XMEM_ERROR_BUSY = -3", "XMEM_ERROR_BUSY = -33"),
        ("XMEM_OVER_BUDGET_DROP = 1", "XMEM_OVER_BUDGET_DROP = 3"),
    ] {
        assert!(header.contains(from), "{from}");
        let output = compare(&lab, &header.replace(from, to));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && !text.is_empty(), "{to}: {text}");
    }
}
