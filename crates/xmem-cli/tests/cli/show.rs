// SPDX-License-Identifier: MPL-2.0

//! `xmem show`

use serde_json::Value;
use std::time::Duration;
use tempfile::TempDir;
use xmem_core::{BufferPool, Canceller, Consumer, Delivery, FrameMeta, Producer, Wait};

use crate::support::{Pool, socket, stdout, xmem};

#[test]
fn show_prints_the_pool_and_its_consumers() {
    let pool = Pool::new();
    let output = xmem(pool.dir.path(), &["show", "-v", &pool.path()]);
    let text = stdout(&output);
    for part in [
        "2 published",
        "live",
        "video/x-raw,format=NV12",
        "reader",
        "HELD",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn show_as_json_prints_the_producers_statistics() {
    let pool = Pool::new();
    let output = xmem(pool.dir.path(), &["show", &pool.path(), "--format", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json["published"], 2);
    assert_eq!(json["pid"], std::process::id());
    // The sticky state by its keys. Values have no quotes except those of JSON.
    assert_eq!(json["sticky"]["caps"], "video/x-raw,format=NV12");
    assert_eq!(json["sticky"]["segment"], r#"GstSegment, format="time\";"#);
    assert_eq!(json["consumers"][0]["name"], "reader");
    assert_eq!(json["consumers"][0]["held"], 1);
    assert_eq!(json["consumers"][0]["received"], 1);
    assert_eq!(json["published"], pool.producer.stats().published);
}

#[test]
fn show_of_a_pool_of_buffers_has_a_row_for_each_process_that_writes() {
    let dir = TempDir::new().unwrap();
    let name = dir.path().join("my_pool");
    let name = name.to_str().unwrap();
    let [one, other] = [(); 2].map(|()| BufferPool::new(name).unwrap());
    one.preallocate_cpu(1000, 3).unwrap();
    let index = one.acquire_cpu(1000).unwrap().forget().unwrap();
    let _held = other.get(index).unwrap();
    let _unread = [(); 2].map(|()| one.acquire_cpu(1000).unwrap().forget().unwrap());
    other.acquire_cpu(10).unwrap();

    let output = xmem(dir.path(), &["show", name]);
    let text = stdout(&output);
    assert!(text.contains("buffers of 2 processes"), "{text}");
    let output = xmem(dir.path(), &["show", name, "-f", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    let writers = json.as_array().unwrap();
    assert_eq!(writers.len(), 2, "{json}");
    for writer in writers {
        let pool = writer["pool"].as_str().unwrap();
        assert_eq!(BufferPool::name_of_writer(pool), Some(name));
        assert_eq!(writer["state"], "live");
        let of_one = writer["set_aside"] == 3;
        assert_eq!(writer["slots_held"], u32::from(of_one), "{json}");
        let readers = writer["consumers"].as_array().unwrap();
        assert_eq!(readers.len(), usize::from(of_one), "{json}");
        // The table has the same figures, and the names that `show` accepts.
        let row = text.lines().find(|line| line.starts_with(pool)).unwrap();
        let figures: Vec<&str> = row.split_whitespace().collect();
        let [_, state, pid, _, _, "of", "256", used, unread, aside, ..] = figures[..] else {
            panic!("{text}");
        };
        let expected = ["live", &std::process::id().to_string()];
        assert_eq!([state, pid], expected, "{text}");
        let expected = if of_one {
            ["1", "2", "3"]
        } else {
            ["0", "0", "0"]
        };
        assert_eq!([used, unread, aside], expected, "{text}");
        let of_writer = xmem(dir.path(), &["show", pool, "-f", "json"]);
        let of_writer: Value = serde_json::from_str(stdout(&of_writer)).unwrap();
        assert_eq!(of_writer["set_aside"], writer["set_aside"]);
        assert_eq!(of_writer["unread"], writer["unread"]);
    }
}

/// The cell of a consumer in a column, in a table whose other cells contain no spaces.
fn cell<'a>(text: &'a str, row: &str, column: &str) -> &'a str {
    let words = |line: &'a str| {
        line.split("  ")
            .map(str::trim)
            .filter(|word| !word.is_empty())
    };
    let heading = text.lines().find(|line| line.contains("MISSED")).unwrap();
    let column = words(heading).position(|word| word == column).unwrap();
    // Columns that only pools or only consumers have are empty in the other rows.
    let row = text
        .lines()
        .find(|line| line.trim_start().starts_with(row))
        .unwrap();
    words(row).nth(column).unwrap()
}

#[test]
fn show_and_watch_print_dropped_frames() {
    let pool = Pool::new();
    pool.consumer.note_dropped();
    pool.consumer.note_dropped();
    let output = xmem(pool.dir.path(), &["show", &pool.path()]);
    assert_eq!(cell(stdout(&output), "reader", "DROPPED"), "2");
    let output = xmem(pool.dir.path(), &["watch", "-n1", &pool.path()]);
    assert_eq!(cell(stdout(&output), "reader", "DROPPED"), "2");
    let output = xmem(pool.dir.path(), &["show", &pool.path(), "-f", "json"]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json["consumers"][0]["dropped"], 2);
}

#[test]
fn show_names_the_consumer_that_delays_a_lossless_pool() {
    let dir = TempDir::new().unwrap();
    let builder = Producer::builder(socket(&dir)).delivery(Delivery::Lossless);
    let producer = builder.max_slots(12).build().unwrap();
    let join = |name| {
        Consumer::builder(socket(&dir))
            .name(name)
            .connect()
            .unwrap()
    };
    let (mut quick, mut stopped) = (join("quick"), join("stopped"));
    let cancel = Canceller::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while producer
                .wait_for_room(Wait::FOREVER.unless(&cancel))
                .is_ok()
            {
                let slot = producer.acquire_wait(64, Wait::FOREVER).unwrap();
                slot.publish(FrameMeta::new(64)).unwrap();
            }
        });
        let time = Some(Duration::from_secs(60));
        let take = |consumer: &mut Consumer| consumer.receive_with(time, |_| ()).unwrap();
        take(&mut stopped);
        // The producer waits when the slowest consumer is eight frames behind.
        (0..9).for_each(|_| take(&mut quick));
        let show = || xmem(dir.path(), &["show", "cam0"]);
        while !stdout(&show()).contains("waits") {}
        let shown = show();
        let line = stdout(&shown).lines().find(|line| line.contains("waits"));
        assert!(line.unwrap().contains("for stopped (process"), "{line:?}");
        assert!(stdout(&shown).contains("budgets  smaller than asked for: raise max-slots"));
        let watched = xmem(dir.path(), &["watch", "cam0", "--count", "1"]);
        assert!(stdout(&watched).contains("  stopped (waited for)"));
        assert!(!stdout(&watched).contains("quick (waited for)"));
        cancel.cancel();
    });
}
