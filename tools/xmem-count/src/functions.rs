// SPDX-License-Identifier: MPL-2.0

//! Finds the functions to which instructions belong, from the debug information of the mapped files.

use std::collections::{BTreeMap, HashMap};
use std::process::Command;

use crate::Error;
use crate::trace::Place;

/// A file that is mapped in the traced process.
struct Mapping {
    start: u64,
    end: u64,
    /// The address that the first byte of the file would have.
    base: u64,
    path: String,
}

/// The number of functions in a line: the called function, and the innermost functions that are inlined there.
const DEPTH: usize = 2;

/// Prints a line for each function with the cost of its own instructions.
pub(crate) fn print(pid: u32, places: &[Place]) -> Result<(), Error> {
    let names = names(pid, places)?;
    // In the order of their first instruction.
    let mut functions: Vec<(&str, [u64; 3])> = Vec::new();
    let mut indices = HashMap::new();
    for place in places {
        let name = names.get(&place.address).map_or("?", String::as_str);
        let index = *indices.entry(name).or_insert_with(|| {
            functions.push((name, [0; 3]));
            functions.len() - 1
        });
        let costs = [place.times, place.code_lines, place.data_lines];
        for (sum, cost) in functions[index].1.iter_mut().zip(costs) {
            *sum += cost;
        }
    }
    println!("instructions, new code lines, new data lines, function");
    for (name, [instructions, code, data]) in functions {
        println!("{instructions:6} {code:4} {data:4}  {name}");
    }
    Ok(())
}

fn names(pid: u32, places: &[Place]) -> Result<HashMap<u64, String>, Error> {
    let mappings = mappings(pid)?;
    let mut by_file: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for place in places {
        let here = |mapping: &&Mapping| (mapping.start..mapping.end).contains(&place.address);
        if let Some(mapping) = mappings.iter().find(here) {
            let addresses = by_file.entry(&mapping.path).or_default();
            addresses.push((place.address, place.address - mapping.base));
        }
    }
    let mut names = HashMap::new();
    for (path, addresses) in by_file {
        let mut command = Command::new("addr2line");
        command.args(["-e", path, "-f", "-i", "-C", "-a"]);
        command.args(addresses.iter().map(|(_, at)| format!("{at:#x}")));
        let output = command
            .output()
            .map_err(|error| format!("cannot start addr2line: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        // addr2line prints a line with the address, then two lines for each function: its name, and its source location.
        let mut blocks = text.split("0x").skip(1).map(|block| {
            let functions = block.lines().skip(1).step_by(2);
            let mut functions: Vec<_> = functions.map(short).collect();
            functions.reverse();
            functions.truncate(DEPTH);
            functions.join(" > ")
        });
        let file = path.rsplit('/').next().unwrap_or(path);
        for (address, _) in addresses {
            let chain = blocks.next().unwrap_or_default();
            names.insert(address, format!("{file} {chain}"));
        }
    }
    Ok(names)
}

/// The name of a function without crate names and type arguments.
fn short(name: &str) -> String {
    let mut depth = 0_usize;
    let plain: String = name
        .chars()
        .filter(|letter| {
            match letter {
                '<' => depth += 1,
                '>' => depth = depth.saturating_sub(1),
                _ => return depth == 0,
            }
            false
        })
        .collect();
    let parts: Vec<_> = plain.split("::").filter(|part| !part.is_empty()).collect();
    parts[parts.len().saturating_sub(2)..].join("::")
}

fn mappings(pid: u32) -> Result<Vec<Mapping>, Error> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let Some((addresses, rest)) = line.split_once(' ') else {
            continue;
        };
        let (Some((start, end)), Some(at)) = (addresses.split_once('-'), rest.find('/')) else {
            continue;
        };
        let (start, end) = (
            u64::from_str_radix(start, 16)?,
            u64::from_str_radix(end, 16)?,
        );
        let path = rest[at..].to_owned();
        let first = mappings.iter().find(|mapping| mapping.path == path);
        let base = first.map_or(start, |mapping| mapping.base);
        mappings.push(Mapping {
            start,
            end,
            base,
            path,
        });
    }
    Ok(mappings)
}
