// SPDX-License-Identifier: Apache-2.0
//! Messages to and from programs in Python.
#![cfg(feature = "messages")]

use std::env;
use std::process::Command;

mod message_peers;
mod processes;
use processes::{execute, Program};

/// A program with the package `farcall`, which closes descriptors that come along.
fn python(role: &str, name: &str) -> Program {
    let program = match role {
        "answer" => {
            "channel = m.Channel(name)\nprint('ready', flush=True)\n\
             poll = select.poll()\n\
             [poll.register(of, select.POLLIN) for of in (channel, sys.stdin)]\n\
             one_way = pulses = 0\n\
             while True:\n\
             \x20 ready = [fd for fd, _ in poll.poll(60_000)]\n\
             \x20 assert ready\n\
             \x20 try: it = channel.receive(timeout=0)\n\
             \x20 except BlockingIOError: it = None\n\
             \x20 if isinstance(it, m.Pulse): pulses += it.value\n\
             \x20 elif it is not None and it.one_way: one_way += 1\n\
             \x20 elif it is not None: it.reply(it.data, len(it.data))\n\
             \x20 if sys.stdin.fileno() in ready: break\n\
             print(one_way, 'one way, pulses of', pulses)"
        }
        "ask" => {
            "connection = m.connect(name)\n\
             for i, size in enumerate([0, 1, 5000, 16384, 16385, 100000]):\n\
             \x20 data = bytes([i]) * size\n\
             \x20 assert connection.send_with_status(data, 60, 100000) == (i, data)\n\
             connection.send_one_way(b'one', 60)\nconnection.pulse(7, -8)"
        }
        "hold" => {
            "channel = m.Channel(name)\nprint('ready', flush=True)\n\
             kept = channel.receive(60)\nprint('ready', flush=True)\nsys.stdin.read()"
        }
        "block" => "m.connect(name).send(bytes(100000))",
        other => panic!("{other}"),
    };
    let program = format!(
        "import select, sys\nfrom farcall import messages as m\nname = {name:?}\n{program}"
    );
    execute(Command::new(env::var("FARCALL_PYTHON").unwrap()).args(["-B", "-c", &program]))
}

#[test]
#[ignore = "CTest runs it: its package is built there"]
fn to_a_server() {
    message_peers::sends_to(python, false);
}

#[test]
#[ignore = "CTest runs it: its package is built there"]
fn from_a_client() {
    message_peers::serves(python);
}

#[test]
#[ignore = "CTest runs it: its package is built there"]
fn peers_that_are_killed_are_told() {
    message_peers::deaths(python);
}
