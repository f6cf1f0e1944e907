// SPDX-License-Identifier: Apache-2.0
//! Uses what the crate has, once each: pipes, broadcasts, calls and tasks of tokio.

use farcall::{Client, Pipe, Publisher, Server, Subscriber};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut here, mut there) = Pipe::pair()?;
    here.send(b"hello")?;
    assert_eq!(there.recv()?, b"hello");

    let name = format!("consumer-{}", std::process::id());
    let mut publisher = Publisher::create(&name)?;
    let mut subscriber = Subscriber::open(&name)?;
    publisher.send(b"news")?;
    assert_eq!(subscriber.recv()?, b"news");

    let path = std::env::temp_dir().join(&name);
    let server =
        Server::create(&path, |request, reply| reply.write(&request.to_ascii_uppercase()))?;
    assert_eq!(Client::open(&path)?.call(b"hello")?, b"HELLO");
    drop(server);
    assert!(!path.exists());

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (here, there) = Pipe::pair()?;
        let mut here = farcall::tokio::Pipe::new(here)?;
        let mut there = farcall::tokio::Pipe::new(there)?;
        here.send(b"later").await?;
        assert_eq!(there.recv().await?, b"later");
        farcall::Result::Ok(())
    })?;
    println!("pipes, broadcasts, calls, tasks");
    Ok(())
}
