// SPDX-License-Identifier: MPL-2.0

//! Segments in /dev/shm: their owners, and the removal of stale ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xmem_core::discovery::{remove_stale, remove_stale_segments};
use xmem_core::{Backing, Consumer, Producer};

use crate::support::child::Child;
use crate::support::*;

const ROLE: &str = "produce-posix-shm";

/// A producer in this directory whose pool is spelled like this.
#[track_caller]
fn start_in(dir: &Path, pool: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.current_dir(dir);
    Child::from(command, ROLE, pool).ready()
}

/// The segments of a killed producer whose pool is spelled like this. Tests that remove stale segments of all pools also remove
/// these.
#[track_caller]
fn left_by(place: &Place, pool: &str) -> Vec<PathBuf> {
    let mut child = start_in(place.path(), pool);
    receive(&mut Consumer::builder(place.pool()).connect().unwrap());
    child.stop();
    let left = place.segments();
    assert!(!left.is_empty(), "{pool}");
    child.kill();
    left
}

/// A live producer. Its files are removed when it has ended.
struct Producing<'a> {
    place: &'a Place,
    child: Child,
}

impl<'a> Producing<'a> {
    fn start(place: &'a Place, pool: &str) -> Self {
        let child = start_in(place.path(), pool);
        Self { place, child }
    }
}

impl Drop for Producing<'_> {
    fn drop(&mut self) {
        self.child.kill();
        let _ = remove_stale(self.place.pool());
    }
}

#[test]
fn pools_with_similar_paths_do_not_affect_each_other() {
    let places = [Place::new(), Place::new()];
    let _producers = places
        .each_ref()
        .map(|place| Producing::start(place, "./p.sock"));
    for place in &places {
        let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
        assert_whole(&receive(&mut consumer));
    }
}

#[test]
fn a_pool_is_the_same_by_any_spelling_of_its_path() {
    let place = Place::new();
    let dir = place.path().to_str().unwrap();
    for pool in [
        "./p.sock".to_owned(),
        format!("{dir}//p.sock"),
        format!("{dir}/./p.sock"),
    ] {
        let left = left_by(&place, &pool);
        let removed = remove_stale(place.pool()).unwrap();
        let mut segments = removed[2..].iter();
        assert!(segments.all(|path| left.contains(path)), "{pool}");
        place.assert_clean();
    }
}

#[test]
fn a_producer_of_another_backing_removes_stale_segments() {
    let place = Place::new();
    left_by(&place, &place.pool());
    let _producer = Producer::builder(place.pool()).build().unwrap();
    assert_eq!(place.segments(), Vec::<PathBuf>::new());
}

#[test]
fn segments_are_found_when_the_other_files_of_their_pool_are_gone() {
    let place = Place::new();
    let left = left_by(&place, &place.pool());
    for file in place.files() {
        fs::remove_file(file).unwrap();
    }
    let removed = remove_stale(place.pool()).unwrap();
    assert!(removed.iter().all(|path| left.contains(path)));
    place.assert_clean();
}

#[test]
fn segments_without_a_pool_are_removed_and_those_in_use_are_kept() {
    let (place, live) = (Place::new(), Place::new());
    let _producer = Producing::start(&live, &live.pool());
    let mut consumer = Consumer::builder(live.pool()).connect().unwrap();
    receive(&mut consumer);
    // This process also has segments.
    let own = Place::new();
    let producer = own.producer(|it| it.backing(Backing::PosixShm));
    publish(&producer, 1, 5000);
    let in_use = [live.segments(), own.segments()];
    let left = left_by(&place, &place.pool());
    drop(place);
    remove_stale_segments();
    // Another test may remove them at the same time.
    eventually("they are gone", || left.iter().all(|path| !path.exists()));
    assert_eq!([live.segments(), own.segments()], in_use);
    let mut consumer = Consumer::builder(live.pool()).connect().unwrap();
    assert_whole(&receive(&mut consumer));
}
