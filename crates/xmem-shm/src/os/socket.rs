// SPDX-License-Identifier: MPL-2.0

//! Unix sockets for whole messages (SOCK_SEQPACKET) with descriptors. No function blocks.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, chmod, fchmod, fstat, open, unlink};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{set_socket_passcred, set_socket_send_buffer_size};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};

use crate::fault::{self, Point};

/// The maximum length of a path in a socket address. The kernel's limit is 108 bytes with the final NUL.
pub const MAX_PATH_LEN: usize = 107;
/// The maximum number of descriptors in one message.
pub const MAX_FDS: usize = 4;

/// The maximum number of unread bytes for a peer: about twelve messages, by the kernel's count.
const SEND_BUFFER: usize = 8 << 10;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        FLAGS,
        None,
    )?)
}

/// A listening socket, and its file.
#[derive(Debug)]
pub struct Listening {
    /// The listening socket.
    pub socket: OwnedFd,
    /// The file (O_PATH), because the path could refer to another file later.
    pub file: OwnedFd,
}

/// Listens at a path. The file never has more permissions than these, and may briefly have fewer.
pub fn listen_at(path: &Path, mode: u32) -> io::Result<Listening> {
    let socket = seqpacket()?;
    let mode = Mode::from_raw_mode(mode & 0o777);
    // bind gives the file the mode of the unbound socket, minus the umask.
    fchmod(&socket, mode)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fault::point(Point::SocketBound);
    let file = finish(&socket, path, mode).inspect_err(|_| {
        let _ = unlink(path);
    })?;
    Ok(Listening { socket, file })
}

/// Listens on a socket whose file was just created. Returns the file.
fn finish(socket: impl AsFd, path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(io::Error::other("another file is in its place now"));
    }
    if Mode::from_raw_mode(stat.st_mode) != mode {
        // Not by the path, which may refer to another file by now. (fchmodat2 could be used from Linux 6.6 on.)
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    }
    listen(&socket, 128)?;
    fault::point(Point::SocketListening);
    Ok(file)
}

/// Accepts a waiting connection.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let socket = retry_on_intr(|| accept_with(&listener, FLAGS))?;
    fault::point(Point::Accepted);
    // Descriptors in the queue of a peer that does not read count towards a limit of all processes of the user.
    let _ = set_socket_send_buffer_size(&socket, SEND_BUFFER);
    Ok(socket)
}

/// Allows this number of unread bytes for a peer, if the system does.
pub fn allow_unread(socket: impl AsFd, bytes: usize) {
    let _ = set_socket_send_buffer_size(socket, bytes);
}

/// Connects to a path, or fails immediately.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = seqpacket()?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| connect(&socket, &address))?;
    Ok(socket)
}

/// Sends a whole message or fails. `WouldBlock`: the peer does not read.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fault::call(Point::Send)?;
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags));
    let sent = sent.map_err(|errno| match errno {
        Errno::TOOMANYREFS => io::Error::other(
            "more descriptors than RLIMIT_NOFILE allows wait to be read in sockets of this user's processes",
        ),
        errno => errno.into(),
    })?;
    // A sequenced packet is never split.
    debug_assert_eq!(sent, bytes.len());
    fault::point(Point::Sent);
    Ok(())
}

/// One message.
#[derive(Debug)]
pub struct Received<'a> {
    /// The message, never empty.
    pub bytes: &'a [u8],
    /// The descriptors in the message.
    pub fds: Vec<OwnedFd>,
    /// Descriptors were lost because this process has no room for them (RLIMIT_NOFILE).
    pub fds_lost: bool,
}

/// The result of `recvmsg`. `None`: the peer is gone.
fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
    flags: RecvFlags,
) -> io::Result<Option<RecvMsg>> {
    let mut receive =
        || retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(buffer)], control, flags));
    // If a peer ends without reading everything, the first result is a reset. The messages that it sent before follow.
    let message = match receive() {
        Err(Errno::CONNRESET) => receive(),
        message => message,
    };
    match message {
        Ok(message) => Ok(Some(message)),
        Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Receives a message. `None`: the peer is gone. `WouldBlock`: there is none.
pub fn recv<'a>(socket: impl AsFd, buffer: &'a mut [u8]) -> io::Result<Option<Received<'a>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let Some(message) = receive(socket, buffer, &mut control, flags)? else {
        return Ok(None);
    };
    let mut fds: Vec<OwnedFd> = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            fds.extend(rights);
        }
    }
    // The kernel sets CTRUNC if descriptors do not fit into the buffer, and if the process cannot have more. Only in the first
    // case MAX_FDS descriptors have arrived.
    let cut = message.flags.contains(ReturnFlags::CTRUNC);
    let too_many = cut && fds.len() >= MAX_FDS;
    if too_many || message.flags.contains(ReturnFlags::TRUNC) {
        return Err(not_of_the_protocol());
    }
    fault::point(Point::Received);
    let bytes = whole(buffer, message);
    Ok(bytes.map(|bytes| Received {
        bytes,
        fds,
        fds_lost: cut,
    }))
}

