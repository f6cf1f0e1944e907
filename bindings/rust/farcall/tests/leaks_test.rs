// SPDX-License-Identifier: Apache-2.0
//! What is opened and closed many times leaves nothing, and neither do messages.

use std::fs;
use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use farcall::{
    Client, Error, Pipe, PipeOptions, Policy, PublisherOptions, Server, Stream, Subscriber,
};

mod processes;
use processes::{name, LONG};

/// Descriptors, mappings and MiB of memory of this process.
fn held() -> (usize, usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let mappings = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let resident: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    (descriptors, mappings, (resident * 4096) >> 20)
}

fn leaves_nothing(times: usize, mut what: impl FnMut()) {
    for _ in 0..50 {
        what();
    }
    let before = held();
    for _ in 0..times {
        what();
    }
    // A thread of the library closes what others had, so there may be more of them for a while.
    let end = Instant::now() + LONG;
    let mut after = held();
    while after.0 > before.0 && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
        after = held();
    }
    assert!(after.0 <= before.0, "descriptors: {before:?}, {after:?}");
    assert!(after.1 <= before.1 + 10, "mappings: {before:?}, {after:?}"); // of the allocator
    assert!(after.2 <= before.2 + 20, "memory: {before:?}, {after:?}");
}

fn small() -> (Pipe, Pipe) {
    PipeOptions::new().capacity(4096).pair().unwrap()
}

#[test]
fn pipes_that_are_used() {
    leaves_nothing(10_000, || {
        let (mut here, mut there) = small();
        here.send(b"x").unwrap();
        assert_eq!(there.recv().unwrap(), b"x");
    });
}

#[test]
fn pipes_that_are_not() {
    leaves_nothing(10_000, || drop(small()));
}

#[test]
fn halves_and_streams() {
    leaves_nothing(3_000, || {
        let (here, there) = small();
        drop(there.split());
        assert!(here.split().0.send(b"to nobody").is_err());
        let (here, there) = Stream::pair().unwrap();
        let (mut writer, _) = here.split();
        let (_, mut reader) = there.split();
        assert!(writer.write(b"x").is_ok());
        std::mem::forget(reader.poll().unwrap());
        assert_eq!(reader.read(&mut [0; 2]).unwrap(), 1);
        std::mem::forget(reader.poll().unwrap().unwrap());
        assert!(writer.write(b"y").is_ok());
    });
}

#[test]
fn polls_that_are_forgotten() {
    leaves_nothing(3_000, || {
        let (mut here, mut there) = small();
        std::mem::forget(here.halves().1.poll().unwrap().unwrap());
        there.send(b"x").unwrap();
        assert_eq!(here.recv().unwrap(), b"x");
        std::mem::forget(here.halves().1.poll().unwrap().unwrap());
    });
}

#[test]
fn messages_that_are_left_in_part() {
    leaves_nothing(3_000, || {
        let (mut here, mut there) = small();
        assert_eq!(here.try_send(&[0; 10_000]), Err(Error::WouldBlock));
        assert_eq!(there.try_recv(), Err(Error::WouldBlock));
    });
}

#[test]
fn descriptors_that_are_passed_and_refused() {
    leaves_nothing(3_000, || {
        let (_, there) = small();
        let descriptors = there.into_descriptors().unwrap();
        drop(Pipe::adopt(descriptors).unwrap());
        let (_, there) = small();
        let refused = Pipe::adopt(there.into_descriptors().unwrap().into_iter().rev());
        assert_eq!(refused.unwrap_err(), Error::Broken);
    });
}

#[test]
fn broadcasts() {
    let name = name("leaks");
    leaves_nothing(3_000, || {
        let mut publisher =
            PublisherOptions::new().capacity(4096).policy(Policy::Overwrite).create(&name).unwrap();
        let mut invited = Subscriber::adopt(publisher.invite().unwrap()).unwrap();
        let mut named = Subscriber::open(&name).unwrap();
        publisher.send(b"x").unwrap();
        assert_eq!(invited.recv().unwrap(), b"x");
        assert_eq!(named.recv().unwrap(), b"x");
    });
}

#[test]
fn panics_of_a_procedure() {
    std::panic::set_hook(Box::new(|_| ())); // says nothing
    let path = std::env::temp_dir().join(name("panics"));
    let _server =
        Server::create(&path, |request, _| std::panic::panic_any(request.to_vec())).unwrap();
    let client = Client::open(&path).unwrap();
    let long = vec![0; 100_000];
    leaves_nothing(1_000, || {
        assert_eq!(client.call(&long), Err(Error::CallFailed));
    });
}

#[test]
fn many_messages() {
    let (mut here, mut there) = small();
    let mut received = Vec::new();
    leaves_nothing(500_000, || {
        here.send(&[1; 200]).unwrap();
        there.recv_into(&mut received).unwrap();
        here.send(&[1; 500]).unwrap();
        assert_eq!(there.recv().unwrap().len(), 500);
    });
}
