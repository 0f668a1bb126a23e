// SPDX-License-Identifier: MPL-2.0

//! `xmem serve`, as a browser uses it.

mod support;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use gst::prelude::*;
use rustix::process::Signal;
use serde_json::Value;
use support::{process::*, *};
use xmem_core::{BudgetLimit, Consumer, Delivery, Producer};

/// The command and its address.
struct Site {
    address: String,
    _process: Launch,
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Site {
    fn new(pools: &Pools) -> Self {
        let mut serve = xmem(pools, &["serve", "--listen", "127.0.0.1:0"]);
        let launch = Launch::start(pools, "serve", &mut serve);
        until("an address", || launch.log().ends_with("/\n"));
        let log = launch.log();
        let address = log.trim().strip_prefix("xmem: pools at http://").unwrap();
        Self {
            address: address.strip_suffix('/').unwrap().to_owned(),
            _process: launch,
        }
    }

    fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        let body = answer.split_off(end + 4);
        let head = String::from_utf8(answer).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let has_length = head.contains("Content-Length:");
        assert_eq!(has_length, status != 204, "{head}");
        let length = format!("Content-Length: {}\r\n", body.len());
        let is_whole = status == 204 || request.starts_with("HEAD") || head.contains(&length);
        assert!(is_whole, "{head}");
        Answer { status, head, body }
    }

    fn get(&self, path: &str) -> Answer {
        let host = &self.address;
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }

    fn pool(&self, name: &str) -> Option<Value> {
        let answer = self.get("/pools.json");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let pools: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
        pools.into_iter().find(|pool| pool["name"] == name)
    }

    /// The next picture of a pool, and its number.
    fn picture(&self, name: &str, after: &str) -> (Vec<u8>, String) {
        let mut found = None;
        until("a picture", || {
            let answer = self.get(&format!("/picture/{name}?after={after}"));
            if answer.status == 204 {
                return false;
            }
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(answer.head.contains("Content-Type: image/jpeg\r\n"));
            let number = answer
                .head
                .lines()
                .find_map(|it| it.strip_prefix("Picture: "));
            found = Some((answer.body, number.unwrap().to_owned()));
            true
        });
        found.unwrap()
    }

    #[track_caller]
    fn has_no_picture(&self, name: &str, part: &str) {
        until("the reason", || {
            let answer = self.get(&format!("/picture/{name}"));
            answer.status == 503 && answer.text().contains(part)
        });
        let reason = self.pool(name).unwrap()["no_picture"].to_string();
        assert_contains(&reason, part);
    }
}

fn producer(pools: &Pools, name: &str, pipeline: &str) -> Launch {
    let pipeline = format!("{pipeline} ! xmemsink pool={name}");
    let launch = Launch::new(pools, name, &pipeline);
    until("frames", || {
        pool_stats(pools, name).is_some_and(|stats| stats.published > 0)
    });
    launch
}

/// A pipeline with frames of 64x48 in one colour.
fn plain(colour: &str) -> String {
    format!(
        "videotestsrc is-live=true pattern=solid-color foreground-color={colour} \
         ! video/x-raw,format=NV12,width=64,height=48,framerate=30/1"
    )
}

/// The pixels of an encoded picture, without padding.
fn pixels(pools: &Pools, picture: &[u8]) -> Vec<[u8; 4]> {
    let (file, raw) = (pools.file("picture"), pools.file("picture.raw"));
    fs::write(&file, picture).unwrap();
    pools.run(&format!(
        "filesrc location={} ! decodebin ! videoconvert ! video/x-raw,format=RGBA ! filesink location={}",
        file.display(),
        raw.display()
    ));
    let bytes = fs::read(raw).unwrap();
    bytes
        .chunks_exact(4)
        .map(|it| it.try_into().unwrap())
        .collect()
}

fn is_blue([red, green, blue, _]: &[u8; 4]) -> bool {
    *red < 40 && *green < 40 && *blue > 215
}

fn is_red([red, green, blue, _]: &[u8; 4]) -> bool {
    *red > 215 && *green < 40 && *blue < 40
}

