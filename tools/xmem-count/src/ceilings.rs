// SPDX-License-Identifier: MPL-2.0

//! The file with the ceilings of a frame, and the versions for which they hold.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use clap::ValueEnum;

use crate::Error;
use crate::figures::{Column, Figures, Row, name, names, words};

const HEAD: &str = "\
# The ceilings of a frame, with these versions. docs/measurements/benchmarks.md describes the figures.
# `cargo xtask count --set` writes this file, and `cargo xtask count --check` compares a run with it.
";

/// The versions of the software on which the figures depend.
fn versions() -> Result<Vec<(&'static str, String)>, Error> {
    let programs = [
        ("gstreamer", "pkg-config --modversion gstreamer-1.0"),
        ("glib", "pkg-config --modversion glib-2.0"),
        ("libc", "getconf GNU_LIBC_VERSION"),
        ("valgrind", "valgrind --version"),
        ("rustc", "rustc --version"),
    ];
    let mut versions = vec![("processor", processor())];
    for (name, line) in programs {
        let output = Command::new("sh").args(["-c", line]).output()?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        versions.push((name, version));
    }
    Ok(versions)
}

/// The processor type. Valgrind supports only some features of a processor, and copies depend on AVX2.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return "x86_64 with avx2".to_owned();
    }
    std::env::consts::ARCH.to_owned()
}

/// The lines about the plugin: a name such as `xmem, push, ours`, and the figures.
fn lines(rows: &[Row]) -> impl Iterator<Item = (String, &Figures)> {
    let ours = rows.iter().filter(|row| row.has_ours());
    ours.flat_map(|row| {
        let name = format!("{}, {}", row.case, name(row.part));
        row.lines()
            .map(move |(whose, figures)| (format!("{name}, {whose}"), figures))
    })
}

pub(crate) fn write(path: &Path, rows: &[Row]) -> Result<(), Error> {
    let versions = versions()?
        .into_iter()
        .map(|(name, version)| format!("{name}: {version}\n"));
    let lines = lines(rows).map(|(name, figures)| format!("{name}: {}\n", words(figures, " ")));
    let (versions, lines) = (versions.collect::<String>(), lines.collect::<String>());
    std::fs::write(path, format!("{HEAD}{versions}# {}\n{lines}", names(" ")))?;
    Ok(())
}

pub(crate) fn check(path: &Path, rows: &[Row]) -> Result<(), Error> {
    let text = std::fs::read_to_string(path)?;
    let entries: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .collect();
    for (name, version) in versions()? {
        let entry = entries.get(name).copied().unwrap_or_default();
        if entry != version {
            println!(
                "\nNot compared: the ceilings are for {name} {entry}, but this system has {version}"
            );
            return Ok(());
        }
    }
    let mut above = 0;
    for (name, figures) in lines(rows) {
        let entry = entries
            .get(name.as_str())
            .ok_or_else(|| format!("no ceiling for {name}"))?;
        for ((column, figure), ceiling) in Column::value_variants()
            .iter()
            .zip(figures)
            .zip(entry.split(' '))
        {
            let ceiling: u64 = ceiling.parse()?;
            let column_name = crate::figures::name(*column);
            if *figure > ceiling + tolerance(*column, ceiling, name.ends_with("ours")) {
                above += 1;
                println!("\n{name}: {figure} {column_name}, above the ceiling of {ceiling}");
            }
        }
    }
    match above {
        0 => println!("\nNo figure is above its ceiling"),
        _ => return Err(format!("{above} figures are above their ceilings").into()),
    }
    Ok(())
}

/// The difference between runs that is not reported.
fn tolerance(column: Column, ceiling: u64, is_ours: bool) -> u64 {
    match column {
        // The addresses depend on the linker and the loader.
        Column::CodePages | Column::DataPages => 5,
        Column::CodeLines | Column::DataLines if is_ours => 2,
        Column::CodeLines | Column::DataLines | Column::Instructions | Column::Locked
            if !is_ours =>
        {
            ceiling * 3 / 100
        }
        _ => 0,
    }
}
