// SPDX-License-Identifier: MPL-2.0

//! Many pools and many importers.

use crate::support::*;

const POOLS: u64 = 4;
const IMPORTERS: [&str; 4] = ["b", "c", "d", "e"];
const FRAMES: u64 = 200;

/// The number of a pool's first frame. It differs between pools, so the content of a frame identifies its pool.
fn first(pool: u64) -> u64 {
    pool * 1_000_000
}

/// The size of a pool's frames. It differs between pools.
fn size(pool: u64) -> usize {
    20_000 * (1 + pool as usize)
}

#[test]
fn four_hosts_import_four_pools_each() {
    let hosts = Hosts::new();
    let names = (0..POOLS).map(|pool| format!("cam{pool}"));
    let names: Vec<String> = names.collect();
    let exported: Vec<&str> = names.iter().map(String::as_str).collect();
    let producers: Vec<_> = names.iter().map(|name| hosts.producer(name)).collect();
    let _export = hosts.export(&exported);
    let mut imports = Vec::new();
    for host in IMPORTERS {
        for (pool, name) in (0..).zip(&names) {
            let import = hosts.import_pool(host, name);
            imports.push((pool, import, hosts.consumer_of(host, name)));
        }
    }
    eventually("the exporter joins each pool for each importer", || {
        let mut all = producers.iter();
        all.all(|it| it.num_consumers() == IMPORTERS.len())
    });
    // Wait for the first frame in each pool. From then on, each frame is received or counted as missed.
    for (pool, producer) in (0..).zip(&producers) {
        assert!(publish(producer, first(pool), size(pool)));
    }
    for (pool, _, consumer) in &mut imports {
        assert_eq!(number(&receive(consumer)), first(*pool));
    }
    std::thread::scope(|scope| {
        for (pool, _, consumer) in &mut imports {
            scope.spawn(move || {
                let (mut before, last) = (first(*pool), first(*pool) + FRAMES);
                while before < last {
                    let frame = receive(consumer);
                    let number = number(&frame);
                    assert_eq!(frame.size(), size(*pool) as u64);
                    assert!(number > before && number <= last, "{number} after {before}");
                    before = number;
                }
            });
        }
        for number in 1..=FRAMES {
            for (pool, producer) in (0..).zip(&producers) {
                let number = first(pool) + number;
                assert!(publish(producer, number, size(pool)));
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    for (_, import, consumer) in imports {
        let stats = consumer.stats();
        let (received, missed) = import.figures();
        assert_eq!(received, stats.received + stats.missed);
        assert_eq!(received + missed, FRAMES + 1);
    }
}
