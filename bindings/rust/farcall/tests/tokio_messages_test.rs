// SPDX-License-Identifier: Apache-2.0
//! Tasks receive messages.
#![cfg(all(feature = "messages", feature = "tokio"))]

use std::thread;
use std::time::Duration;

use farcall::messages::Received;
use farcall::tokio::Channel;

mod processes;
use processes::LONG;
mod tasks;
use tasks::run;

#[test]
fn a_task_serves_clients_that_come_at_any_time() {
    let channel = farcall::messages::Channel::new().unwrap();
    let clients: Vec<_> = (0..3u32)
        .map(|client| {
            let connection = channel.connect().unwrap();
            thread::spawn(move || {
                for i in 0..300u32 {
                    if i % 10 == client {
                        thread::sleep(Duration::from_millis(2));
                    }
                    let mut reply = [0; 4];
                    connection.send_timeout(&i.to_le_bytes(), &mut reply, LONG).unwrap();
                    assert_eq!(reply, i.to_le_bytes());
                }
            })
        })
        .collect();
    run(async move {
        let mut channel = Channel::new(channel).unwrap();
        let ticks = tokio::spawn(async {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let (mut answered, mut ended) = (0, 0);
        while ended < 3 {
            match channel.receive().await.unwrap() {
                Received::Message(message) => {
                    let data = message.data().to_vec();
                    message.reply(0, &data).unwrap();
                    answered += 1;
                }
                _ => ended += 1,
            }
        }
        assert_eq!(answered, 900);
        ticks.await.unwrap();
    });
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn who_never_has_to_wait_lets_others_run() {
    run(async {
        let mut channel = Channel::new(farcall::messages::Channel::new().unwrap()).unwrap();
        let connection = channel.get_ref().connect().unwrap();
        let other = tokio::spawn(async {});
        for _ in 0..10_000 {
            connection.pulse(0, 1, 0).unwrap();
            channel.receive().await.unwrap();
            if other.is_finished() {
                return;
            }
        }
        panic!("it never ran");
    });
}

#[test]
fn what_is_given_up_loses_nothing() {
    run(async {
        let mut channel = Channel::new(farcall::messages::Channel::new().unwrap()).unwrap();
        let connection = channel.get_ref().connect().unwrap();
        for value in 0..200 {
            // Given up while it tries, and while it sleeps.
            let wait = Duration::from_micros(value as u64 % 20 * 50);
            assert!(tokio::time::timeout(wait, channel.receive()).await.is_err());
            let client = std::thread::scope(|scope| {
                scope.spawn(|| connection.pulse(0, 1, value)).join().unwrap()
            });
            client.unwrap();
            match channel.receive().await.unwrap() {
                Received::Pulse(pulse) => assert_eq!(pulse.value, value),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn what_comes_while_it_is_given_up_is_received_once() {
    let channel = farcall::messages::Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let client = thread::spawn(move || {
        for i in 0..500u32 {
            let mut reply = [0; 4];
            connection.send_timeout(&i.to_le_bytes(), &mut reply, LONG).unwrap();
            assert_eq!(reply, i.to_le_bytes());
        }
    });
    run(async move {
        let mut channel = Channel::new(channel).unwrap();
        let (mut next, mut turns) = (0u32, 0u64);
        while next < 500 {
            turns += 1;
            let wait = Duration::from_micros(turns % 20 * 10);
            match tokio::time::timeout(wait, channel.receive()).await {
                Ok(Ok(Received::Message(message))) => {
                    assert_eq!(message.data(), next.to_le_bytes());
                    let data = message.data().to_vec();
                    message.reply(0, &data).unwrap();
                    next += 1;
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => {} // given up
            }
        }
    });
    client.join().unwrap();
}
