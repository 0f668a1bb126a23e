// SPDX-License-Identifier: MPL-2.0

//! A host that is far away: what one side sends arrives at the other one later.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use xmem_core::{Producer, Sticky};

use crate::support::*;

/// Of each direction.
const DELAY: Duration = Duration::from_millis(40);

/// Forwards connections to this address. Returns the address to connect to.
fn route(there: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for here in listener.incoming() {
            let (here, there) = (here.unwrap(), TcpStream::connect(&there).unwrap());
            for stream in [&here, &there] {
                stream.set_nodelay(true).unwrap();
            }
            let again = (there.try_clone().unwrap(), here.try_clone().unwrap());
            forward(here, there);
            forward(again.0, again.1);
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let (sender, receiver) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut bytes = [0; 65536];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            let _ = sender.send((Instant::now() + DELAY, bytes[..len].to_vec()));
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// How many frames a distant host received and missed of 200 small ones with these caps, 50 a second.
fn carried(caps: &str) -> (u64, u64) {
    let hosts = Hosts::new();
    let producer = Producer::builder(hosts.pool("a", "cam0")).history(250);
    let producer = producer.build().unwrap();
    let mut sticky = Sticky::default();
    sticky.set("caps", caps);
    producer.set_sticky(&sticky).unwrap();
    let _export = hosts.export(&["cam0"]);
    let source = format!("cam0@{}", route(hosts.address()));
    let import = hosts.bridge("b", &["import", &source, "--trusted-network"]);
    import.prints("imports");
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    publish(&producer, 0, 4000);
    assert_eq!(number(&consumer.receive(Some(HANG)).unwrap()), 0);
    for frame in 1..=200 {
        thread::sleep(Duration::from_millis(20));
        assert!(publish(&producer, frame, 4000));
    }
    eventually("the last frame", || {
        let frame = consumer.receive(Some(HANG)).unwrap();
        frame.meta().event || number(&frame) == 200
    });
    import.figures()
}

#[test]
fn all_sound_arrives_from_afar() {
    let caps = "audio/x-raw, format=(string)S16LE, rate=(int)48000, channels=(int)1";
    assert_eq!(carried(caps), (201, 0));
}

/// In the time of a round trip there are four frames.
#[test]
fn most_pictures_arrive_from_afar() {
    let (received, missed) = carried("video/x-raw, format=(string)GRAY8");
    assert!(received + missed == 201 && missed < 100, "{missed}");
}
