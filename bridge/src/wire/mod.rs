// SPDX-License-Identifier: MPL-2.0

//! The messages between two bridges. They are bytes, whatever carries them.
//!
//! The exporter sends *items*: frames, events and sticky states, one after another. An item is a [`Begin`] with its
//! description, then [`Chunk`]s with its bytes: the payload, then the attachments. All of this, and the [`Probe`]s between, has
//! one order, and a *position* ([`span`](crate::window::span)). The importer answers with [`Credit`]s.
//!
//! A message of another host may have any content. Decoding it is an error or a value within the limits below, and
//! allocates no more than the message's own length.

mod bytes;
mod meta;

use thiserror::Error;
use xmem_core::{FrameMeta, MAX_NAMED_SIZE, MAX_REQUEST};

use bytes::{Reader, put_sized, put_text};

/// The version of this format. Each message begins with it.
pub const VERSION: u8 = 1;
/// The most bytes of an item in one chunk. With its head it fits into one batch of Zenoh's, so Zenoh never splits it.
pub const MAX_CHUNK: usize = 48_000;
/// The most bytes of a frame's payload: an 8K frame of 16-bit RGBA.
pub const MAX_FRAME: u64 = 256 << 20;
/// The most bytes of a name.
pub const MAX_NAME: usize = 64;
/// The most bytes of a refusal's reason.
pub const MAX_REASON: usize = 512;

/// A message that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a message of the other host is invalid: {0}")]
pub struct Malformed(pub &'static str);

/// The instances at the two ends of a stream. Both are random numbers, so that no message of an earlier stream counts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// The exporter's, for this importer.
    pub exporter: u64,
    /// The importer's.
    pub importer: u64,
}

/// From the importer to the exporter, without any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Up {
    /// It asks for a stream, until a pulse comes.
    Hello(Hello),
    /// See [`Credit`].
    Credit(Credit),
    /// A request of a consumer, for the program that feeds the pool.
    Request(Request),
}

/// An importer asks for a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its instance.
    pub importer: u64,
    /// Its name, for the exporter's figures.
    pub name: String,
    /// Its clock.
    pub sent: i64,
}

/// What the importer has, cumulative, and repeated several times a second: a lost or doubled one does no harm.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// The stream.
    pub ids: Ids,
    /// All items up to this one arrived or are lost.
    pub items: u64,
    /// All messages before this position arrived or are lost.
    pub position: u64,
    /// How often something was lost.
    pub lost: u64,
    /// The sticky state that it has, 0 for none.
    pub sticky: u64,
    /// Its pool has consumers.
    pub wants: bool,
    /// Its clock.
    pub sent: i64,
}

/// A request of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The stream.
    pub ids: Ids,
    /// The request's name.
    pub name: String,
    /// The request's data.
    pub data: Vec<u8>,
}

/// From the exporter to the importer, besides the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Down {
    /// The answer to a hello, and to credits. Its three times and that of its arrival give the offset of both clocks.
    Pulse {
        /// The stream.
        ids: Ids,
        /// The time in the hello or the credit.
        echo: i64,
        /// The exporter's clock when that arrived.
        received: i64,
        /// The exporter's clock when this was sent.
        sent: i64,
    },
    /// There is no stream.
    Refusal {
        /// Whose.
        importer: u64,
        /// Why, in words.
        reason: String,
    },
}

/// A message of the stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Data<'a> {
    /// An item begins.
    Begin(Box<Begin>),
    /// Bytes of it.
    Chunk(Chunk<'a>),
    /// Asks for a credit, and reports the state of the pool.
    Probe(Probe),
}

/// Where a message belongs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The stream.
    pub ids: Ids,
    /// Its position in the stream.
    pub position: u64,
    /// The item, counted from 1.
    pub item: u64,
}

/// The kinds of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A frame.
    Frame,
    /// An event.
    Event,
    /// A sticky state.
    Sticky,
}

