// SPDX-License-Identifier: Apache-2.0
//! What 64 bytes there and back cost between two processes: through farcall, a Unix socket and a pair of
//! pipes of the kernel, in turns in one run. Usage: round_trip [ROUND TRIPS]    (default: 20000)

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::io::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farcall::{exec, Pipe};

const SIZE: usize = 64;
const TURNS: usize = 5;

type RoundTrip = Box<dyn FnMut(&mut [u8; SIZE]) -> io::Result<()>>;

fn echo(mut reader: impl Read, mut writer: impl Write) -> io::Result<()> {
    let mut message = [0; SIZE];
    while reader.read_exact(&mut message).is_ok() {
        writer.write_all(&message)?;
        writer.flush()?;
    }
    Ok(())
}

fn child(way: &str) -> io::Result<()> {
    // SAFETY: the parent has given them to this process, and they are taken once.
    let given = || unsafe { exec::take("FARCALL_ROUND_TRIP") };
    match way {
        "farcall" => {
            let mut end = Pipe::adopt(given()?)?;
            let mut message = [0; SIZE];
            while end.recv_into(&mut message).is_ok() {
                end.send(&message)?;
            }
            Ok(())
        }
        "Unix socket" => {
            let socket = UnixStream::from(given()?.remove(0));
            echo(&socket, &socket)
        }
        _ => echo(io::stdin().lock(), io::stdout().lock()),
    }
}

fn spawn(way: &str, given: Vec<OwnedFd>) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.env("FARCALL_ROUND_TRIP_WAY", way).stdin(Stdio::piped()).stdout(Stdio::piped());
    exec::give(&mut command, "FARCALL_ROUND_TRIP", given);
    command.spawn()
}

fn start(way: &str) -> io::Result<(Child, RoundTrip)> {
    match way {
        "farcall" => {
            let (mut here, there) = Pipe::pair()?;
            let child = spawn(way, there.into_descriptors()?.into())?;
            let round_trip: RoundTrip = Box::new(move |message| {
                here.send(message)?;
                here.recv_into(message)?;
                Ok(())
            });
            Ok((child, round_trip))
        }
        "Unix socket" => {
            let (mut here, there) = UnixStream::pair()?;
            let child = spawn(way, vec![there.into()])?;
            let round_trip: RoundTrip = Box::new(move |message| {
                here.write_all(message)?;
                here.read_exact(message)
            });
            Ok((child, round_trip))
        }
        _ => {
            let mut child = spawn(way, Vec::new())?;
            let mut to = child.stdin.take().expect("it is piped");
            let mut from = child.stdout.take().expect("it is piped");
            let round_trip: RoundTrip = Box::new(move |message| {
                to.write_all(message)?;
                from.read_exact(message)
            });
            Ok((child, round_trip))
        }
    }
}

/// The median of so many, after a tenth as many that are not counted.
fn median(round_trip: &mut RoundTrip, count: usize) -> io::Result<Duration> {
    let mut times = Vec::with_capacity(count);
    for i in 0..count + count / 10 {
        let mut message = [i as u8; SIZE];
        let began = Instant::now();
        round_trip(&mut message)?;
        let took = began.elapsed();
        assert_eq!(message, [i as u8; SIZE]);
        if i >= count / 10 {
            times.push(took);
        }
    }
    times.sort();
    Ok(times[count / 2])
}

fn main() -> io::Result<()> {
    if let Ok(way) = env::var("FARCALL_ROUND_TRIP_WAY") {
        return child(&way);
    }
    let count = env::args().nth(1).map_or(20_000, |count| count.parse().expect("a number"));
    let ways = ["farcall", "Unix socket", "pipes"];
    let mut medians = [(); 3].map(|()| Vec::new());
    for _ in 0..TURNS {
        for (way, medians) in ways.iter().zip(&mut medians) {
            let (mut child, mut round_trip) = start(way)?;
            medians.push(median(&mut round_trip, count)?);
            drop(round_trip);
            assert!(child.wait()?.success());
        }
    }
    for medians in &mut medians {
        medians.sort();
    }
    let farcall = medians[0][TURNS / 2];
    for (way, medians) in ways.iter().zip(&medians) {
        let middle = medians[TURNS / 2];
        println!(
            "{way:12} {:8.2} us ({:.2} to {:.2})  {:6.1} x farcall",
            middle.as_secs_f64() * 1e6,
            medians[0].as_secs_f64() * 1e6,
            medians[TURNS - 1].as_secs_f64() * 1e6,
            middle.as_secs_f64() / farcall.as_secs_f64()
        );
    }
    Ok(())
}
