// SPDX-License-Identifier: MPL-2.0

//! A producer that is stopped by a signal, as the command shows it. No call hangs.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use crate::support::{process::*, *};
use rustix::process::Signal;

fn outputs(pools: &Pools, args: &str) -> (String, String) {
    let args: Vec<_> = args.split(' ').collect();
    let output = xmem(pools, &args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn a_stopped_producer_is_shown() {
    let pools = prepared();
    let source =
        "videotestsrc is-live=true ! video/x-raw,format=NV12,width=64,height=48 ! xmemsink pool=";
    let _runs = Launch::new(&pools, "runs", &format!("{source}runs"));
    let stops = Launch::new(&pools, "stops", &format!("{source}stops"));
    until("frames", || {
        ["runs", "stops"]
            .iter()
            .all(|pool| pool_stats(&pools, pool).is_some_and(|it| it.published > 0))
    });
    stops.signal(Signal::STOP);
    until("silence", || pool_stats(&pools, "stops").is_none());

    let row = |table: &str, pool: &str| {
        let row = table.lines().find(|line| line.starts_with(pool));
        row.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    for command in ["list", "top --once"] {
        // On a busy machine the other producer may not answer in time.
        until("an answer of the other one", || {
            let (table, _) = outputs(&pools, command);
            assert_eq!(row(&table, "stops"), "silent");
            row(&table, "runs") == "live"
        });
    }
    for command in ["show stops", "snapshot stops a.png", "tap stops"] {
        let (_, error) = outputs(&pools, command);
        assert!(
            error.contains("does not answer: it may be stopped"),
            "{command}: {error}"
        );
    }

    let mut metrics = xmem(&pools, &["metrics", "--listen", "127.0.0.1:0"]);
    let metrics = Launch::start(&pools, "metrics", &mut metrics);
    until("an address", || metrics.log().ends_with("/metrics\n"));
    let log = metrics.log();
    let address = log
        .trim()
        .strip_prefix("xmem: statistics at http://")
        .unwrap();
    let mut stream = TcpStream::connect(address.strip_suffix("/metrics").unwrap()).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_contains(&text, "xmem_pool_live{pool=\"stops\"} 0.0");

    stops.signal(Signal::CONT);
    until("life", || {
        row(&outputs(&pools, "list").0, "stops") == "live"
    });
}
