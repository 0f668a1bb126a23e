// SPDX-License-Identifier: MPL-2.0

//! Publishes a moving picture in a pool, 30 times a second, until it is ended.
//!
//! ```text
//! cargo run --example xmem-producer -- cam0
//! ```

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use xmem_core::{AcquireError, FrameLayout, FrameMeta, Producer, VideoLayout, monotonic_ns};

const FORMAT: &str = "GRAY8";
const WIDTH: usize = 640;
const HEIGHT: usize = 480;
const FRAME_TIME: Duration = Duration::from_nanos(1_000_000_000 / 30);

fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    let pool = pool.ok_or("usage: xmem-producer POOL")?;
    let producer = Producer::builder(&pool).build()?;

    // Consumers need this before they can read the first frame.
    let caps = format!("video/x-raw,format={FORMAT},width={WIDTH},height={HEIGHT},framerate=30/1");
    producer.set_caps(&caps)?;
    println!("publishing at {}", producer.socket_path().display());

    let layout = VideoLayout::new(FORMAT, WIDTH as u32, HEIGHT as u32)?;
    let size = layout.size()?;
    let start = Instant::now();
    for number in 0.. {
        let due = FRAME_TIME * number;
        thread::sleep(due.saturating_sub(start.elapsed()));
        // The time when the picture was taken. A slot may be larger than requested.
        let taken = monotonic_ns();
        match producer.acquire(size) {
            Ok(mut lease) => {
                draw(lease.as_mut_slice(), number as usize);
                lease.publish(describe(layout, size, due, taken))?;
            }
            // Consumers hold all slots. A live producer continues with its next frame.
            Err(AcquireError::Exhausted { .. }) => producer.note_dropped(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A bright bar that moves to the right.
fn draw(pixels: &mut [u8], number: usize) {
    let bar = number * 4 % WIDTH;
    for row in pixels.chunks_exact_mut(WIDTH) {
        row.fill(32);
        row[bar..WIDTH.min(bar + 40)].fill(224);
    }
}

fn describe(layout: VideoLayout, size: usize, pts: Duration, taken: i64) -> FrameMeta {
    let layout = FrameLayout {
        content_type: "image/raw".into(),
        producer: "xmem-producer".into(),
        video: Some(layout),
        ..FrameLayout::default()
    };
    FrameMeta::with_layout(size, layout)
        // On the clock that all processes share. xmemsrc converts it to the time of the buffer.
        .timestamp(taken)
        .pts(pts.as_nanos() as u64)
        .duration(FRAME_TIME.as_nanos() as u64)
}
