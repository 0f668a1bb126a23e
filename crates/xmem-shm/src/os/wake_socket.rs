// SPDX-License-Identifier: MPL-2.0

//! A socket by which the producer wakes a consumer that waits for a descriptor. The producer makes both ends and never reads its own,
//! so that a consumer can neither block it nor leave descriptors with it, as it could with an eventfd or a pipe.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};

/// The maximum number of unread bytes by the kernel's count: about twenty wake-ups.
const SEND_BUFFER: usize = 8 << 10;
/// The number of waits after which a consumer drains the socket.
pub const WAITS_PER_DRAIN: u32 = 8;

/// The producer's end, and the consumer's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // From now on the consumer can send nothing.
    shutdown(&ours, Shutdown::Read)?;
    set_socket_send_buffer_size(&ours, SEND_BUFFER)?;
    Ok((ours, theirs))
}

/// Makes the other end readable. `false`: the kernel has no memory for that now.
pub fn wake(socket: impl AsFd) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = retry_on_intr(|| send(&socket, &[0], flags));
    // If the buffer is full, the other end is readable. If that end is closed, nobody waits.
    !matches!(sent, Err(Errno::NOBUFS | Errno::NOMEM))
}

/// Takes earlier wake-ups.
pub fn drain(socket: impl AsFd) {
    let _ = recv(socket, &mut [0; 64], RecvFlags::DONTWAIT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_reads_nothing_or_is_gone_does_no_harm() {
        let (ours, theirs) = pair().unwrap();
        for _ in 0..1000 {
            assert!(wake(&ours));
        }
        drop(theirs);
        assert!(wake(&ours));
    }

    #[test]
    fn a_consumer_cannot_send() {
        let (_ours, theirs) = pair().unwrap();
        let sent = send(&theirs, &[0], SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(Errno::PIPE));
    }

    #[test]
    fn all_wake_ups_between_two_drains_have_room() {
        let (ours, theirs) = pair().unwrap();
        let wake_ups = 2 * WAITS_PER_DRAIN as usize;
        for _ in 0..wake_ups {
            send(&ours, &[0], SendFlags::DONTWAIT).unwrap();
        }
        drain(&theirs);
        let left = recv(&theirs, &mut [0; 64], RecvFlags::DONTWAIT);
        assert_eq!(left.unwrap_err(), Errno::AGAIN);
    }
}