#[test]
fn pictures_are_made_while_they_are_asked_for() {
    let pools = prepared();
    let _blue = producer(&pools, "a%20b", &plain("0xff0000ff"));
    let _red = producer(&pools, "red", &plain("0xffff0000"));
    let site = Site::new(&pools);
    let viewers = || {
        let consumers = site.pool("a%20b").unwrap()["consumers"].clone();
        consumers.as_array().unwrap().len()
    };
    let pool = site.pool("a%20b").unwrap();
    assert_eq!(pool["format"], "NV12 64x48 30/1");
    assert_eq!(
        (&pool["state"], &pool["no_picture"]),
        (&"live".into(), &Value::Null)
    );
    assert!(pool["published"].as_u64().unwrap() > 0);
    // The figures alone need no consumer.
    assert_eq!(viewers(), 0);

    let (blue, number) = site.picture("a%2520b", "");
    let blue = pixels(&pools, &blue);
    assert_eq!(blue.len(), 64 * 48);
    assert!(blue.iter().all(is_blue), "{:?}", blue[0]);
    let (_, next) = site.picture("a%2520b", &number);
    assert_ne!(next, number);
    let (red, _) = site.picture("red", "");
    assert!(pixels(&pools, &red).iter().all(is_red));
    until("one viewer", || viewers() == 1);
    let viewer = &site.pool("a%20b").unwrap()["consumers"][0];
    assert_eq!(
        (&viewer["name"], &viewer["copied"]),
        (&"xmem serve".into(), &0.into())
    );
    until("no viewer", || viewers() == 0);
}

#[test]
fn a_large_or_encoded_picture_becomes_small() {
    let pools = prepared();
    let source = "videotestsrc is-live=true pattern=blue ! video/x-raw,format=I420,width=1920,height=1080,framerate=30/1";
    let _producer = producer(
        &pools,
        "p",
        &format!(
            "{source} ! x264enc key-int-max=5 tune=zerolatency speed-preset=ultrafast ! h264parse"
        ),
    );
    let site = Site::new(&pools);
    let (picture, _) = site.picture("p", "");
    let pixels = pixels(&pools, &picture);
    assert_eq!(pixels.len(), 960 * 540);
    assert!(pixels.iter().all(is_blue), "{:?}", pixels[0]);
}

#[test]
fn a_name_is_no_text_of_a_pipeline() {
    init();
    let pools = prepared();
    let site = Site::new(&pools);
    let name = r#"a'\%" ! filesink location=made xmemsrc pool=b"#;
    let sink = gst::ElementFactory::make("xmemsink")
        .property("pool", pool_path(&pools, name))
        .build()
        .unwrap();
    let pipeline = gst::Pipeline::new();
    let source =
        gst::parse::bin_from_description(&(plain("0xff0000ff") + " ! identity"), true).unwrap();
    pipeline.add_many([source.upcast_ref(), &sink]).unwrap();
    source.link(&sink).unwrap();
    pipeline.set_state(gst::State::Playing).unwrap();
    let encoded: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let (picture, _) = site.picture(&encoded, "");
    assert!(pixels(&pools, &picture).iter().all(is_blue));
    pipeline.set_state(gst::State::Null).unwrap();
}

#[test]
fn a_pool_without_a_picture_has_a_reason() {
    let pools = prepared();
    let site = Site::new(&pools);
    let answer = site.get("/picture/none");
    assert_eq!(answer.status, 404);
    assert_contains(&answer.text(), "no pool none: no pools in ");

    let _sound = producer(
        &pools,
        "sound",
        "audiotestsrc is-live=true ! audio/x-raw,format=S16LE,channels=2,rate=48000",
    );
    site.has_no_picture("sound", "has no video, but S16LE 48000 Hz 2 channels");
    let answer = site.get("/picture/none");
    assert_contains(&answer.text(), "no pool none: there are sound");

    let lossless = Producer::builder(pool_path(&pools, "film")).delivery(Delivery::Lossless);
    let _lossless = lossless.build().unwrap();
    site.has_no_picture("film", "lossless");

    // The consumers' budgets are smaller than requested.
    let small = Producer::builder(pool_path(&pools, "small")).max_slots(12);
    let _small = small.build().unwrap();
    let join = |_| {
        Consumer::builder(pool_path(&pools, "small"))
            .connect()
            .unwrap()
    };
    let _consumers: Vec<_> = (0..3).map(join).collect();
    site.has_no_picture("small", "raise its max-slots");
}

#[test]
fn a_viewer_that_costs_consumers_slots_leaves() {
    let pools = prepared();
    let path = pool_path(&pools, "p");
    let _producer = Producer::builder(&path).max_slots(12).build().unwrap();
    let consumer = Consumer::builder(&path).max_held(4).connect().unwrap();
    let limit = || pool_stats(&pools, "p").unwrap().budget_limit;
    // With one more consumer the budget would be smaller.
    assert_eq!((consumer.budget(), limit()), (4, BudgetLimit::Asked));
    let site = Site::new(&pools);
    site.has_no_picture("p", "raise its max-slots");
    until("its former budget", || consumer.budget() == 4);
    let answer = site.get("/picture/p");
    assert_contains(&answer.text(), "raise its max-slots");
    assert_eq!(limit(), BudgetLimit::Asked);
}

