// SPDX-License-Identifier: MPL-2.0

//! `xmem metrics`, as Prometheus reads it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use xmem_core::{Consumer, FrameMeta, Producer, Sticky};

/// The command and its address.
struct Metrics(Child, String);

impl Metrics {
    fn new(runtime_dir: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_xmem"))
            .args(["metrics", "--listen", "127.0.0.1:0"])
            .env("XMEM_RUNTIME_DIR", runtime_dir)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("xmem: statistics at http://")
            .unwrap();
        Self(child, address.strip_suffix("/metrics").unwrap().to_owned())
    }

    /// The header and the body of the response.
    fn ask(&self, method: &str, path: &str) -> (String, String) {
        self.ask_with(method, path, "Host: localhost\r\n")
    }

    fn ask_with(&self, method: &str, path: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn series(&self) -> HashMap<String, f64> {
        // An answer of the producers is used for half a second.
        std::thread::sleep(Duration::from_millis(600));
        let (head, body) = self.ask("GET", "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(
            head.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
            "{head}"
        );
        parsed(&body)
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The values of all series. Each belongs to the metric that was described last, and is unique.
fn parsed(text: &str) -> HashMap<String, f64> {
    let text = text.strip_suffix("# EOF\n").unwrap();
    let (mut series, mut names, mut metric) =
        (HashMap::new(), Vec::new(), (String::new(), String::new()));
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap();
            assert!(!names.contains(&name.to_owned()), "{name} is there twice");
            names.push(name.to_owned());
            metric = (name.to_owned(), kind.to_owned());
        } else if !line.starts_with("# HELP ") {
            let (id, value) = line.rsplit_once(' ').unwrap();
            let name = id.split('{').next().unwrap();
            let end = match metric.1.as_str() {
                "counter" => "_total",
                "info" => "_info",
                "gauge" => "",
                other => panic!("{other}"),
            };
            assert_eq!(name, metric.0.clone() + end);
            let is_new = series
                .insert(id.to_owned(), value.parse().unwrap())
                .is_none();
            assert!(is_new, "{id} is there twice");
        }
    }
    series
}

#[test]
fn the_figures_of_all_pools_are_served() {
    let dir = TempDir::new().unwrap();
    let metrics = Metrics::new(dir.path());
    assert!(metrics.series().is_empty());

    let path = dir.path().join("cam0.sock");
    let producer = Producer::builder(&path).build().unwrap();
    let mut sticky = Sticky::new();
    sticky.set(
        "caps",
        "video/x-raw, format=(string)NV12, width=(int)64, height=(int)48",
    );
    producer.set_sticky(&sticky).unwrap();
    let join = || {
        Consumer::builder(&path)
            .name("a \"reader\"")
            .connect()
            .unwrap()
    };
    let (mut consumer, _other) = (join(), join());
    producer
        .acquire(64)
        .unwrap()
        .publish(FrameMeta::new(64))
        .unwrap();
    producer.note_scarce();
    let _held = consumer.receive(Some(Duration::from_secs(60))).unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("old.sock")).unwrap());

    let series = metrics.series();
    let labels = r#"{pool="cam0",consumer="a \"reader\"",id=""#;
    let of_consumers = |name: &str| {
        let name = name.to_owned() + labels;
        let values = series
            .iter()
            .filter(|(id, _)| id.starts_with(&name))
            .map(|(_, value)| value);
        (values.clone().count(), values.sum::<f64>())
    };
    assert_eq!(series[r#"xmem_pool_live{pool="old"}"#], 0.0);
    assert_eq!(series[r#"xmem_pool_live{pool="cam0"}"#], 1.0);
    assert_eq!(
        series[r#"xmem_pool_info{format="NV12 64x48",delivery="live",pool="cam0"}"#],
        1.0
    );
    assert_eq!(series[r#"xmem_pool_published_total{pool="cam0"}"#], 1.0);
    assert_eq!(series[r#"xmem_pool_scarce_total{pool="cam0"}"#], 1.0);
    assert_eq!(series[r#"xmem_pool_consumers{pool="cam0"}"#], 2.0);
    assert_eq!(of_consumers("xmem_consumer_received_total"), (2, 1.0));
    assert_eq!(of_consumers("xmem_consumer_held"), (2, 1.0));
    let (_, age) = of_consumers("xmem_consumer_oldest_held_seconds");
    assert!(age > 0.0);

    // The page and the dashboard name the existing metrics.
    let read = |file: &str| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        std::fs::read_to_string(root.to_owned() + file).unwrap()
    };
    let (page, dashboard) = (
        read("docs/reference/output.md"),
        read("contrib/grafana.json"),
    );
    let served: Vec<_> = series
        .keys()
        .map(|id| id.split('{').next().unwrap())
        .collect();
    for name in &served {
        assert!(
            page.contains(&format!("`{name}`")),
            "{name} is not on the page"
        );
    }
    let _: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let word = |c: char| c.is_ascii_lowercase() || c == '_';
    let named: Vec<_> = dashboard
        .split(|c| !word(c))
        .filter(|it| it.starts_with("xmem_"))
        .collect();
    assert!(named.len() > 10);
    for name in named {
        assert!(served.contains(&name), "{name} is not served");
    }
}

#[test]
fn other_requests_are_refused() {
    let dir = TempDir::new().unwrap();
    let metrics = Metrics::new(dir.path());
    let (head, body) = metrics.ask("GET", "/");
    assert!(
        head.starts_with("HTTP/1.1 404 ") && body.contains("/metrics"),
        "{head}"
    );
    let (head, _) = metrics.ask("POST", "/metrics");
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
    for (headers, status) in [
        ("Host: evil.example\r\n", "HTTP/1.1 403 "),
        ("", "HTTP/1.1 403 "),
        ("Host: localhost\r\nHost: localhost\r\n", "HTTP/1.1 403 "),
    ] {
        let (head, _) = metrics.ask_with("GET", "/metrics", headers);
        assert!(head.starts_with(status), "{headers}: {head}");
    }
    assert!(metrics.series().is_empty());
}

#[test]
fn a_port_in_use_is_an_error() {
    let dir = TempDir::new().unwrap();
    let metrics = Metrics::new(dir.path());
    let mut second = Command::new(env!("CARGO_BIN_EXE_xmem"));
    let output = second
        .args(["metrics", "--listen", &metrics.1])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains(&format!(
            "cannot listen on {}: Address already in use",
            metrics.1
        )),
        "{text}"
    );
    assert!(text.contains("Choose another port"), "{text}");
}