/// The beginning of an item, and its description.
#[derive(Debug, Clone, PartialEq)]
pub struct Begin {
    /// Where it belongs.
    pub place: Place,
    /// What it is.
    pub kind: Kind,
    /// The sticky state that it belongs to, or that it is.
    pub sticky: u64,
    /// The random number of the producer's pool, the same over all exporters of it. Frame numbers of different streams cannot be
    /// compared.
    pub stream: u64,
    /// The frame's number in that stream. Numbers between two frames are frames that were missed.
    pub number: u64,
    /// Bytes of the attachments, behind the payload; or of the sticky state.
    pub attached: u64,
    /// The description, without the attachments. Its size is that of the payload.
    pub meta: FrameMeta,
}

impl Begin {
    /// Bytes of the item.
    pub fn total(&self) -> u64 {
        self.meta.size.saturating_add(self.attached)
    }
}

/// Bytes of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Where it belongs.
    pub place: Place,
    /// Bytes of the item before it.
    pub offset: u64,
    /// The item ends with it.
    pub last: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Behind all that was sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Where it belongs; the item is the last one that was sent to its end.
    pub place: Place,
    /// The pool's stream is over.
    pub ended: bool,
    /// The pool has a producer.
    pub live: bool,
}

fn start(kind: u8) -> Vec<u8> {
    vec![VERSION, kind]
}

fn open(bytes: &[u8]) -> Result<(u8, Reader<'_>), Malformed> {
    let mut from = Reader::new(bytes);
    if from.u8()? != VERSION {
        return Err(Malformed("it has another version"));
    }
    Ok((from.u8()?, from))
}

impl Ids {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.exporter.to_le_bytes());
        out.extend(self.importer.to_le_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            exporter: from.u64()?,
            importer: from.u64()?,
        })
    }
}

impl Place {
    fn encode(self, out: &mut Vec<u8>) {
        self.ids.encode(out);
        out.extend(self.position.to_le_bytes());
        out.extend(self.item.to_le_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            ids: Ids::decode(from)?,
            position: from.u64()?,
            item: from.u64()?,
        })
    }
}

impl Up {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => {
                let mut out = start(1);
                out.extend(hello.importer.to_le_bytes());
                out.extend(hello.sent.to_le_bytes());
                put_text(&mut out, &hello.name, MAX_NAME);
                out
            }
            Self::Credit(credit) => {
                let mut out = start(2);
                credit.ids.encode(&mut out);
                for number in [credit.items, credit.position, credit.lost, credit.sticky] {
                    out.extend(number.to_le_bytes());
                }
                out.push(credit.wants.into());
                out.extend(credit.sent.to_le_bytes());
                out
            }
            Self::Request(request) => {
                let mut out = start(3);
                request.ids.encode(&mut out);
                put_text(&mut out, &request.name, MAX_NAME);
                put_sized(&mut out, &request.data, MAX_REQUEST);
                out
            }
        }
    }

    /// From the bytes of another host.
    ///
    /// # Errors
    ///
    /// If they are no such message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut from) = open(bytes)?;
        let up = match kind {
            1 => Self::Hello(Hello {
                importer: from.u64()?,
                sent: from.i64()?,
                name: from.text(MAX_NAME)?,
            }),
            2 => Self::Credit(Credit {
                ids: Ids::decode(&mut from)?,
                items: from.u64()?,
                position: from.u64()?,
                lost: from.u64()?,
                sticky: from.u64()?,
                wants: from.bool()?,
                sent: from.i64()?,
            }),
            3 => Self::Request(Request {
                ids: Ids::decode(&mut from)?,
                name: from.text(MAX_NAME)?,
                data: from.sized(MAX_REQUEST)?.to_vec(),
            }),
            _ => return Err(Malformed("its kind is unknown")),
        };
        from.end()?;
        Ok(up)
    }
}

