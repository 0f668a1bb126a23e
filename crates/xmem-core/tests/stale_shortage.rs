// SPDX-License-Identifier: MPL-2.0

//! A producer without descriptors, beside the socket that a killed one left. In a program of its own, since the limit is that
//! of the process.

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::Place;
use xmem_core::{CreateError, Producer};

#[test]
fn a_lack_of_descriptors_is_not_taken_for_another_producer() {
    let place = Place::new();
    let pool = place.pool();
    let own = getrlimit(Resource::Nofile);
    let free = File::open("/dev/null").unwrap().as_raw_fd();
    let mut failed = 0;
    for most in u64::try_from(free).unwrap().. {
        // An attempt may have removed it.
        let _ = UnixListener::bind(&pool);
        let current = Some(most);
        setrlimit(Resource::Nofile, Rlimit { current, ..own }).unwrap();
        let made = Producer::builder(&pool).build();
        setrlimit(Resource::Nofile, own).unwrap();
        match made {
            Err(error @ CreateError::InUse { .. }) => panic!("{error}"),
            Err(_) => failed += 1,
            Ok(_) => break,
        }
    }
    assert!(failed > 1);
    place.assert_clean();
}
