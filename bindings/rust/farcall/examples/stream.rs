// SPDX-License-Identifier: Apache-2.0
//! A filter: a child that this program executes reads lines and writes them back in capitals.

use std::env;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::process::Command;

use farcall::{exec, Stream};

/// The child: until nothing follows.
fn filter(end: Stream) -> std::io::Result<()> {
    let (writer, reader) = end.split();
    let mut writer = BufWriter::new(writer);
    for line in BufReader::new(reader).lines() {
        writeln!(writer, "{}", line?.to_uppercase())?;
    }
    writer.flush()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if env::args().nth(1).as_deref() == Some("child") {
        // SAFETY: the parent has given an end by this name, and nobody else takes it.
        return Ok(filter(Stream::adopt(unsafe { exec::take("LINES")? })?)?);
    }
    let (mut here, there) = Stream::pair()?;
    let mut command = Command::new(env::current_exe()?);
    exec::give(command.arg("child"), "LINES", there.into_descriptors()?);
    let mut child = command.spawn()?;
    drop(command); // it holds the child's end
    here.write_all(b"hello\nthere\n")?;
    here.finish()?;
    let mut answer = String::new();
    here.read_to_string(&mut answer)?;
    print!("{answer}");
    assert!(child.wait()?.success());
    Ok(())
}