impl Down {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Pulse {
                ids,
                echo,
                received,
                sent,
            } => {
                let mut out = start(1);
                ids.encode(&mut out);
                for time in [echo, received, sent] {
                    out.extend(time.to_le_bytes());
                }
                out
            }
            Self::Refusal { importer, reason } => {
                let mut out = start(2);
                out.extend(importer.to_le_bytes());
                put_text(&mut out, reason, MAX_REASON);
                out
            }
        }
    }

    /// From the bytes of another host.
    ///
    /// # Errors
    ///
    /// If they are no such message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut from) = open(bytes)?;
        let down = match kind {
            1 => Self::Pulse {
                ids: Ids::decode(&mut from)?,
                echo: from.i64()?,
                received: from.i64()?,
                sent: from.i64()?,
            },
            2 => Self::Refusal {
                importer: from.u64()?,
                reason: from.text(MAX_REASON)?,
            },
            _ => return Err(Malformed("its kind is unknown")),
        };
        from.end()?;
        Ok(down)
    }
}

impl Begin {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = start(1);
        self.place.encode(&mut out);
        out.push(match self.kind {
            Kind::Frame => 0,
            Kind::Event => 1,
            Kind::Sticky => 2,
        });
        for number in [self.sticky, self.stream, self.number, self.attached] {
            out.extend(number.to_le_bytes());
        }
        meta::encode(&mut out, &self.meta);
        out
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let place = Place::decode(from)?;
        let kind = match from.u8()? {
            0 => Kind::Frame,
            1 => Kind::Event,
            2 => Kind::Sticky,
            _ => return Err(Malformed("an item's kind is unknown")),
        };
        let begin = Self {
            place,
            kind,
            sticky: from.u64()?,
            stream: from.u64()?,
            number: from.u64()?,
            attached: from.u64()?,
            meta: FrameMeta {
                event: kind == Kind::Event,
                ..meta::decode(from)?
            },
        };
        let max = if kind == Kind::Frame { MAX_FRAME } else { 0 };
        if begin.meta.size > max {
            return Err(Malformed("an item is larger than it may be"));
        }
        if begin.attached > MAX_NAMED_SIZE as u64 {
            return Err(Malformed("attachments are larger than they may be"));
        }
        Ok(begin)
    }
}

impl Chunk<'_> {
    /// The bytes before those of the item.
    pub fn head(&self) -> Vec<u8> {
        let mut out = start(2);
        self.place.encode(&mut out);
        out.extend(self.offset.to_le_bytes());
        out.push(self.last.into());
        out
    }
}

/// Bytes of a chunk's head.
pub const CHUNK_HEAD: usize = 2 + 32 + 9;

impl Probe {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = start(3);
        self.place.encode(&mut out);
        out.extend([self.ended, self.live].map(u8::from));
        out
    }
}

impl<'a> Data<'a> {
    /// From the bytes of another host.
    ///
    /// # Errors
    ///
    /// If they are no such message.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (kind, mut from) = open(bytes)?;
        match kind {
            1 => {
                let begin = Begin::decode(&mut from)?;
                from.end()?;
                Ok(Self::Begin(Box::new(begin)))
            }
            2 => {
                let chunk = Chunk {
                    place: Place::decode(&mut from)?,
                    offset: from.u64()?,
                    last: from.bool()?,
                    bytes: from.rest(),
                };
                if chunk.bytes.len() > MAX_CHUNK {
                    return Err(Malformed("a chunk is larger than it may be"));
                }
                Ok(Self::Chunk(chunk))
            }
            3 => {
                let probe = Probe {
                    place: Place::decode(&mut from)?,
                    ended: from.bool()?,
                    live: from.bool()?,
                };
                from.end()?;
                Ok(Self::Probe(probe))
            }
            _ => Err(Malformed("its kind is unknown")),
        }
    }

    /// Where it belongs.
    pub fn place(&self) -> Place {
        match self {
            Self::Begin(begin) => begin.place,
            Self::Chunk(chunk) => chunk.place,
            Self::Probe(probe) => probe.place,
        }
    }
}

#[cfg(test)]
mod tests;
