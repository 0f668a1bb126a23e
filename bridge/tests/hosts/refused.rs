// SPDX-License-Identifier: MPL-2.0

//! Refusals. The bridge prints one line with the reason.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;

use xmem_core::{Delivery, Producer, Sticky};

use crate::certificates::{certificates, identity, start};
use crate::support::*;

#[track_caller]
fn fails(hosts: &Hosts, args: &[&str], words: &str) {
    let (code, _, lines) = hosts.bridge("b", args).end();
    assert_eq!(code, Some(1), "{lines}");
    assert!(
        lines.contains(words) && lines.lines().count() == 1,
        "{lines}"
    );
}

#[test]
fn bad_input() {
    let hosts = Hosts::new();
    fails(
        &hosts,
        &["export", "cam0", "--listen", "tcp/127.0.0.1:1"],
        "--trusted-network",
    );
    fails(&hosts, &["export", "cam0"], "--client-ca");
    fails(&hosts, &["export", "a/b", "--trusted-network"], "a/b");
    fails(
        &hosts,
        &["import", "cam0", "--trusted-network"],
        "POOL@HOST",
    );
    fails(&hosts, &["import", "cam0@", "--trusted-network"], "HOST");
    fails(&hosts, &["import", "cam0@there"], "--certificate");
    fails(
        &hosts,
        &["export", "cam0", "--trusted-network"],
        "--listen tcp/",
    );
    let long = "a".repeat(65);
    for name in ["a b", &long] {
        let import = ["import", "cam0@there", "--as", name, "--trusted-network"];
        fails(&hosts, &import, "1 to 64 letters");
    }
    let files = [
        "--certificate",
        "/none",
        "--key",
        "/none",
        "--server-ca",
        "/none",
    ];
    let import = [&["import", "cam0@127.0.0.1"], &files[..]].concat();
    fails(&hosts, &import, "/none");
    let junk = hosts.path().join("junk.pem");
    std::fs::write(&junk, "junk").unwrap();
    let junk = junk.to_str().unwrap();
    let files = ["--certificate", junk, "--key", junk, "--server-ca", junk];
    fails(
        &hosts,
        &[&["import", "cam0@127.0.0.1"], &files[..]].concat(),
        "PEM",
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("tcp/{}", taken.local_addr().unwrap());
    let export = ["export", "cam0", "--trusted-network", "--listen", &listen];
    fails(&hosts, &export, "in use");
    let there = format!("127.0.0.1:{}", hosts.port());
    fails(&hosts, &["list", &there, "--trusted-network"], &there);
}

#[test]
fn a_low_limit_of_open_files() {
    let hosts = Hosts::new();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 20; exec \"$@\"", "sh", "env"]);
    let import = ["import", "cam0@there", "--trusted-network"];
    let (code, _, lines) = hosts.bridge_in(limited, "b", &import).end();
    assert!(code == Some(1) && lines.contains("ulimit -n"), "{lines}");
}

#[test]
fn pools_that_are_not_exported() {
    let hosts = Hosts::new();
    let lossless = Producer::builder(hosts.pool("a", "film")).delivery(Delivery::Lossless);
    let film = lossless.build().unwrap();
    let listen = format!("tcp/{}", hosts.address());
    let export = |host: &str, pool: &str| {
        let args = ["export", pool, "--listen", &listen, "--trusted-network"];
        hosts.bridge(host, &args)
    };
    let (code, _, lines) = export("a", "film").end();
    assert!(code == Some(1) && lines.contains("lossless"), "{lines}");
    // Another pool is exported nevertheless.
    let both = hosts.export(&["film", "cam0"]);
    both.prints("\"film\" cannot be exported: it is lossless");
    drop((both, film));

    // A pool without a producer can be exported. Its first producer is lossless, and the next one is not.
    let later = export("a", "film");
    later.prints("exports");
    let source = format!("film@{}", hosts.address());
    let import = hosts.bridge(
        "b",
        &["import", &source, "--as", "cam0", "--trusted-network"],
    );
    let mut consumer = hosts.consumer("b");
    let lossless = Producer::builder(hosts.pool("a", "film")).delivery(Delivery::Lossless);
    let film = lossless.build().unwrap();
    import.prints("refused: the pool is not exported: it is lossless");
    drop(film);
    let film = hosts.producer("film");
    let _camera = Camera::start(&film, 1000, 1);
    receive(&mut consumer);

    let (code, _, lines) = export("b", "cam0").end();
    assert!(code == Some(1) && lines.contains("imported"), "{lines}");

    let mut sticky = Sticky::new();
    let caps = "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format=NV12";
    sticky.set("caps", caps);
    film.set_sticky(&sticky).unwrap();
    import
        .prints("refused: the pool is not exported: the layout of its frames is that of a device");

    let source = format!("other@{}", hosts.address());
    let other = hosts.bridge("c", &["import", &source, "--trusted-network"]);
    other.prints("refused: no pool \"other\" is exported");
}

