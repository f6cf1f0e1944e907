// SPDX-License-Identifier: Apache-2.0
//! What is done by messages with a peer in another language: a program that plays a role under a name.
//!
//! "answer" with what came, its size as the status, and write "hello" to a descriptor that came along,
//! until the input ends; then say what else came. "ask" sends of many sizes, one way, and a pulse. "hold"
//! receives one and does not answer; "block" sends one that nobody answers.

use std::io::Read;
use std::os::unix::io::AsFd;
use std::os::unix::net::UnixStream;

use farcall::messages::{Channel, Connection, Pulse, Received};
use farcall::Error;

use crate::processes::{message, name, wait_until_gone, Program, LONG};

pub type Language = fn(&str, &str) -> Program;

pub fn sends_to(peer: Language, takes_descriptors: bool) {
    let name = name("others");
    let mut other = peer("answer", &name);
    other.wait_until_ready();
    let connection = Connection::open(&name).unwrap();
    for size in [0, 1, 16384, 16385, 100_000] {
        let (data, mut reply) = (vec![size as u8; size], vec![0; size]);
        let replied = connection.send_timeout(&data, &mut reply, LONG).unwrap();
        assert_eq!((replied.status as usize, replied.size), (size, size));
        assert!(reply == data);
    }
    let (mut here, there) = UnixStream::pair().unwrap();
    let sent = [there.as_fd()];
    connection.sending(b"x").descriptors(&sent).timeout(LONG).send(&mut [0]).unwrap();
    drop(there);
    let mut said = String::new();
    here.read_to_string(&mut said).unwrap(); // ends: nobody has kept it
    assert_eq!(said, if takes_descriptors { "hello" } else { "" });
    for value in 1..=3 {
        connection.send_one_way_timeout(b"x", LONG).unwrap();
        connection.pulse(0, 1, value).unwrap();
    }
    connection.send_timeout(b"the last", &mut [0; 8], LONG).unwrap(); // in order: all has been received
    assert_eq!(other.said(), "3 one way, pulses of 6\n");
}

pub fn serves(peer: Language) {
    let name = name("others");
    let channel = Channel::attach(&name).unwrap();
    let other = peer("ask", &name);
    let (mut answered, mut one_way, mut pulses) = (0, 0, Vec::new());
    while pulses.len() < 2 {
        match channel.receive_timeout(LONG).unwrap() {
            Received::Message(message) => {
                let data = message.data().to_vec();
                message.reply(answered, &data).unwrap();
                answered += 1;
            }
            Received::OneWay(it) => {
                assert_eq!(it.data, b"one");
                one_way += 1;
            }
            Received::Pulse(pulse) => pulses.push(pulse),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((answered, one_way), (6, 1));
    assert_eq!((pulses[0].code, pulses[0].value), (7, -8));
    assert_eq!((pulses[1].code, pulses[1].value), (Pulse::DISCONNECT, pulses[0].origin.connection));
    other.said();
}

pub fn deaths(peer: Language) {
    let name = name("others");
    let mut other = peer("hold", &name);
    other.wait_until_ready();
    let connection = Connection::open(&name).unwrap();
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| connection.send_timeout(b"x", &mut [], LONG));
        other.wait_until_ready();
        other.kill();
        assert_eq!(sent.join().unwrap(), Err(Error::Gone));
    });
    assert_eq!(connection.send_timeout(b"x", &mut [], LONG), Err(Error::Gone));
    let channel = Channel::attach(&name).unwrap();
    let mut other = peer("block", &name);
    let message = message(&channel);
    other.kill();
    match channel.receive_timeout(LONG).unwrap() {
        Received::Pulse(pulse) => assert_eq!(pulse.code, Pulse::DISCONNECT),
        other => panic!("{other:?}"),
    }
    wait_until_gone(message);
}
