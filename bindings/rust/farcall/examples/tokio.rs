// SPDX-License-Identifier: Apache-2.0
//! A server for many clients in one thread: each has a pipe, and a task that answers.
//!
//! The clients are threads here; with `exec::give()` or a name they are other processes.

use std::thread;
use std::time::Duration;

use farcall::tokio::Pipe;

const CLIENTS: u32 = 20;

async fn serve(mut end: Pipe) -> farcall::Result<u32> {
    let mut number = [0; 4];
    let mut answered = 0;
    while end.recv_into(&mut number).await.is_ok() {
        end.send(&(u32::from_le_bytes(number) * 2).to_le_bytes()).await?;
        answered += 1;
    }
    Ok(answered)
}

fn ask(mut end: farcall::Pipe, client: u32) -> farcall::Result<()> {
    for i in 0..100 {
        end.send(&(client * i).to_le_bytes())?;
        assert_eq!(end.recv()?, (client * i * 2).to_le_bytes());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut clients, mut tasks) = (Vec::new(), Vec::new());
        for client in 0..CLIENTS {
            let (here, there) = farcall::Pipe::pair()?;
            tasks.push(tokio::spawn(serve(Pipe::new(here)?)));
            clients.push(thread::spawn(move || ask(there, client)));
        }
        let mut answered = 0;
        for task in tasks {
            answered += tokio::time::timeout(Duration::from_secs(60), task).await???;
        }
        for client in clients {
            client.join().expect("a client panicked")?;
        }
        println!("{answered} answers");
        Ok(())
    })
}