#[test]
fn the_list_has_what_is_exported() {
    let hosts = Hosts::new();
    let _export = hosts.export(&["cam0", "cam1", "cam0"]);
    let list = hosts.bridge("b", &["list", &hosts.address(), "--trusted-network"]);
    let (code, out, _) = list.end();
    assert_eq!((code, out.as_str()), (Some(0), "cam0\ncam1\n"));
}

/// The command `xmem`, with the bridge on its PATH. If `xmem` is not built, it prints a message and returns `None`.
fn xmem() -> Option<Command> {
    let bridge = Path::new(env!("CARGO_BIN_EXE_xmem-bridge"));
    // The bridge's target directory may be inside the target directory of the other crates.
    let targets = [bridge.ancestors().nth(3).unwrap(), Path::new("../target")];
    let mut programs = targets.iter().map(|target| target.join("debug/xmem"));
    let Some(program) = programs.find(|program| program.is_file()) else {
        not_run("there is no `xmem`: build it with cargo build -p xmem-cli");
        return None;
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = vec![bridge.parent().unwrap().to_owned()];
    paths.extend(std::env::split_paths(&path));
    let mut command = Command::new(program);
    command.env("PATH", std::env::join_paths(paths).unwrap());
    Some(command)
}

#[test]
fn xmem_lists_the_pools_of_another_host() {
    let hosts = Hosts::new();
    certificates(hosts.path());
    let listen = format!("quic/{}", hosts.address());
    let own = identity(&hosts, "a", "--client-ca", "ours");
    let export = start(&hosts, "a", &["export", "cam0", "--listen", &listen], &own);
    export.prints("exports");
    let list = |options: &[String]| {
        let mut command = xmem()?;
        command.args(["list", "--remote", &hosts.address()]);
        let output = command.args(options).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Some((text(output.stdout), text(output.stderr)))
    };
    let own = identity(&hosts, "b", "--server-ca", "ours");
    let Some((out, error)) = list(&own) else {
        return;
    };
    let source = format!("cam0@{}", hosts.address());
    let words: Vec<_> = out.split_whitespace().collect();
    assert_eq!(words, ["POOL", "SOURCE", "cam0", &source], "{error}");
    let json = ["--format".to_owned(), "json".to_owned()];
    let (out, _) = list(&[&own[..], &json].concat()).unwrap();
    assert_eq!(
        out,
        format!("[{{\"name\":\"cam0\",\"source\":\"{source}\"}}]\n")
    );
    let (out, error) = list(&[]).unwrap();
    assert!(out.is_empty() && error.contains("--certificate"), "{error}");
    let stranger = identity(&hosts, "c", "--server-ca", "ours");
    let (out, error) = list(&stranger).unwrap();
    let reason = format!("cannot list the pools of {}: ", hosts.address());
    assert!(out.is_empty() && error.contains(&reason), "{error}");
}

#[test]
fn garbage_on_the_port() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let (_export, _import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    let camera = Camera::start(&producer, 100_000, 1);
    receive(&mut consumer);
    for seed in 1..20 {
        let mut socket = TcpStream::connect(hosts.address()).unwrap();
        let _ = socket.write_all(&content(seed, 10_000));
        // A valid length, followed by random bytes.
        let mut socket = TcpStream::connect(hosts.address()).unwrap();
        let _ = socket.write_all(&[&[200, 0], &content(seed, 200)[..]].concat());
    }
    let after = camera.next();
    receive_until(&mut consumer, after);
}

#[test]
fn a_refused_certificate_is_reported_with_what_to_check() {
    let hosts = Hosts::new();
    certificates(hosts.path());
    let (listen, source) = (
        format!("quic/{}", hosts.address()),
        format!("cam0@{}", hosts.address()),
    );
    let export = |certificate: &str| {
        let own = identity(&hosts, certificate, "--client-ca", "ours");
        let export = start(&hosts, "a", &["export", "cam0", "--listen", &listen], &own);
        export.prints("exports");
        export
    };
    let import = |host: &str, certificate: &str, authority: &str| {
        let own = identity(&hosts, certificate, "--server-ca", authority);
        start(&hosts, host, &["import", &source], &own)
    };
    let own = identity(&hosts, "b", "--server-ca", "ours");
    // No exporter runs. Zenoh reports no cause, so the line lists all possible causes.
    let waiting = import("b", "b", "ours");
    waiting.prints("--certificate and --server-ca here, --client-ca there");

    let elsewhere = export("elsewhere");
    waiting.prints("is valid and has the name \"127.0.0.1\"");
    let list = start(&hosts, "c", &["list", &hosts.address()], &own);
    let (code, _, lines) = list.end();
    assert!(code == Some(1) && lines.contains("is refused: "), "{lines}");
    elsewhere.kill();

    let _export = export("a");
    import("c", "b", "others").prints("UnknownIssuer; check --server-ca here");
    import("c", "c", "ours").prints("check --certificate here, and --client-ca there");
    // The importer that waited connects without a restart.
    waiting.prints("connected");
}

/// The name in the certificate has no brackets.
#[test]
fn a_certificate_may_be_for_an_address_of_ipv6() {
    let hosts = Hosts::new();
    let address = format!("[::1]:{}", hosts.port());
    if UdpSocket::bind(&address).is_err() {
        return not_run("this machine has no IPv6");
    }
    certificates(hosts.path());
    let _producer = hosts.producer("cam0");
    let listen = format!("quic/{address}");
    let own = identity(&hosts, "a", "--client-ca", "ours");
    let export = start(&hosts, "a", &["export", "cam0", "--listen", &listen], &own);
    export.prints("exports");
    let own = identity(&hosts, "b", "--server-ca", "ours");
    let (code, out, lines) = start(&hosts, "b", &["list", &address], &own).end();
    assert!(code == Some(0) && out.contains("cam0"), "{lines}");
    let import = format!("cam0@{address}");
    start(&hosts, "b", &["import", &import], &own).prints("connected");
}

#[test]
fn a_host_without_a_certificate_is_refused() {
    let hosts = Hosts::new();
    certificates(hosts.path());
    let producer = hosts.producer("cam0");
    let camera = Camera::start(&producer, 1_000_000, 1);
    let listen = format!("quic/{}", hosts.address());
    let own = identity(&hosts, "a", "--client-ca", "ours");
    let export = start(&hosts, "a", &["export", "cam0", "--listen", &listen], &own);
    export.prints("exports");
    let source = format!("cam0@{}", hosts.address());
    let import = |host: &str| {
        let own = identity(&hosts, host, "--server-ca", "ours");
        start(&hosts, host, &["import", &source], &own)
    };
    // A certificate of another authority.
    let stranger = import("c");
    let _consumer = hosts.consumer("c");
    let _import = import("b");
    let mut consumer = hosts.consumer("b");
    receive(&mut consumer);
    // A connection over TCP, and random datagrams.
    let list = hosts.bridge("c", &["list", &hosts.address(), "--trusted-network"]);
    assert_eq!(list.end().0, Some(1));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for seed in 1..100 {
        socket
            .send_to(&content(seed, 1200), hosts.address())
            .unwrap();
    }
    let after = camera.next();
    receive_until(&mut consumer, after + 100);
    assert_eq!(producer.num_consumers(), 1);
    assert_eq!(stranger.figures(), (0, 0));
}
