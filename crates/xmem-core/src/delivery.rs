// SPDX-License-Identifier: MPL-2.0

//! The behaviour when a consumer is slower than the producer.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The behaviour when a consumer is slower than the producer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// The producer continues. The newest frames are kept, and a slow consumer misses others.
    #[default]
    Live,
    /// The producer waits until every connected consumer took each frame, or is gone.
    ///
    /// Publishing itself never waits. Before each frame call [`wait_for_room`], which waits while a consumer is some
    /// frames behind, then [`acquire_wait`], which waits while no slot is free ([`acquire`] returns an error then), then
    /// publish. At the end call [`set_eos`], then [`drain`], which waits until all is taken; frames that are left when
    /// the producer is dropped are lost. A consumer that must not miss a frame has to be connected before the first one:
    /// [`wait_for_consumers`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = dir.path().join("p.sock");
    /// # let pool = pool.to_str().unwrap().to_owned();
    /// use xmem_core::{Consumer, Delivery, FrameMeta, Producer, Wait};
    ///
    /// let producer = Producer::builder(&pool).delivery(Delivery::Lossless).build()?;
    /// let reader = std::thread::spawn(move || {
    ///     let mut consumer = Consumer::builder(&pool).connect().unwrap();
    ///     std::iter::from_fn(|| consumer.receive(None).ok()).count() // until ReceiveError::Eos
    /// });
    /// producer.wait_for_consumers(1, Wait::FOREVER)?;
    /// for number in 0..100u8 {
    ///     producer.wait_for_room(Wait::FOREVER)?;
    ///     let mut slot = producer.acquire_wait(1, Wait::FOREVER)?;
    ///     slot.as_mut_slice()[0] = number;
    ///     slot.publish(FrameMeta::new(1))?;
    /// }
    /// producer.set_eos(true);
    /// producer.drain(Wait::FOREVER)?;
    /// assert_eq!(reader.join().unwrap(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`wait_for_room`]: crate::Producer::wait_for_room
    /// [`acquire`]: crate::Producer::acquire
    /// [`acquire_wait`]: crate::Producer::acquire_wait
    /// [`set_eos`]: crate::Producer::set_eos
    /// [`drain`]: crate::Producer::drain
    /// [`wait_for_consumers`]: crate::Producer::wait_for_consumers
    Lossless,
}

impl Delivery {
    /// From the constant in control memory.
    pub(crate) fn of(lossless: bool) -> Self {
        if lossless { Self::Lossless } else { Self::Live }
    }
}

/// `live` or `lossless`.
impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Live => "live",
            Self::Lossless => "lossless",
        })
    }
}
