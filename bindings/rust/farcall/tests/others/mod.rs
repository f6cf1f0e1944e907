// SPDX-License-Identifier: Apache-2.0
//! What is done with a peer in another language: a program that plays a role under a name.
//!
//! Roles: "serve" and "open" an end of a pipe that sends back what comes; "publish" numbers 0 to 999 to the
//! first reader; "subscribe", and say how many messages came, the sum of their numbers, and the end; "wait",
//! with an end that is not used, and "mute", with a publisher, until they are killed.
#![allow(dead_code)] // no language plays all of it

use std::io::{Read, Write};

use farcall::{Error, Pipe, PipeOptions, Publisher, PublisherOptions, Stream, SubscriberOptions};

use crate::processes::{name, wait_until, Program, LONG};

pub type Language = fn(&str, &str) -> Program;

fn round_trips(mut end: Pipe) {
    for i in 0..300usize {
        let message = vec![i as u8; i * i];
        end.send_timeout(&message, LONG).unwrap();
        assert_eq!(end.recv_timeout(LONG).unwrap(), message);
    }
    end.finish().unwrap();
    assert_eq!(end.recv_timeout(LONG), Err(Error::Finished));
}

pub fn pipes(peer: Language) {
    let name = name("others");
    let other = peer("serve", &name);
    round_trips(PipeOptions::new().timeout(LONG).open(&name).unwrap());
    other.said();
    let other = peer("open", &name);
    round_trips(PipeOptions::new().timeout(LONG).serve(&name).unwrap());
    other.said();
}

fn there_and_back(mut end: Stream) {
    let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i / 7) as u8).collect();
    let (writer, reader) = end.halves();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&bytes).unwrap();
            writer.finish().unwrap();
        });
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        assert!(received == bytes);
    });
}

/// "serve-bytes" and "open-bytes" write what they read; of a peer that has only one kind.
pub fn streams(peer: Language) {
    let name = name("others");
    let other = peer("serve-bytes", &name);
    let mut options = PipeOptions::new();
    options.timeout(LONG);
    assert!(matches!(options.open(&name), Err(Error::OtherKind)));
    there_and_back(options.open_stream(&name).unwrap());
    other.said();
    let other = peer("open-bytes", &name);
    there_and_back(options.serve_stream(&name).unwrap());
    other.said();
    let other = peer("serve", &name);
    assert!(matches!(options.open_stream(&name), Err(Error::OtherKind)));
    round_trips(options.open(&name).unwrap());
    other.said();
}

pub fn broadcasts(peer: Language) {
    let name = name("others");
    let other = peer("publish", &name);
    let mut reader = SubscriberOptions::new().timeout(LONG).open(&name).unwrap();
    for i in 0..1000 {
        assert_eq!(reader.recv_timeout(LONG).unwrap(), i.to_string().as_bytes());
    }
    assert_eq!(reader.recv_timeout(LONG), Err(Error::Finished));
    other.said();
    let mut publisher = Publisher::create(&name).unwrap();
    let other = peer("subscribe", &name);
    wait_until("there is a reader", || publisher.readers() == 1);
    for i in 0..1000 {
        publisher.send_timeout(i.to_string().as_bytes(), LONG).unwrap();
    }
    drop(publisher);
    assert_eq!(other.said(), "1000 499500 finished\n");
}

pub fn deaths(peer: Language) {
    let name = name("others");
    let mut other = peer("wait", &name);
    let mut end = PipeOptions::new().timeout(LONG).open(&name).unwrap();
    other.wait_until_ready();
    assert_eq!(end.try_recv(), Err(Error::WouldBlock));
    other.kill();
    assert_eq!(end.recv_timeout(LONG), Err(Error::PeerDied));
    let mut other = peer("mute", &name);
    let mut reader = SubscriberOptions::new().timeout(LONG).open(&name).unwrap();
    other.wait_until_ready();
    other.kill();
    assert_eq!(reader.recv_timeout(LONG), Err(Error::PeerDied));
    // A reader that is killed is waited for no more.
    let mut publisher = PublisherOptions::new().capacity(4096).create(&name).unwrap();
    let mut other = peer("subscribe", &name);
    wait_until("there is a reader", || publisher.readers() == 1);
    other.kill();
    for _ in 0..1000 {
        publisher.send_timeout(&[b'1'; 10], LONG).unwrap();
    }
}
