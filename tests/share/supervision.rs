// SPDX-License-Identifier: MPL-2.0

//! When `xmem share` starts a source, starts it again, and ends it.

use std::time::Duration;
use std::{fs, path::Path, thread};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

#[test]
fn a_killed_source_is_started_again() {
    let pools = prepared();
    let share = share(&pools, "test", &[]);
    let receiver = receiver(&pools);
    assert!(receiver.next().is_some());
    until("a line about the format", || {
        share.log().contains("pool p: NV12 1280x720 30/1")
    });
    let stats = pool_stats(&pools, "p").unwrap();
    assert!(
        stats
            .sticky
            .iter()
            .any(|(key, caps)| key == "caps" && caps.contains("NV12"))
    );
    kill_process(
        Pid::from_raw(stats.pid.cast_signed()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    until("the next producer", || {
        receiver.next().is_some() && receiver.stat("reconnects") == 1
    });
    until("frames of the next producer", || published(&pools) > 0);
    assert_ne!(pool_stats(&pools, "p").unwrap().pid, stats.pid);
    let log = share.log();
    assert_contains(&log, "xmem: test: sharing it in the pool p");
    assert_contains(&log, "signal: 9 (SIGKILL); starting it again in 1s");
    ends_by(share, Signal::TERM);
    assert!(!Path::new(&pool_path(&pools, "p")).exists());
}

#[test]
fn the_source_ends_with_its_supervisor() {
    let pools = prepared();
    let share = share(&pools, "test", &["--format", "RGB"]);
    until("frames", || published(&pools) > 0);
    share.signal(Signal::KILL);
    until("no producer", || pool_stats(&pools, "p").is_none());
}

/// Programs that read signals from a descriptor block them, also for what they start.
#[test]
fn it_can_be_stopped_and_its_source_ends_although_signals_were_blocked() {
    for signal in [Signal::TERM, Signal::KILL] {
        let pools = prepared();
        let mut blocked = command(&pools, "env");
        blocked
            .args(["--block-signal=INT,TERM"])
            .arg(target_dir().join("xmem"))
            .args(["share", "test", "--pool", "p"]);
        let mut share = Launch::start(&pools, "share", &mut blocked);
        until("frames", || published(&pools) > 0);
        share.signal(signal);
        until("its end", || share.has_ended());
        until("no producer", || pool_stats(&pools, "p").is_none());
    }
}

/// `timeout` sends SIGTERM to its child, and then to the group with that child.
#[test]
fn signals_that_come_together_are_one() {
    let pools = prepared();
    let mut share = share(&pools, "test", &[]);
    until("frames", || published(&pools) > 0);
    let stats = pool_stats(&pools, "p").unwrap();
    let tool = Pid::from_raw(stats.pid.cast_signed()).unwrap();
    kill_process(tool, Signal::STOP).unwrap();
    for _ in 0..2 {
        share.signal(Signal::TERM);
        // Otherwise the kernel delivers one.
        thread::sleep(Duration::from_millis(50));
    }
    kill_process(tool, Signal::CONT).unwrap();
    share.succeeds();
    assert!(!Path::new(&pool_path(&pools, "p")).exists());
}

#[test]
fn a_program_starts_it_once_and_it_ends_without_a_consumer() {
    let pools = prepared();
    let mut first = share(&pools, "test", &["--idle", "2"]);
    let receiver = receiver(&pools);
    assert!(receiver.next().is_some());
    let second = ["share", "test", "--pool", "p", "--idle", "2"];
    let output = xmem(&pools, &second).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let log = Path::new(&pool_path(&pools, "p")).with_extension("log");
    let text = fs::read_to_string(&log).unwrap();
    assert_contains(&text, "test: sharing it in the pool p");
    drop(receiver);
    first.succeeds();
    assert!(!log.exists());
    // A source that fails is not started again, and both say why.
    let wrong = ["share", "a ! b", "--pool", "p", "--idle", "2"];
    fails(&pools, &wrong, "p.log)");
    let text = fs::read_to_string(&log).unwrap();
    assert_contains(&text, "no element \"a\"");
}

/// The device is no camera, because the test only checks when it is opened.
#[test]
fn a_camera_that_is_unplugged_is_waited_for() {
    let pools = prepared();
    let link = pools.file("by-id");
    let plug = || std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    plug();
    let share = share(&pools, link.to_str().unwrap(), &[]);
    let count = |text: &str| share.log().matches(text).count();
    until("a restart", || count("starting it again in 1s") == 1);
    fs::remove_file(&link).unwrap();
    until("a pause", || count("waiting for the device") == 1);
    plug();
    until("another start", || {
        count("starting it again") + count("waiting") > 2
    });
    // The link, not its target.
    let name = format!("xmem: {}: ", link.display());
    assert!(share.log().lines().all(|line| line.starts_with(&name)));
    ends_by(share, Signal::INT);
}

#[test]
fn a_source_without_frames_is_started_again() {
    let pools = prepared();
    let share = share(
        &pools,
        "videotestsrc is-live=true ! valve drop=true",
        &["--timeout", "0.1"],
    );
    until("a restart", || {
        share.log().contains("starting it again in 2s")
    });
    ends_by(share, Signal::INT);
}

#[test]
fn warnings_are_printed() {
    let pools = prepared();
    let share = share(&pools, "xmemsrc pool=absent ! identity", &[]);
    until("a warning", || {
        share.log().contains("Waiting for a producer of pool")
    });
    ends_by(share, Signal::INT);
}

#[test]
fn a_source_that_waits_for_consumers_is_not_started_again() {
    let pools = prepared();
    let share = share(
        &pools,
        "test",
        &[
            "--set",
            "delivery=lossless",
            "--set",
            "wait-for-connection=true",
            "--timeout",
            "3",
        ],
    );
    let stats = || pool_stats(&pools, "p");
    until("the pool", || stats().is_some());
    // Longer than the timeout.
    let stays = |begin: u64| {
        until("an old pool", || {
            stats().is_some_and(|it| it.up_ns > begin + 6_000_000_000)
        });
    };
    stays(0);
    let mut consumer = xmem_core::Consumer::builder(pool_path(&pools, "p"))
        .connect()
        .unwrap();
    until("a producer that waits", || {
        stats().is_some_and(|it| it.consumers.iter().any(|it| it.waited_for_ns > 0))
    });
    stays(stats().unwrap().up_ns);
    assert!(!share.log().contains("again"), "{}", share.log());
    assert!(consumer.receive(None).is_ok());
    ends_by(share, Signal::INT);
}

#[test]
fn a_loop_without_frames_has_pauses() {
    let pools = prepared();
    let share = share(&pools, "videotestsrc num-buffers=0 ! identity", &["--loop"]);
    until("a pause", || {
        let log = share.log();
        log.contains("at its end before a frame was seen; starting it again in 2s")
    });
    ends_by(share, Signal::INT);
}

#[test]
fn a_source_on_demand_is_open_while_there_are_consumers() {
    let pools = prepared();
    // Longer than the test: the source is closed between two runs of a film.
    let film = film(&pools, 4000);
    let share = share(&pools, &film, &["--on-demand", "--loop"]);
    let has_film = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        files
            .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
            .any(|file| file == Path::new(&film))
    };
    let producer = || pool_stats(&pools, "p").map(|stats| stats.pid);
    let is_open = || producer().is_some_and(has_film);
    until("the pool", || producer().is_some());
    assert!(!is_open() && !has_film(share.pid()));
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let receiver = receiver(&pools);
        assert!(receiver.next().is_some());
        until("an open film", is_open);
        let with_film = producer();
        drop(receiver);
        // The pool was created again.
        until("a closed film", || {
            let now = producer();
            now.is_some() && now != with_film && !is_open()
        });
        rounds.push(with_film);
    }
    assert_ne!(rounds[0], rounds[1]);
    // A command that needs the caps is also a consumer.
    let picture = pools.file("a.png").to_str().unwrap().to_owned();
    let output = xmem(&pools, &["snapshot", "p", &picture, "--timeout", "60"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    until("an open film", is_open);
    let log = share.log();
    assert_contains(&log, "closed until a consumer comes");
    ends_by(share, Signal::TERM);
    assert!(!Path::new(&pool_path(&pools, "p")).exists());
}

#[test]
fn a_short_film_on_demand_is_closed_between_two_rounds() {
    let pools = prepared();
    let share = share(&pools, &film(&pools, 40), &["--on-demand", "--loop"]);
    let closed = || {
        let log = share.log();
        log.matches("closed until a consumer comes").count()
    };
    until("the pool", || pool_stats(&pools, "p").is_some());
    assert!(receiver(&pools).next().is_some());
    until("a closed film", || closed() == 2);

    // The process without a source is also restarted.
    until("the pool", || pool_stats(&pools, "p").is_some());
    let waiting = pool_stats(&pools, "p").unwrap().pid.cast_signed();
    kill_process(Pid::from_raw(waiting).unwrap(), Signal::KILL).unwrap();
    until("a line about its end", || {
        share.log().contains("SIGKILL); starting it again in 1s")
    });
    assert!(receiver(&pools).next().is_some());
    ends_by(share, Signal::TERM);
}