/// Receives a message from a peer that must not send descriptors. If it sent some (`InvalidData`), the message stays in the
/// socket: closing descriptors may take any time.
pub fn recv_bytes(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<&[u8]>> {
    let mut none = RecvAncillaryBuffer::default();
    let look = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match receive(&socket, buffer, &mut none, look)? {
        None => return Ok(None),
        Some(message)
            if !(message.flags & (ReturnFlags::CTRUNC | ReturnFlags::TRUNC)).is_empty() =>
        {
            return Err(not_of_the_protocol());
        }
        Some(_) => {}
    }
    let Some(message) = receive(&socket, buffer, &mut none, RecvFlags::DONTWAIT)? else {
        return Ok(None);
    };
    fault::point(Point::Received);
    Ok(whole(buffer, message))
}

/// Ends a connection, and receives the messages that are left. Returns whether some of them have descriptors. The peer can send
/// no more.
pub fn shut_with_fds(socket: impl AsFd) -> bool {
    /// More messages than a queue usually has.
    const MOST: u32 = 1000;
    let _ = shutdown(&socket, Shutdown::Both);
    let mut none = RecvAncillaryBuffer::default();
    let look = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    for _ in 0..MOST {
        let mut next = |flags| receive(&socket, &mut [0], &mut none, flags).ok().flatten();
        let is_cut = |message: &RecvMsg| message.flags.contains(ReturnFlags::CTRUNC);
        match next(look) {
            None => return false,
            Some(message) if is_cut(&message) => return true,
            Some(message) if message.bytes == 0 => {
                // An empty message, or the end. With this option each message has the sender's credentials, for which there is no
                // room.
                let _ = set_socket_passcred(&socket, true);
                let is_message = next(look).as_ref().is_some_and(is_cut);
                let _ = set_socket_passcred(&socket, false);
                if !is_message {
                    return false;
                }
            }
            Some(_) => {}
        }
        next(RecvFlags::DONTWAIT);
    }
    true
}

/// Ends a connection, and closes the descriptors in the messages that are left, which may take any time.
pub fn discard_all(socket: impl AsFd) {
    while shut_with_fds(&socket) {
        // Without room for descriptors, the kernel closes them.
        let mut none = RecvAncillaryBuffer::default();
        let _ = receive(&socket, &mut [0], &mut none, RecvFlags::DONTWAIT);
    }
}

fn not_of_the_protocol() -> io::Error {
    let text = "a message with more bytes or descriptors than any of the protocol";
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The bytes of a message. An empty one is indistinguishable from the end. The protocol has none.
fn whole(buffer: &[u8], message: RecvMsg) -> Option<&[u8]> {
    let bytes = buffer.get(..message.bytes).unwrap_or_default();
    (!bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap()
    }

    #[test]
    fn descriptors_that_no_message_has_stay_in_the_socket() {
        let (ours, theirs) = pair();
        let mut buffer = [0; 8];
        send(&theirs, b"plain", &[]).unwrap();
        assert_eq!(recv_bytes(&ours, &mut buffer).unwrap(), Some(&b"plain"[..]));
        send(&theirs, b"more", &[theirs.as_fd()]).unwrap();
        for _ in 0..2 {
            let error = recv_bytes(&ours, &mut buffer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert!(shut_with_fds(&ours));
        discard_all(&ours);
        assert!(!shut_with_fds(&ours));
    }

    #[test]
    fn unread_descriptors_are_found_behind_other_messages() {
        for is_open in [true, false] {
            for (messages, fds) in [
                (&[][..], false),
                (&[&b"text"[..], b"", b"text"], false),
                (&[&b"text"[..], b"", b""], true),
            ] {
                let (ours, theirs) = pair();
                for message in messages {
                    send(&theirs, message, &[]).unwrap();
                }
                if fds {
                    send(&theirs, b"", &[theirs.as_fd()]).unwrap();
                }
                let theirs = Some(theirs).filter(|_| is_open);
                assert_eq!(shut_with_fds(&ours), fds, "{messages:?}, {is_open}");
                if let Some(theirs) = theirs {
                    assert!(send(&theirs, b"late", &[]).is_err());
                }
            }
        }
    }
}
