// SPDX-License-Identifier: MPL-2.0

//! The protocol spoken by hand, for peers that lie. Says again what `wire.rs` and `layout.rs` say, so that a change
//! there that other versions would trip over is noticed here.
#![allow(unsafe_code)] // mmap

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};

use super::HANG;

pub const VERSION: u32 = 1;

/// One end of a connection.
pub struct Raw(pub OwnedFd);

/// A message, and what came with it.
pub type Message = (Vec<u8>, Vec<OwnedFd>);

fn new_socket(kind: SocketType) -> OwnedFd {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

impl Raw {
    fn new(socket: OwnedFd) -> Self {
        set_socket_timeout(&socket, Timeout::Recv, Some(HANG)).unwrap();
        set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_millis(500))).unwrap();
        Self(socket)
    }

    /// Connects to a producer.
    pub fn connect(pool: &str) -> Self {
        Self::try_connect(pool).unwrap()
    }

    pub fn try_connect(pool: &str) -> Result<Self, Errno> {
        let socket = new_socket(SocketType::SEQPACKET);
        connect(&socket, &SocketAddrUnix::new(pool).unwrap())?;
        Ok(Self::new(socket))
    }

    /// Connects, joins, and takes the welcome.
    pub fn join(pool: &str, max_held: u32) -> (Self, Joined) {
        let raw = Self::connect(pool);
        raw.send(&join(VERSION, max_held), &[]).unwrap();
        let (bytes, fds) = raw.recv().expect("a welcome");
        assert_eq!(bytes[0], 1, "a welcome");
        let [control, page] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        let joined = Joined {
            max_slots: Memory::map(&control, false).words()[2].load(Ordering::Relaxed) as u32,
            control,
            page,
        };
        (raw, joined)
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(
            &self.0,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .map(drop)
    }

    /// The next message; `None`: the other side is gone.
    pub fn recv(&self) -> Option<Message> {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let len = match received {
            Ok(message) => message.bytes,
            Err(Errno::CONNRESET | Errno::PIPE) => 0,
            Err(error) => panic!("no message: {error}"),
        };
        let mut fds = Vec::new();
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
                fds.extend(rights);
            }
        }
        (len > 0).then(|| (buffer[..len].to_vec(), fds))
    }

    /// The next message of this kind.
    pub fn recv_kind(&self, kind: u8) -> Message {
        loop {
            let message = self.recv().expect("a message");
            if message.0[0] == kind {
                return message;
            }
        }
    }
}

/// What a welcome brought.
pub struct Joined {
    pub control: OwnedFd,
    pub page: OwnedFd,
    pub max_slots: u32,
}

/// A first message.
pub fn join(version: u32, max_held: u32) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(b"xmem-hi\0");
    bytes.extend(version.to_le_bytes());
    bytes.extend(max_held.to_le_bytes());
    bytes.push(0);
    bytes.extend([0; 64]);
    bytes
}

pub fn get_region(id: u32) -> Vec<u8> {
    [&[3][..], &id.to_le_bytes()].concat()
}

pub fn get_sticky(version: u64) -> Vec<u8> {
    [&[4][..], &version.to_le_bytes()].concat()
}

fn text(text: &str, len: usize) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(len, 0);
    bytes
}

pub fn welcome(version: u32) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(version.to_le_bytes());
    bytes.extend(7u64.to_le_bytes());
    bytes.extend(8u32.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.push(0);
    bytes.extend(text("fake", 128));
    bytes
}

pub fn refused(version: u32, reason: &str) -> Vec<u8> {
    [&[2][..], &version.to_le_bytes(), &text(reason, 256)].concat()
}

