// SPDX-License-Identifier: MPL-2.0

//! Puts a moving picture into a pool, 30 times a second, until it is ended.
//!
//! ```text
//! cargo run --example xmem-producer -- cam0
//! ```

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use xmem_core::{AcquireError, FrameMeta, Producer, Sticky, VideoLayout};

const WIDTH: usize = 640;
const HEIGHT: usize = 480;
const FRAME_TIME: Duration = Duration::from_nanos(1_000_000_000 / 30);

fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    let pool = pool.ok_or("usage: xmem-producer POOL")?;
    let producer = Producer::builder(&pool).build()?;

    // What consumers have to know before they can read the first frame.
    let mut sticky = Sticky::new();
    sticky.set(
        "caps",
        format!("video/x-raw,format=GRAY8,width={WIDTH},height={HEIGHT},framerate=30/1"),
    );
    producer.set_sticky(&sticky)?;
    println!("publishing at {}", producer.socket_path().display());

    let start = Instant::now();
    for number in 0.. {
        let due = FRAME_TIME * number;
        thread::sleep(due.saturating_sub(start.elapsed()));
        match producer.acquire(WIDTH * HEIGHT) {
            Ok(mut lease) => {
                draw(&mut lease.as_mut_slice()[..WIDTH * HEIGHT], number as usize);
                lease.publish(describe(due))?;
            }
            // Consumers hold all there is. A live producer goes on with its next frame.
            Err(AcquireError::Exhausted { .. }) => producer.note_dropped(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A bright bar that wanders to the right.
fn draw(pixels: &mut [u8], number: usize) {
    let bar = number * 4 % WIDTH;
    for row in pixels.chunks_exact_mut(WIDTH) {
        row.fill(32);
        row[bar..WIDTH.min(bar + 40)].fill(224);
    }
}

fn describe(pts: Duration) -> FrameMeta {
    FrameMeta {
        content_type: "image/raw".into(),
        producer: "xmem-producer".into(),
        pts: Some(pts.as_nanos() as u64),
        duration: Some(FRAME_TIME.as_nanos() as u64),
        video: Some(VideoLayout {
            format: "GRAY8".into(),
            width: WIDTH as u32,
            height: HEIGHT as u32,
            n_planes: 1,
            offsets: [0; 4],
            strides: [WIDTH as i32, 0, 0, 0],
        }),
        ..FrameMeta::new(WIDTH * HEIGHT)
    }
}
