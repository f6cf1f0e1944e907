// SPDX-License-Identifier: Apache-2.0
//! The other side is a program in C++ or in Python. Only the tests of the whole build have those.

use std::env;
use std::process::Command;

use farcall::{Error, Pipe, PipeOptions, Publisher, PublisherOptions, SubscriberOptions};

mod processes;
use processes::{execute, name, wait_until, Program, LONG};

/// tests/rust/peer.cpp
fn cpp(role: &str, name: &str) -> Program {
    execute(Command::new(env::var("FARCALL_PEER").unwrap()).args([role, name]))
}

/// The same in Python.
fn python(role: &str, name: &str) -> Program {
    let program = match role {
        "serve" => "end = farcall.serve_pipe(name)\nfor message in end: end.send(message)",
        "open" => "end = farcall.open_pipe(name)\nfor message in end: end.send(message)",
        "publish" => {
            "w = farcall.Broadcast(name, policy='block')\n\
             while not w.readers: time.sleep(0.001)\n\
             for i in range(1000): w.send(str(i).encode())"
        }
        "subscribe" => {
            "numbers = [int(message) for message in farcall.subscribe(name, timeout=60)]\n\
             print(len(numbers), sum(numbers), 'finished')"
        }
        "wait" => "end = farcall.serve_pipe(name)\nprint('ready', flush=True)\nsys.stdin.read()",
        "mute" => {
            "w = farcall.Broadcast(name)\n\
             while not w.readers: time.sleep(0.001)\n\
             print('ready', flush=True)\nsys.stdin.read()"
        }
        other => panic!("{other}"),
    };
    let program = format!("import farcall, sys, time\nname = {name:?}\n{program}");
    execute(Command::new(env::var("FARCALL_PYTHON").unwrap()).args(["-B", "-c", &program]))
}

type Language = fn(&str, &str) -> Program;

fn round_trips(mut end: Pipe) {
    for i in 0..300usize {
        let message = vec![i as u8; i * i];
        end.send_timeout(&message, LONG).unwrap();
        assert_eq!(end.recv_timeout(LONG).unwrap(), message);
    }
    end.finish().unwrap();
    assert_eq!(end.recv_timeout(LONG), Err(Error::Finished));
}

fn pipes(peer: Language) {
    let name = name("others");
    let other = peer("serve", &name);
    round_trips(PipeOptions::new().timeout(LONG).open(&name).unwrap());
    other.said();
    let other = peer("open", &name);
    round_trips(PipeOptions::new().timeout(LONG).serve(&name).unwrap());
    other.said();
}

fn broadcasts(peer: Language) {
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

fn deaths(peer: Language) {
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

#[test]
#[ignore = "CTest runs it: FARCALL_PEER is built there"]
fn pipes_with_cpp() {
    pipes(cpp);
}

#[test]
#[ignore = "CTest runs it: FARCALL_PEER is built there"]
fn broadcasts_with_cpp() {
    broadcasts(cpp);
}

#[test]
#[ignore = "CTest runs it: FARCALL_PEER is built there"]
fn deaths_of_cpp() {
    deaths(cpp);
}

#[test]
#[ignore = "CTest runs it: the package for Python is built there"]
fn pipes_with_python() {
    pipes(python);
}

#[test]
#[ignore = "CTest runs it: the package for Python is built there"]
fn broadcasts_with_python() {
    broadcasts(python);
}

#[test]
#[ignore = "CTest runs it: the package for Python is built there"]
fn deaths_of_python() {
    deaths(python);
}
