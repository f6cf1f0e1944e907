// SPDX-License-Identifier: Apache-2.0
//! A program and its child, which answers in upper case.
//!
//! Run it without arguments; it executes itself as the child.

use std::env;
use std::process::Command;

use farcall::{exec, Pipe};

fn child() -> farcall::Result<()> {
    // SAFETY: the parent has given them to this process, and they are taken once.
    let mut end = Pipe::adopt(unsafe { exec::take("FARCALL_PIPE")? })?;
    let (sender, receiver) = end.halves();
    for message in receiver.messages() {
        sender.send(&message?.to_ascii_uppercase())?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if env::var_os("FARCALL_PIPE").is_some() {
        return Ok(child()?);
    }
    let (mut here, there) = Pipe::pair()?;
    let mut command = Command::new(env::current_exe()?);
    exec::give(&mut command, "FARCALL_PIPE", there.into_descriptors()?);
    let mut child = command.spawn()?;
    drop(command); // the child's end is the child's alone now

    for word in ["hello", "there"] {
        here.send(word.as_bytes())?;
        println!("{}", String::from_utf8(here.recv()?)?);
    }
    here.finish()?;
    assert!(child.wait()?.success());
    Ok(())
}
