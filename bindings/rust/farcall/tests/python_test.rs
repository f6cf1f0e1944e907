// SPDX-License-Identifier: Apache-2.0
//! The other side is a program in Python.

use std::env;
use std::path::Path;
use std::process::Command;

use farcall::{Client, Server};

mod others;
mod processes;
use processes::{execute, Program};

/// A program with the package `farcall`.
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

#[test]
#[ignore = "CTest runs it: its package is built there"]
fn pipes_both_ways() {
    others::pipes(python);
}

#[test]
#[ignore = "CTest runs it: its package is built there"]
fn broadcasts_both_ways() {
    others::broadcasts(python);
}

#[test]
#[ignore = "CTest runs it: its package is built there"]
fn a_peer_that_is_killed_is_told() {
    others::deaths(python);
}

#[test]
#[ignore = "CTest runs it: its package is built there"]
fn calls_both_ways() {
    let place = processes::Place::new("python");
    let path: &Path = &place;
    let run = |program: &str| {
        let program = format!("import farcall, sys\npath = {path:?}\n{program}");
        execute(Command::new(env::var("FARCALL_PYTHON").unwrap()).args(["-B", "-c", &program]))
    };
    let server = Server::create(path, |request, reply| reply.write(&request.to_ascii_uppercase()));
    assert_eq!(run("print(farcall.call(path, b'hello'))").said(), "b'HELLO'\n");
    drop(server);
    let mut other = run(
        "with farcall.serve(path, bytes.upper):\n  print('ready', flush=True)\n  sys.stdin.read()",
    );
    other.wait_until_ready();
    let client = Client::open_timeout(path, processes::LONG).unwrap();
    assert_eq!(client.call_timeout(b"hello", processes::LONG).unwrap(), b"HELLO");
    other.said();
}
