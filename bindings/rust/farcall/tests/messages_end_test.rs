// SPDX-License-Identifier: Apache-2.0
//! Clients of messages that leave, or want to.
#![cfg(feature = "messages")]

use std::os::unix::io::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use farcall::messages::{Channel, ChannelOptions, Connection, Pulse, Received};
use farcall::Error;

mod processes;
use processes::{fork, message, name, wait_until_gone, LONG};

#[test]
fn who_leaves_while_its_message_is_read_is_passed_over() {
    let channel = ChannelOptions::new().disconnect(false).create().unwrap();
    let go_on = AtomicBool::new(true);
    thread::scope(|scope| {
        for client in 0..2u64 {
            let connection = channel.connect().unwrap();
            let go_on = &go_on;
            scope.spawn(move || {
                let mut chance = processes::Chance::new(client + 1);
                let data = vec![1; 200_000];
                while go_on.load(Ordering::Relaxed) {
                    let soon = Duration::from_micros(chance.below(200) as u64);
                    let sent = connection.send_timeout(&data, &mut [], soon);
                    assert!(matches!(sent, Ok(_) | Err(Error::TimedOut | Error::Gone)), "{sent:?}");
                }
            });
        }
        let mut received = Ok(());
        for _ in 0..2_000 {
            match channel.receive_timeout(LONG) {
                Ok(Received::Message(message)) => {
                    assert_eq!(message.data().len(), 200_000);
                    let _ = message.reply(0, b""); // to one that may have left
                }
                other => received = other.map(drop),
            }
        }
        go_on.store(false, Ordering::Relaxed);
        drop(channel); // ends what they wait for
        assert_eq!(received, Ok(()));
    });
}

#[test]
fn a_client_that_is_killed_is_not_answered() {
    let name = name("client-killed");
    let channel = Channel::attach(&name).unwrap();
    let child = fork(|| {
        let connection = Connection::open(&name).unwrap();
        let _ = connection.send(&[1; 100_000], &mut [0; 10]);
    });
    let message = message(&channel);
    child.signal(libc::SIGKILL);
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
    match channel.receive_timeout(LONG).unwrap() {
        Received::Pulse(pulse) => {
            assert_eq!(pulse.code, Pulse::DISCONNECT);
            assert_eq!(pulse.value, message.origin().connection);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(message.data(), [1; 100_000]); // that is here
    wait_until_gone(message);
}

#[test]
fn a_client_that_gives_up_stays_until_it_is_answered_where_that_is_wanted() {
    let channel = ChannelOptions::new().unblock(true).create().unwrap();
    let connection = channel.connect().unwrap();
    let client = thread::spawn(move || {
        let mut reply = [0; 4];
        (connection.send_timeout(b"x", &mut reply, Duration::from_millis(50)), reply)
    });
    let message = message(&channel);
    match channel.receive_timeout(LONG).unwrap() {
        Received::Unblock(id) => assert_eq!(id, message.id()),
        other => panic!("{other:?}"),
    }
    assert!(!client.is_finished());
    message.reply(7, b"late").unwrap();
    let (sent, reply) = client.join().unwrap();
    // The answer, or the end of its time: it has waited for both.
    match sent {
        Ok(replied) => assert_eq!((replied.status, &reply), (7, b"late")),
        Err(error) => assert_eq!(error, Error::TimedOut),
    }
}

#[test]
fn a_client_that_gives_up_leaves_where_that_is_not_said() {
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let client = thread::spawn(move || {
        let sent = connection.send_timeout(b"x", &mut [], Duration::from_millis(50));
        (sent, connection)
    });
    let message = message(&channel);
    let (sent, _connection) = client.join().unwrap();
    assert_eq!(sent, Err(Error::TimedOut));
    wait_until_gone(message);
    assert_eq!(channel.try_receive().unwrap_err(), Error::WouldBlock);
}

#[test]
fn ends_of_connections_are_told_only_where_that_is_wanted() {
    let channel = ChannelOptions::new().disconnect(false).create().unwrap();
    drop(channel.connect().unwrap());
    assert_eq!(channel.receive_timeout(Duration::from_millis(50)).unwrap_err(), Error::TimedOut);
}

#[test]
fn the_death_of_a_server_is_told_by_a_pulse() {
    let name = name("death");
    let child = fork(|| {
        let channel = Channel::attach(&name).unwrap();
        loop {
            drop(channel.receive().unwrap());
        }
    });
    let mut connection = Connection::open(&name);
    processes::wait_until("it serves", || {
        if connection.is_err() {
            connection = Connection::open(&name);
        }
        connection.is_ok()
    });
    let (connection, channel) = (connection.unwrap(), Channel::new().unwrap());
    connection.watch_death(&channel, 42).unwrap();
    assert_eq!(connection.watch_death(&channel, 43), Err(Error::Busy));
    child.signal(libc::SIGKILL);
    match channel.receive_timeout(LONG).unwrap() {
        Received::Pulse(pulse) => assert_eq!((pulse.code, pulse.value), (Pulse::DEATH, 42)),
        other => panic!("{other:?}"),
    }
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
}

#[test]
fn clients_that_are_killed_at_any_time_leave_nothing() {
    let held = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let name = name("any-time");
    let channel = ChannelOptions::new().unblock(true).attach(&name).unwrap();
    let mut chance = processes::Chance::new(1);
    let mut round = || {
        let child = fork(|| {
            let connection = Connection::open(&name).unwrap();
            let file = std::fs::File::open("/dev/null").unwrap();
            let (descriptors, mut reply) = ([file.as_fd(); 3], vec![0; 50_000]);
            loop {
                let sending = connection.sending(&[1; 100_000]).descriptors(&descriptors);
                sending.timeout(Duration::from_micros(300)).send(&mut reply).ok();
            }
        });
        let mut kept = Vec::new();
        let mut left = chance.below(30);
        let mut child = Some(child);
        loop {
            match channel.receive_timeout(LONG).unwrap() {
                Received::Message(message) if kept.is_empty() => kept.push(message),
                Received::Message(message) => {
                    let _ = message.reply(0, &[2; 50_000]); // to one that may have left
                }
                Received::Unblock(id) => kept.retain(|message| message.id() != id), // answers it
                Received::Pulse(pulse) => {
                    assert_eq!(pulse.code, Pulse::DISCONNECT);
                    return;
                }
                other => panic!("{other:?}"),
            }
            if left > 0 {
                left -= 1;
            } else if let Some(child) = child.take() {
                child.signal(libc::SIGKILL);
                assert_eq!(child.wait(), 128 + libc::SIGKILL);
            }
        }
    };
    (0..5).for_each(|_| round());
    let before = held();
    (0..60).for_each(|_| round());
    processes::wait_until("all are closed", || held() <= before);
}
