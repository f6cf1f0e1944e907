// SPDX-License-Identifier: Apache-2.0
//! The examples do what they say.

use std::env;
use std::process::Command;

/// What an example says. They are built beside the tests.
fn said(example: &str, arguments: &[&str]) -> String {
    let deps = env::current_exe().unwrap();
    let program = deps.parent().unwrap().parent().unwrap().join("examples").join(example);
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_pipe_between_processes() {
    assert_eq!(said("pipe", &[]), "HELLO\nTHERE\n");
}

#[test]
fn a_stream_between_processes() {
    assert_eq!(said("stream", &[]), "HELLO\nTHERE\n");
}

#[test]
fn a_broadcast_to_processes() {
    assert_eq!(said("broadcast", &[]), "a worker: 499500, 0 missed\n".repeat(3));
}

#[cfg(feature = "tokio")]
#[test]
fn a_server_of_tasks() {
    assert_eq!(said("tokio", &[]), "2000 answers\n");
}

#[cfg(feature = "messages")]
#[test]
fn a_server_of_messages() {
    let words = "\"one\": 1 words\n\"one two\": 2 words\n\"one two three\": 3 words\n";
    assert_eq!(said("messages", &[]), format!("{words}3 have finished\n"));
}

#[test]
fn a_comparison() {
    let said = said("round_trip", &["100"]);
    let ways: Vec<_> = said.lines().map(|line| line[..12].trim()).collect();
    assert_eq!(ways, ["farcall", "Unix socket", "pipes"]);
}
