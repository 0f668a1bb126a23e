// SPDX-License-Identifier: MPL-2.0

//! The examples for buffers by number, as processes that are connected by a pipe.

use std::process::Stdio;

use crate::support::process::*;

#[test]
fn each_buffer_is_read_once_by_its_number() {
    let pools = prepared();
    let example = |name: &str| target_dir().join("examples").join(name);
    let mut producer = command(&pools, example("producer"))
        .args(["my_pool", "20"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut consumer = command(&pools, example("consumer"));
    let indices = producer.stdout.take().unwrap();
    let mut consumer = Launch::start(&pools, "consumer", consumer.arg("my_pool").stdin(indices));
    consumer.succeeds();
    assert!(producer.wait().unwrap().success());
    let log = consumer.log();
    let means: Vec<_> = log
        .lines()
        .map(|line| line.rsplit_once(" bytes, mean ").unwrap().1.parse())
        .collect();
    assert_eq!(means, (0..20).map(Ok).collect::<Vec<Result<u64, _>>>());
    // The pool was removed.
    assert!(pool_stats(&pools, "my_pool").is_none());
}