#[test]
fn a_producer_that_is_stopped_killed_or_gone_is_shown() {
    let pools = prepared();
    let producer_of = |colour| producer(&pools, "p", &plain(colour));
    let first = producer_of("0xff0000ff");
    let site = Site::new(&pools);
    site.picture("p", "");
    first.signal(Signal::STOP);
    until("silence", || site.pool("p").unwrap()["state"] == "silent");
    site.has_no_picture("p", "it is stopped or hangs");
    first.signal(Signal::CONT);
    until("life", || site.pool("p").unwrap()["state"] == "live");
    site.picture("p", "");

    // The same viewer or a new one shows the next producer.
    first.signal(Signal::KILL);
    until("its end", || site.pool("p").unwrap()["state"] == "stale");
    site.has_no_picture("p", "its producer was killed");
    let second = producer_of("0xffff0000");
    until("a picture of the next producer", || {
        let answer = site.get("/picture/p");
        answer.status == 200 && pixels(&pools, &answer.body).iter().all(is_red)
    });
    second.signal(Signal::INT);
    until("no pool", || {
        site.pool("p").is_none() && site.get("/picture/p").status == 404
    });
}

#[test]
fn other_requests_are_refused() {
    let pools = prepared();
    let site = Site::new(&pools);
    let page = site.get("/");
    assert_eq!(page.status, 200);
    assert_contains(&page.head, "Content-Security-Policy: default-src 'none';");
    // The page loads nothing from other hosts.
    assert!(!page.text().contains("http://") && !page.text().contains("https://"));
    assert_eq!(site.get("/none").status, 404);
    // A foreign host name that resolves to this host, and a request without a name.
    assert_eq!(
        site.send("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
            .status,
        403
    );
    assert_eq!(site.send("GET / HTTP/1.1\r\n\r\n").status, 403);
    assert_eq!(
        site.send("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .status,
        405
    );
    // A page of another site cannot open a camera, and a link to the page works.
    let from_another = |path: &str| {
        let fetch = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n";
        site.send(&format!("GET {path} HTTP/1.1\r\n{fetch}")).status
    };
    assert_eq!(from_another("/picture/p"), 403);
    assert_eq!(from_another("/"), 200);
    let head = site.send("HEAD /none HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!((head.status, head.body.len()), (404, 0));
    assert_eq!(site.send("nonsense\r\n\r\n").status, 400);
    let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(20 << 10));
    assert_eq!(site.send(&long).status, 431);

    let mut second = xmem(&pools, &["serve", "--listen", &site.address]);
    let output = second.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert_contains(&text, "Address already in use");
    assert_contains(&text, "Choose another port");
}

#[test]
fn too_many_connections_are_closed() {
    let pools = prepared();
    let site = Site::new(&pools);
    let open = || TcpStream::connect(&site.address).unwrap();
    // These connections send nothing.
    let mut idle: Vec<_> = (0..80).map(|_| open()).collect();
    until("a closed connection", || {
        idle.iter_mut().any(|stream| {
            stream
                .set_read_timeout(Some(Duration::from_millis(1)))
                .unwrap();
            stream.read(&mut [0]).is_ok_and(|len| len == 0)
        })
    });
    drop(idle);
    until("an answer", || {
        let mut stream = open();
        let mut answer = String::new();
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let done = stream
            .write_all(request)
            .and_then(|()| stream.read_to_string(&mut answer));
        done.is_ok() && answer.starts_with("HTTP/1.1 200 ")
    });
}

#[test]
fn a_browser_shows_the_picture_on_screens_of_all_sizes() {
    let pools = prepared();
    let Ok(_) = Command::new("chromium").arg("--version").output() else {
        return not_run("there is no chromium: apt-get install chromium");
    };
    let _producer = producer(&pools, "cam0", &plain("0xff0000ff"));
    let site = Site::new(&pools);
    for (width, height) in [(400, 900), (1600, 900)] {
        let file = pools.file("page.png");
        until("the picture on the page", || {
            let status = command(&pools, "chromium")
                .args([
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--hide-scrollbars",
                ])
                .arg(format!(
                    "--user-data-dir={}",
                    pools.file("chromium").display()
                ))
                .arg(format!("--window-size={width},{height}"))
                // The browser's time runs as fast as the page allows. Each of the page's requests holds it up.
                .arg("--virtual-time-budget=2000")
                .arg(format!("--screenshot={}", file.display()))
                .arg(format!("http://{}/", site.address))
                .output()
                .unwrap()
                .status;
            assert!(status.success());
            let pixels = pixels(&pools, &fs::read(&file).unwrap());
            assert_eq!(pixels.len(), width * height);
            pixels.iter().filter(|it| is_blue(it)).count() > 40_000
        });
    }
}
