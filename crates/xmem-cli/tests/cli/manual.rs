// SPDX-License-Identifier: MPL-2.0

//! Manual pages, completions, and the page about the command.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Pool, stderr, stdout, xmem};

/// The commands that the help lists.
fn commands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
        .collect()
}

#[test]
fn completions_and_manual_pages_have_all_commands() {
    let dir = TempDir::new().unwrap();
    let help = xmem(dir.path(), &["--help"]);
    let commands = commands(stdout(&help));
    assert!(commands.len() > 10, "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let output = xmem(dir.path(), &["completions", shell]);
        for command in &commands {
            assert!(stdout(&output).contains(command), "{command}");
        }
    }
    stdout(&xmem(dir.path(), &["man", dir.path().to_str().unwrap()]));
    let meson = concat!(env!("CARGO_MANIFEST_DIR"), "/../../meson.build");
    let meson = std::fs::read_to_string(meson).unwrap();
    for command in commands {
        assert!(
            meson.contains(&format!("'{command}',")),
            "meson.build does not install the page of {command}"
        );
        let page = std::fs::read_to_string(dir.path().join(format!("xmem-{command}.1")));
        assert!(page.unwrap().starts_with(".ie"), "{command}");
    }
    let output = xmem(dir.path(), &["man", "/none"]);
    assert!(
        stderr(&output).contains("cannot write to /none"),
        "{output:?}"
    );
}

/// The page is made from the help texts. `cargo xtask docs --write` writes it.
#[test]
fn reference() {
    let dir = TempDir::new().unwrap();
    let mut made = String::from(
        "# Reference of the command xmem\n\n\
         This page is made from the help of the command, by `cargo xtask docs --write`. [The command xmem](../cli.md) explains how \
         to use it.\n",
    );
    let help = xmem(dir.path(), &["--help"]);
    let commands = commands(stdout(&help));
    for command in std::iter::once(None).chain(commands.into_iter().map(Some)) {
        let words = ["xmem"].into_iter().chain(command);
        let title = words.collect::<Vec<_>>().join(" ");
        let arguments: Vec<&str> = command.into_iter().chain(["--help"]).collect();
        let help = xmem(dir.path(), &arguments);
        let help: Vec<&str> = stdout(&help)
            .trim_end()
            .lines()
            .map(str::trim_end)
            .collect();
        made += &format!("\n## {title}\n\n```text\n{}\n```\n", help.join("\n"));
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
    if std::env::var_os("XMEM_WRITE_REFERENCE").is_some() {
        std::fs::write(file, made).unwrap();
        return;
    }
    assert!(
        std::fs::read_to_string(file).unwrap() == made,
        "docs/reference/cli.md is out of date: run `cargo xtask docs --write`"
    );
}

/// Runs all lines of the page that begin with `xmem`, and compares the fields in the tables with the output.
#[test]
fn the_page_about_the_command_is_true() {
    let read = |file: &str| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
        std::fs::read_to_string(root.to_owned() + file).unwrap()
    };
    let (page, output) = (read("cli.md"), read("reference/output.md"));
    let pool = Pool::new();
    let mut commands = 0;
    // These commands need the plugin or the bridge, or do not end. Other tests run them.
    let is_elsewhere = |line: &str| {
        [
            "snapshot",
            "tap",
            "share",
            "camera",
            "serve",
            "metrics",
            "record",
            "replay",
            "list --remote",
        ]
        .iter()
        .any(|it| line.starts_with(&format!("xmem {it}")))
    };
    let lines = page.lines().filter(|line| line.starts_with("xmem "));
    for line in lines.filter(|line| !is_elsewhere(line)) {
        let command = line.split('#').next().unwrap();
        let args: Vec<&str> = command.split_whitespace().skip(1).collect();
        let output = xmem(pool.dir.path(), &args);
        let may_warn = args == ["doctor"] && output.status.code() == Some(1);
        assert!(output.status.success() || may_warn, "{line}: {output:?}");
        commands += 1;
    }
    assert!(commands >= 5);
    let shown = xmem(pool.dir.path(), &["show", "cam0", "-f", "json"]);
    let shown: Value = serde_json::from_str(stdout(&shown)).unwrap();
    let fields =
        |json: &Value| -> Vec<String> { json.as_object().unwrap().keys().cloned().collect() };
    for field in fields(&shown)
        .into_iter()
        .chain(fields(&shown["consumers"][0]))
    {
        assert!(
            output.contains(&format!("`{field}`")),
            "{field} is not on the page"
        );
    }
}
