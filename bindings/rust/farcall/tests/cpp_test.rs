// SPDX-License-Identifier: Apache-2.0
//! The other side is a program in C++.

use std::env;
use std::process::Command;

mod others;
mod processes;
use processes::{execute, Program};

/// tests/rust/peer.cpp
fn cpp(role: &str, name: &str) -> Program {
    execute(Command::new(env::var("FARCALL_PEER").unwrap()).args([role, name]))
}

#[test]
#[ignore = "CTest runs it: its program is built there"]
fn pipes_both_ways() {
    others::pipes(cpp);
}

#[test]
#[ignore = "CTest runs it: its program is built there"]
fn streams_both_ways() {
    others::streams(cpp);
}

#[test]
#[ignore = "CTest runs it: its program is built there"]
fn broadcasts_both_ways() {
    others::broadcasts(cpp);
}

#[test]
#[ignore = "CTest runs it: its program is built there"]
fn a_peer_that_is_killed_is_told() {
    others::deaths(cpp);
}
