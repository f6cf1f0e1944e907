// SPDX-License-Identifier: Apache-2.0
//! One scheduler tells three workers of each of its steps.
//!
//! Run it without arguments; it executes itself as the workers.

use std::env;
use std::process::{self, Command};
use std::thread;
use std::time::Duration;

use farcall::{Publisher, Subscriber};

const STEPS: u64 = 1000;

fn work(name: &str) -> farcall::Result<()> {
    let mut steps = Subscriber::open(name)?;
    let (mut step, mut sum) = ([0; 8], 0);
    while steps.recv_into(&mut step).is_ok() {
        sum += u64::from_le_bytes(step);
    }
    println!("a worker: {sum}, {} missed", steps.missed());
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(name) = env::args().nth(1) {
        return Ok(work(&name)?);
    }
    let name = format!("steps-{}", process::id());
    let mut publisher = Publisher::create(&name)?; // waits for workers that are slow
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(Command::new(env::current_exe()?).arg(&name).spawn()?);
    }
    while publisher.readers() < workers.len() {
        thread::sleep(Duration::from_millis(1));
    }
    for step in 0..STEPS {
        publisher.send(&step.to_le_bytes())?;
    }
    drop(publisher); // nothing follows
    for mut worker in workers {
        assert!(worker.wait()?.success());
    }
    Ok(())
}
