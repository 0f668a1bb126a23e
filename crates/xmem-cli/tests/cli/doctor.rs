// SPDX-License-Identifier: MPL-2.0

//! `xmem doctor`

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

use crate::support::Pool;

fn doctor(runtime_dir: &Path, path: &str) -> (Vec<Value>, i32) {
    doctor_with(runtime_dir, &[("PATH", path)])
}

fn doctor_with(runtime_dir: &Path, variables: &[(&str, &str)]) -> (Vec<Value>, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_xmem"))
        .args(["doctor", "--format", "json"])
        .env("XMEM_RUNTIME_DIR", runtime_dir)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let findings = serde_json::from_slice(&output.stdout).unwrap();
    (findings, output.status.code().unwrap())
}

fn finding<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    findings
        .iter()
        .find(|finding| finding["check"] == check)
        .unwrap()
}

#[test]
fn doctor_reports_a_missing_gstreamer_and_a_silent_producer() {
    let pool = Pool::new();
    let (findings, code) = doctor(pool.dir.path(), "/nowhere");
    assert_eq!(code, 1);
    assert_eq!(finding(&findings, "shared memory")["verdict"], "ok");
    assert_eq!(finding(&findings, "pools")["what"], "1 with a producer");
    let gstreamer = finding(&findings, "GStreamer");
    assert_eq!(gstreamer["verdict"], "warning");
    assert!(gstreamer["advice"].as_str().unwrap().contains("1.22"));

    // It accepts connections and never answers.
    let _silent = UnixListener::bind(pool.dir.path().join("silent.sock")).unwrap();
    let (findings, _) = doctor(pool.dir.path(), "/nowhere");
    let pools = finding(&findings, "pools");
    assert_eq!(pools["verdict"], "warning");
    assert_eq!(pools["what"], "no answer from the producer of silent");
}

/// Pools do not need it.
#[test]
fn doctor_needs_no_tmpdir() {
    let dir = TempDir::new().unwrap();
    let long = dir.path().join("long".repeat(30));
    std::fs::create_dir(&long).unwrap();
    for tmpdir in [long.to_str().unwrap(), "/nowhere"] {
        let (findings, _) = doctor_with(dir.path(), &[("PATH", "/nowhere"), ("TMPDIR", tmpdir)]);
        let memory = finding(&findings, "shared memory");
        assert_eq!(memory["verdict"], "ok", "{memory}");
    }
    std::fs::remove_dir(long).unwrap();
    // The pool that it tried is gone.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn doctor_names_no_empty_variable() {
    let variables = [("PATH", "/nowhere"), ("XDG_RUNTIME_DIR", "")];
    let (findings, _) = doctor_with(Path::new(""), &variables);
    let directory = finding(&findings, "runtime directory");
    let what = directory["what"].as_str().unwrap();
    assert!(!what.contains(", from "), "{what}");
}

#[test]
fn doctor_names_the_variable_that_gstreamer_uses() {
    let dir = TempDir::new().unwrap();
    let tool = dir.path().join("gst-inspect-1.0");
    std::fs::write(
        &tool,
        "#!/bin/sh\n[ $1 = --version ] && echo 'GStreamer 1.26.2'\n",
    )
    .unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().to_str().unwrap();
    let variables = [
        ("PATH", path),
        ("GST_PLUGIN_PATH", path),
        ("GST_PLUGIN_PATH_1_0", path),
    ];
    let (findings, _) = doctor_with(dir.path(), &variables);
    let plugin = finding(&findings, "plugin");
    let advice = plugin["advice"].as_str().unwrap();
    assert!(advice.contains(" to GST_PLUGIN_PATH_1_0,"), "{advice}");
}

#[test]
fn doctor_reads_what_gstreamer_reports() {
    let dir = TempDir::new().unwrap();
    let tool = dir.path().join("gst-inspect-1.0");
    let check = |version: &str, plugin: &str| {
        let script = format!(
            "#!/bin/sh\ncase $1 in\n--version) echo 'GStreamer {version}' ;;\nxmem) {plugin} ;;\nesac\n"
        );
        std::fs::write(&tool, script).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (findings, code) = doctor(dir.path(), dir.path().to_str().unwrap());
        let verdict = |check| {
            finding(&findings, check)["verdict"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        (verdict("GStreamer"), verdict("plugin"), code)
    };
    let ours = format!("echo '  Version  {}-abc'", env!("CARGO_PKG_VERSION"));
    let found = |gstreamer: &str, plugin: &str, code| (gstreamer.into(), plugin.into(), code);
    assert_eq!(check("1.20.3", "exit 1"), found("problem", "warning", 2));
    assert_eq!(
        check("1.22.0", "echo '  Version  0.0.1'"),
        found("ok", "warning", 1)
    );
    let (gstreamer, plugin, code) = check("1.26.2", &ours);
    assert_eq!((gstreamer.as_str(), plugin.as_str()), ("ok", "ok"));
    // Other findings depend on the host.
    assert!(code <= 1);
}

#[test]
fn doctor_reports_an_unusable_directory() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (findings, code) = doctor(&file, "/nowhere");
    assert_eq!(code, 2);
    let directory = finding(&findings, "runtime directory");
    assert_eq!(directory["verdict"], "problem");
    assert!(
        directory["advice"]
            .as_str()
            .unwrap()
            .contains("XMEM_RUNTIME_DIR")
    );
}

#[test]
fn doctor_reports_a_directory_in_which_no_producer_can_start() {
    let dir = TempDir::new().unwrap();
    let mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(dir.path(), mode).unwrap();
    };
    let check = |part: &str| {
        let (findings, code) = doctor(dir.path(), "/nowhere");
        assert_eq!(code, 1);
        let directory = finding(&findings, "runtime directory");
        assert_eq!(directory["verdict"], "warning");
        let text = |key: &str| directory[key].as_str().unwrap().to_owned();
        assert!(text("what").contains("not create any"), "{directory}");
        assert!(text("advice").contains(part), "{directory}");
    };
    mode(0o777);
    check("others may write to it");
    mode(0o500);
    // Root may write to each directory.
    if std::fs::write(dir.path().join("file"), "").is_err() {
        check("may not write to it");
    }
}

#[test]
fn doctor_reports_a_directory_whose_path_is_too_long() {
    let dir = TempDir::new().unwrap();
    let long = dir.path().join("x".repeat(107));
    let (findings, code) = doctor(&long, "/nowhere");
    assert_eq!(code, 1);
    let directory = finding(&findings, "runtime directory");
    assert_eq!(directory["verdict"], "warning");
    assert!(
        directory["advice"].as_str().unwrap().contains("107"),
        "{directory}"
    );
}
