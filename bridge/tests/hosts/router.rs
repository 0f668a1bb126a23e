// SPDX-License-Identifier: MPL-2.0

//! Exporters and importers that connect to a Zenoh router such as `zenohd`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use zenoh::{Config, Wait};

use crate::certificates::{certificates, identity, start};
use crate::support::*;

/// The address at which the router listens, with the protocol. Set only for the process of the router.
const PLACE: &str = "XMEM_BRIDGE_TEST_ROUTER";
/// The directory of the router's certificates, for QUIC.
const CERTIFICATES: &str = "XMEM_BRIDGE_TEST_ROUTER_CERTIFICATES";

/// The line that the router prints when it listens.
const READY: &str = "the router listens";

/// A router in a separate process. It is killed when the value is dropped, and ends when this process ends.
struct Router(Child);

impl Router {
    fn start(hosts: &Hosts, protocol: &str) -> Self {
        let mut router = Command::new(std::env::current_exe().unwrap());
        router.args(["--exact", "router::process", "--ignored", "--nocapture"]);
        router.env(PLACE, format!("{protocol}/{}", hosts.address()));
        router.env(CERTIFICATES, hosts.path());
        let router = router.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut router = Self(router.spawn().unwrap());
        let lines = BufReader::new(router.0.stdout.take().unwrap()).lines();
        let is_ready = |line: Result<String, _>| line.is_ok_and(|line| line.contains(READY));
        assert!(lines.into_iter().any(is_ready), "the router ended");
        router
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the process of a router, which the other tests start"]
fn process() {
    let (Ok(place), Ok(certificates)) = (std::env::var(PLACE), std::env::var(CERTIFICATES)) else {
        return;
    };
    let file = |name: &str| format!("\"{certificates}/{name}\"");
    let mut settings = vec![
        ("mode", "\"router\"".to_owned()),
        ("listen/endpoints", format!("[\"{place}\"]")),
        ("scouting/multicast/enabled", "false".to_owned()),
        // As in the manual. The window of the bridge requires this size.
        ("transport/link/tx/queue/size/data", "16".to_owned()),
    ];
    if place.starts_with("quic/") {
        settings.extend([
            ("transport/link/tls/root_ca_certificate", file("ours.pem")),
            ("transport/link/tls/listen_certificate", file("a.pem")),
            ("transport/link/tls/listen_private_key", file("a.key")),
            ("transport/link/tls/enable_mtls", "true".to_owned()),
        ]);
    }
    let mut config = Config::default();
    for (name, value) in settings {
        config.insert_json5(name, &value).unwrap();
    }
    let _router = zenoh::open(config).wait().unwrap();
    println!("{READY}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Exports a pool of a host over the router.
fn export(hosts: &Hosts, host: &str, pool: &str) -> Bridge {
    let router = format!("tcp/{}", hosts.address());
    let args = ["export", pool, "--router", &router, "--trusted-network"];
    let bridge = hosts.bridge(host, &args);
    bridge.prints("over the router");
    bridge
}

#[test]
fn frames_cross_a_router() {
    let hosts = Hosts::new();
    let router = Router::start(&hosts, "tcp");
    let producers = [hosts.producer("cam0"), hosts.producer_on("c", "cam1")];
    let _export = export(&hosts, "a", "cam0");
    let _other = export(&hosts, "c", "cam1");
    let imports = [hosts.import("b"), hosts.import_pool("b", "cam1")];
    let mut consumers = [hosts.consumer("b"), hosts.consumer_of("b", "cam1")];
    let cameras = producers.map(|it| Camera::start(&it, 1_000_000, 1));
    for consumer in &mut consumers {
        receive_until(consumer, 100);
    }
    let list = hosts.bridge("d", &["list", &hosts.address(), "--trusted-network"]);
    let (code, out, _) = list.end();
    let mut pools: Vec<&str> = out.lines().collect();
    pools.sort_unstable();
    assert_eq!((code, &pools[..]), (Some(0), &["cam0", "cam1"][..]));

    // Both sides connect to a restarted router.
    drop(router);
    let stopped_at = cameras.each_ref().map(Camera::next);
    let _router = Router::start(&hosts, "tcp");
    for (consumer, number) in consumers.iter_mut().zip(stopped_at) {
        receive_until(consumer, number);
    }
    assert!(imports.iter().all(|it| !it.has_printed("refused")));
}

#[test]
fn frames_cross_a_router_with_certificates() {
    let hosts = Hosts::new();
    certificates(hosts.path());
    let _router = Router::start(&hosts, "quic");
    let producer = hosts.producer("cam0");
    let place = format!("quic/{}", hosts.address());
    let own = identity(&hosts, "b", "--server-ca", "ours");
    let export = start(&hosts, "a", &["export", "cam0", "--router", &place], &own);
    export.prints("over the router");
    let source = format!("cam0@{}", hosts.address());
    let _import = start(&hosts, "b", &["import", &source], &own);
    let mut consumer = hosts.consumer("b");
    let _camera = Camera::start(&producer, 1_000_000, 1);
    receive_until(&mut consumer, 50);

    // A certificate of another authority.
    let own = identity(&hosts, "c", "--server-ca", "ours");
    let stranger = start(&hosts, "c", &["export", "cam1", "--router", &place], &own);
    let (code, _, lines) = stranger.end();
    assert!(
        code == Some(1) && lines.contains("closes the connection"),
        "{lines}"
    );
}