pub fn region(id: u32, len: u64, kind: u8, name: &str) -> Vec<u8> {
    let mut bytes = vec![3];
    bytes.extend(id.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.push(kind);
    bytes.extend(text(name, 128));
    bytes.extend(99u64.to_le_bytes());
    bytes
}

pub fn sticky(version: u64) -> Vec<u8> {
    [&[5][..], &version.to_le_bytes()].concat()
}

/// A producer made by hand: takes connections, and their first messages.
pub struct Fake(OwnedFd);

impl Fake {
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self::of_kind(path, SocketType::SEQPACKET)
    }

    pub fn of_kind(path: impl AsRef<Path>, kind: SocketType) -> Self {
        let socket = new_socket(kind);
        bind(&socket, &SocketAddrUnix::new(path.as_ref()).unwrap()).unwrap();
        if kind != SocketType::DGRAM {
            listen(&socket, 16).unwrap();
            set_socket_timeout(&socket, Timeout::Recv, Some(HANG)).unwrap();
        }
        Self(socket)
    }

    pub fn accept(&self) -> Raw {
        Raw::new(accept(&self.0).unwrap())
    }

    /// Takes a connection and answers its first message.
    pub fn answer(&self, bytes: &[u8], fds: &[&OwnedFd]) -> Raw {
        let raw = self.accept();
        raw.recv().expect("a first message");
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let _ = raw.send(bytes, &fds);
        raw
    }
}

/// Memory in a descriptor, sealed against resizing or not.
pub fn memory(len: u64, sealed: bool) -> OwnedFd {
    let fd = memfd_create("fake", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    if sealed {
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    }
    fd
}

/// A mapping of a whole descriptor.
pub struct Memory {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: plain memory, used through atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn map(fd: impl AsFd, writable: bool) -> Self {
        Self::try_map(fd, writable).unwrap()
    }

    pub fn try_map(fd: impl AsFd, writable: bool) -> Result<Self, Errno> {
        let len = rustix::fs::fstat(&fd)?.st_size as usize;
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing.
        let ptr = unsafe { mmap(null_mut(), len, prot, MapFlags::SHARED, fd, 0) }?;
        Ok(Self {
            ptr: ptr.cast(),
            len,
        })
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: page-aligned, in range, mapped while `self` is borrowed; read-only ones are only loaded from.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len / 8) }
    }

    pub fn halves(&self) -> &[AtomicU32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len / 4) }
    }

    pub fn set(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Release);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `try_map`; references into it borrow `self`.
        unsafe { munmap(self.ptr.cast(), self.len) }.unwrap();
    }
}

/// Words of control memory.
pub const HEAD: usize = 16;
/// Where the slot words of control memory begin.
pub const SLOTS: usize = 32;
pub const ENTRY_WORDS: usize = 64;
/// Words of a lease page.
pub const CURSOR: usize = 0;
pub const FLAGS: usize = 1;
/// Where the lease words begin, in halves of words.
pub const LEASES: usize = 32;

/// Where the ring begins, in words, and how long control memory is.
pub fn ring_at(max_slots: u64) -> usize {
    let slots = max_slots as usize;
    (SLOTS + slots + slots.div_ceil(2)).next_multiple_of(8) + slots * ENTRY_WORDS
}

/// Control memory that looks right: of a live pool of four slots, history 2, and nothing published.
pub fn control(len: Option<u64>) -> (OwnedFd, Memory) {
    const RING_LEN: u64 = 64;
    let needed = (ring_at(4) + RING_LEN as usize * ENTRY_WORDS) as u64 * 8;
    let fd = memory(len.unwrap_or(needed), true);
    let memory = Memory::map(&fd, true);
    let constants = [
        u64::from_le_bytes(*b"xmemctl\0"),
        VERSION.into(),
        4,
        RING_LEN,
        1234,
        0,
        2,
    ];
    for (word, value) in constants.into_iter().enumerate() {
        memory.set(word, value);
    }
    (fd, memory)
}

/// Publishes an entry by hand: in slot 1 of generation 5, with these words of place and metadata put in.
pub fn publish_entry(control: &Memory, sequence: u64, words: &[(usize, u64)]) {
    control.set(SLOTS + 1, 5 << 32 | 2);
    let entry = ring_at(4) + (sequence % 64) as usize * ENTRY_WORDS;
    // The stamp, then region, offset and length of the slot, then the metadata.
    let mut values = [0; ENTRY_WORDS];
    values[0] = sequence * 2 + 2;
    values[1] = 1;
    values[2] = 0;
    values[3] = 4096;
    values[5] = sequence;
    values[6] = 1 | 5 << 32;
    values[8] = 1;
    values[10] = 4096;
    for (at, value) in words {
        values[*at] = *value;
    }
    for (at, value) in values.into_iter().enumerate() {
        control.set(entry + at, value);
    }
    control.set(HEAD, sequence + 1);
}
