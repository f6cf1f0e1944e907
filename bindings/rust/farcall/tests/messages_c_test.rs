// SPDX-License-Identifier: Apache-2.0
//! Messages to and from programs in C.
#![cfg(feature = "messages")]

use std::env;
use std::process::Command;

mod message_peers;
mod processes;
use processes::{execute, Program};

/// tests/rust/message_peer.c
fn c(role: &str, name: &str) -> Program {
    execute(Command::new(env::var("FARCALL_MESSAGE_PEER").unwrap()).args([role, name]))
}

#[test]
#[ignore = "CTest runs it: its program is built there"]
fn to_a_server() {
    message_peers::sends_to(c, true);
}

#[test]
#[ignore = "CTest runs it: its program is built there"]
fn from_a_client() {
    message_peers::serves(c);
}

#[test]
#[ignore = "CTest runs it: its program is built there"]
fn peers_that_are_killed_are_told() {
    message_peers::deaths(c);
}
