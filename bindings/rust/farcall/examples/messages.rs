// SPDX-License-Identifier: Apache-2.0
//! A server of three processes: it counts words, in what they send and in files that come along.
//!
//! Run it without arguments; it executes itself as the clients, which connect by the name.

use std::env;
use std::fs::File;
use std::io::Read;
use std::os::unix::io::AsFd;
use std::process::Command;
use std::time::Duration;

use farcall::messages::{Channel, Connection, Message, Pulse, Received};
use farcall::Error;

const FINISHED: i32 = 1;
/// A client that fails before it has connected is not told of.
const LONG: Duration = Duration::from_secs(60);

fn client(name: &str, text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let server = Connection::open(name)?;
    let mut reply = [0; 8];
    // A server that hangs does not have its clients hang.
    server.send_timeout(text.as_bytes(), &mut reply, Duration::from_secs(10))?;
    println!("{text:?}: {} words", u64::from_ne_bytes(reply));

    let program = File::open(env::current_exe()?)?;
    let same = server.sending(b"").descriptors(&[program.as_fd()]).send(&mut reply);
    assert!(same?.status == 1, "it has read the file");
    server.pulse(0, FINISHED, text.len() as i64)?; // waits for nobody
    Ok(())
}

fn answer(mut message: Message) -> farcall::Result<()> {
    let mut files = message.take_descriptors().into_iter().map(File::from);
    let (status, text) = match files.next() {
        Some(file) => {
            let mut text = Vec::new();
            if file.take(100_000).read_to_end(&mut text).is_err() {
                return message.error(Error::Os(libc::EIO));
            }
            (1, text)
        }
        None => (0, message.data().to_vec()),
    };
    let words = text.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let count = words.count() as u64;
    message.reply(status, &count.to_ne_bytes())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(name) = env::args().nth(1) {
        return client(&name, &env::args().nth(2).unwrap_or_default());
    }
    let name = format!("farcall-example-{}", std::process::id());
    let channel = Channel::attach(&name)?;
    let mut finished = 0;
    for text in ["one", "one two", "one two three"] {
        let mut client = Command::new(env::current_exe()?).args([&name, text]).spawn()?;
        loop {
            match channel.receive_timeout(LONG)? {
                Received::Message(message) => match answer(message) {
                    Err(Error::Gone) => println!("a client was killed"), // others were not
                    answered => answered?,
                },
                Received::Pulse(pulse) if pulse.code == FINISHED => finished += 1,
                Received::Pulse(pulse) if pulse.code == Pulse::DISCONNECT => break,
                other => println!("what is that? {other:?}"),
            }
        }
        assert!(client.wait()?.success());
    }
    println!("{finished} have finished");
    Ok(())
}
