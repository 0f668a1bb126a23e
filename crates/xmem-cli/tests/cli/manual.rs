// SPDX-License-Identifier: MPL-2.0

//! Manual pages, completions, and the page about the command.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Pool, stderr, stdout, xmem};

#[test]
fn completions_and_manual_pages_have_all_commands() {
    let dir = TempDir::new().unwrap();
    let help = xmem(dir.path(), &["--help"]);
    let commands = stdout(&help)
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1);
    let commands: Vec<_> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
        .collect();
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

/// Runs all lines of the page that begin with `xmem`, and compares the fields in its tables with the output.
#[test]
fn the_page_about_the_command_is_true() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let page = std::fs::read_to_string(page).unwrap();
    let pool = Pool::new();
    let mut commands = 0;
    // These commands need the plugin or the bridge, or do not end. Other tests run them.
    let is_elsewhere = |line: &str| {
        [
            "snapshot",
            "tap",
            "share",
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
            page.contains(&format!("`{field}`")),
            "{field} is not on the page"
        );
    }
}
