// SPDX-License-Identifier: MPL-2.0

//! Queries of several pools, some of which do not answer.

use std::os::fd::OwnedFd;
use std::thread;

use crate::support::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use xmem_core::discovery::query_all;
use xmem_core::{ConnectError, Producer};

/// Whether the event occurs within a minute, or has already occurred.
fn is_there(socket: &OwnedFd, what: PollFlags, now: bool) -> bool {
    let seconds = if now { 0 } else { HANG.as_secs() };
    let time = Timespec {
        tv_sec: seconds.try_into().unwrap(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(socket, what)];
    poll(&mut fds, Some(&time)).unwrap();
    fds[0].revents().contains(what)
}

#[test]
fn pools_that_do_not_answer_are_queried_in_parallel() {
    let place = Place::new();
    let paths = ["a", "b"].map(|name| {
        let path = place.path().join(format!("{name}.sock"));
        path.to_str().unwrap().to_owned()
    });
    let listeners = paths.each_ref().map(|path| {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        socket
    });
    // A query has a timeout, so on a busy machine one may end before the other begins.
    eventually("both wait for an answer", || {
        thread::scope(|scope| {
            let asking = scope.spawn(|| query_all(&paths));
            let asked = listeners.each_ref().map(|listener| {
                assert!(is_there(listener, PollFlags::IN, false), "it is not asked");
                rustix::net::accept(listener).unwrap()
            });
            let waiting = asked
                .each_ref()
                .map(|socket| !is_there(socket, PollFlags::HUP, true));
            drop(asked);
            for answer in asking.join().unwrap() {
                let error = answer.unwrap_err();
                assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error}");
            }
            waiting == [true; 2]
        })
    });
}

#[test]
fn answers_are_in_the_order_of_the_pools() {
    let place = Place::new();
    let path = |n: usize| {
        let path = place.path().join(format!("{n}.sock"));
        path.to_str().unwrap().to_owned()
    };
    assert!(query_all::<String>(&[]).is_empty());
    // More than are queried at the same time. Every third pool has a producer.
    let pools: Vec<String> = (0..100).map(path).collect();
    let build = |pool: &String| Producer::builder(pool).build().unwrap();
    let _producers: Vec<_> = pools.iter().step_by(3).map(build).collect();
    for (n, answer) in query_all(&pools).into_iter().enumerate() {
        match answer {
            Ok(stats) => assert_eq!((stats.pool.as_str(), n % 3), (pools[n].as_str(), 0)),
            Err(ConnectError::NotFound { .. }) => assert_ne!(n % 3, 0),
            // On a busy machine.
            Err(ConnectError::NoAnswer { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
