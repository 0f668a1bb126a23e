// SPDX-License-Identifier: MPL-2.0

//! A minimal ring: slots in a memfd that are used in turn, and a SOCK_SEQPACKET message with the number of each slot. It does not
//! check whether a slot is still being read, so it is the lower bound for a transport that sends a message per frame.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};

use super::mapping::Mapping;
use super::{Publisher, RECEIVE_TIMEOUT, Subscriber};
use crate::Error;

const SLOTS: usize = 8;

pub(super) struct Sender {
    ring: Mapping,
    size: usize,
    next: usize,
    receivers: Arc<Mutex<Vec<OwnedFd>>>,
}

impl Sender {
    pub(super) fn new(path: &str, size: usize) -> Result<Self, Error> {
        let memory = memfd_create("xmem-bench-ring", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, (size * SLOTS) as u64)?;
        let ring = Mapping::new(memory.as_fd(), size * SLOTS, true)?;
        let listener = socket()?;
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        listen(&listener, 64)?;
        let receivers = Arc::new(Mutex::new(Vec::new()));
        let joined = receivers.clone();
        thread::spawn(move || {
            while let Ok(receiver) = accept(&listener) {
                if give(&receiver, memory.as_fd()).is_ok() {
                    lock(&joined).push(receiver);
                }
            }
        });
        Ok(Self {
            ring,
            size,
            next: 0,
            receivers,
        })
    }
}

impl Publisher for Sender {
    fn publish(
        &mut self,
        write: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        write(&mut self.ring.bytes_mut()[self.next * self.size..][..self.size])?;
        let number = (self.next as u32).to_le_bytes();
        // The queue of a receiver that does not read is full. The receiver misses the frame.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        lock(&self.receivers)
            .retain(|receiver| matches!(send(receiver, &number, flags), Ok(_) | Err(Errno::AGAIN)));
        self.next = (self.next + 1) % SLOTS;
        Ok(())
    }
}

pub(super) struct Receiver {
    ring: Mapping,
    size: usize,
    socket: OwnedFd,
}

impl Receiver {
    pub(super) fn new(path: &str, size: usize) -> Result<Self, Error> {
        let socket = socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(RECEIVE_TIMEOUT))?;
        let memory = take(&socket)?;
        let ring = Mapping::new(memory.as_fd(), size * SLOTS, false)?;
        Ok(Self { ring, size, socket })
    }
}

impl Subscriber for Receiver {
    fn receive(&mut self, read: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let mut number = [0; 4];
        let length = match recv(&self.socket, &mut number, RecvFlags::empty()) {
            Ok((_, length)) => length,
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            return Err("the sender is gone".into());
        }
        let slot = u32::from_le_bytes(number) as usize;
        read(&self.ring.bytes()[slot * self.size..][..self.size])
    }
}

fn socket() -> Result<OwnedFd, Error> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Sends the descriptor of the memory.
fn give(receiver: &OwnedFd, memory: BorrowedFd<'_>) -> Result<(), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let memory = [memory];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&memory)) {
        return Err("no run_dir for a descriptor".into());
    }
    sendmsg(
        receiver,
        &[IoSlice::new(&[0])],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives the descriptor of the memory.
fn take(sender: &OwnedFd) -> Result<OwnedFd, Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    recvmsg(sender, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            return descriptors.next().ok_or("no descriptor came".into());
        }
    }
    Err("no descriptor came".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
