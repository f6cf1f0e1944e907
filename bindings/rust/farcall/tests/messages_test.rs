// SPDX-License-Identifier: Apache-2.0
//! Messages that are sent, received and answered.
#![cfg(feature = "messages")]

use std::thread;
use std::time::Duration;

use farcall::messages::{Channel, Connection, Message, Pulse, Received};
use farcall::Error;

mod processes;
use processes::{fork, name, LONG};

fn message(channel: &Channel) -> Message {
    match channel.receive_timeout(LONG).unwrap() {
        Received::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_of_any_size_are_answered() {
    let name = name("sizes");
    let channel = Channel::attach(&name).unwrap();
    let child = fork(|| {
        let connection = Connection::open(&name).unwrap();
        for size in [0, 1, 16383, 16384, 16385, 1_000_000] {
            let mut reply = vec![0; size];
            let replied = connection.send_timeout(&vec![7; size], &mut reply, LONG).unwrap();
            assert_eq!((replied.status, replied.size), (5, size));
            assert!(reply == vec![7; size]);
        }
    });
    for _ in 0..6 {
        let message = message(&channel);
        assert!(message.origin().process.is_some());
        let data = message.data().to_vec();
        message.reply(5, &data).unwrap();
    }
    assert_eq!(child.wait(), 0);
}

#[test]
fn what_is_dropped_or_refused_hangs_nobody() {
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let client = thread::spawn(move || {
        [(); 3].map(|()| connection.send_timeout(b"x", &mut [], LONG).unwrap_err())
    });
    drop(message(&channel));
    message(&channel).error(Error::Os(libc::EIO)).unwrap();
    assert_eq!(message(&channel).reply(-1, b""), Err(Error::Os(libc::EINVAL)));
    assert_eq!(
        client.join().unwrap(),
        [Error::CallFailed, Error::Os(libc::EIO), Error::CallFailed]
    );
}

#[test]
fn pulses_and_the_end_of_a_connection_are_told() {
    let channel = Channel::new().unwrap();
    assert_eq!(channel.try_receive().unwrap_err(), Error::WouldBlock);
    let soon = channel.receive_timeout(Duration::from_millis(1));
    assert_eq!(soon.unwrap_err(), Error::TimedOut);
    let connection = channel.connect().unwrap();
    connection.pulse(1, 3, -5).unwrap();
    connection.pulse(2, 4, 6).unwrap();
    let mut connection = Some(connection);
    for code in [4, 3, Pulse::DISCONNECT] {
        if code == Pulse::DISCONNECT {
            connection.take();
        }
        match channel.receive_timeout(LONG).unwrap() {
            Received::Pulse(pulse) => assert_eq!(pulse.code, code),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_server_that_is_killed_ends_the_wait() {
    let name = name("killed");
    let child = fork(|| {
        let channel = Channel::attach(&name).unwrap();
        let _kept = message(&channel);
        // SAFETY: it is this process that ends.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    let mut connection = Connection::open(&name);
    processes::wait_until("it serves", || {
        if connection.is_err() {
            connection = Connection::open(&name);
        }
        connection.is_ok()
    });
    let sent = connection.unwrap().send_timeout(b"x", &mut [], LONG);
    assert_eq!(sent, Err(Error::Gone));
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
}

#[test]
fn a_child_has_no_channels_of_its_parent() {
    let channel = Channel::new().unwrap();
    let child = fork(|| assert_eq!(channel.try_receive().unwrap_err(), Error::Busy));
    assert_eq!(child.wait(), 0);
    assert_eq!(channel.try_receive().unwrap_err(), Error::WouldBlock);
}

#[test]
fn its_descriptor_is_readable_when_there_is_something() {
    use std::os::unix::io::AsRawFd;
    let channel = Channel::new().unwrap();
    let mut poll = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: there is one.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0);
    channel.connect().unwrap().pulse(0, 1, 0).unwrap();
    // SAFETY: there is one.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1);
    assert!(channel.try_receive().is_ok());
}

#[test]
fn ten_thousand_connections_leave_nothing() {
    let held = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let channel = Channel::new().unwrap();
    let round = || {
        channel.connect().unwrap().pulse(0, 1, 0).unwrap();
        for _ in 0..2 {
            assert!(matches!(channel.receive_timeout(LONG).unwrap(), Received::Pulse(_)));
        }
    };
    (0..50).for_each(|_| round());
    let before = held();
    (0..10_000).for_each(|_| round());
    processes::wait_until("all are closed", || held() <= before);
}
