// SPDX-License-Identifier: Apache-2.0
//! Tasks read and write streams by the traits of tokio.
#![cfg(feature = "tokio")]

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use farcall::tokio::Stream;
use farcall::PipeOptions;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

mod processes;
use processes::{fork, LONG};
mod tasks;
use tasks::{both, run};

fn small() -> (farcall::Stream, farcall::Stream) {
    PipeOptions::new().capacity(4096).stream_pair().unwrap()
}

fn pair() -> (Stream, Stream) {
    let (here, there) = small();
    (Stream::new(here).unwrap(), Stream::new(there).unwrap())
}

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn much_more_than_the_capacity_goes_there_and_back() {
    run(async {
        let (mut here, mut there) = pair();
        let echo = tokio::spawn(async move {
            let (writer, reader) = there.halves();
            tokio::io::copy(reader, writer).await.unwrap()
        });
        let all = bytes(1_000_003);
        let (writer, reader) = here.halves();
        let mut received = Vec::new();
        let write = async {
            writer.write_all(&all).await?;
            writer.flush().await?;
            writer.shutdown().await
        };
        let (written, read) = both(write, reader.read_to_end(&mut received)).await;
        written.unwrap();
        assert_eq!(read.unwrap(), all.len());
        assert!(received == all);
        assert_eq!(echo.await.unwrap(), all.len() as u64);
        assert_eq!(here.read(&mut [0; 5]).await.unwrap(), 0);
        let error = here.write_all(b"nobody").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn tokios_own_split_and_buffers_work() {
    run(async {
        let (here, there) = pair();
        let (reader, _keep) = tokio::io::split(here);
        let (_, mut writer) = tokio::io::split(there);
        let writes = tokio::spawn(async move {
            for i in 0..2000 {
                writer.write_all(format!("line {i}\n").as_bytes()).await.unwrap();
            }
            writer.shutdown().await.unwrap();
        });
        let mut lines = BufReader::new(reader).lines();
        for i in 0..2000 {
            assert_eq!(lines.next_line().await.unwrap().unwrap(), format!("line {i}"));
        }
        assert_eq!(lines.next_line().await.unwrap(), None);
        writes.await.unwrap();
    });
}

#[test]
fn bytes_go_one_by_one_between_threads_of_a_runtime() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..10u8)
            .map(|number| {
                let (mut here, mut there) = pair();
                tokio::spawn(async move {
                    let echo = tokio::spawn(async move {
                        while let Ok(byte) = there.read_u8().await {
                            there.write_u8(byte).await.unwrap();
                        }
                    });
                    for i in 0..200u8 {
                        here.write_u8(number ^ i).await.unwrap();
                        if i % 20 == 0 {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        assert_eq!(here.read_u8().await.unwrap(), number ^ i);
                    }
                    drop(here);
                    echo.await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            timeout(LONG, task).await.expect("it hangs").unwrap();
        }
    });
}

#[test]
fn a_sleeping_task_is_woken_by_bytes_by_room_and_by_the_end() {
    run(async {
        let (here, mut there) = small();
        let mut here = Stream::new(here).unwrap();
        let mut buffer = [0; 10];
        let waiting = tokio::spawn(async move { (here.read(&mut buffer).await.unwrap(), here) });
        tokio::time::sleep(Duration::from_millis(20)).await; // its turns are over
        assert_eq!(there.try_write(b"wake up"), Ok(7));
        let (read, mut here) = waiting.await.unwrap();
        assert_eq!(read, 7);
        let writing = tokio::spawn(async move { (here.write_all(&[1; 10_000]).await, here) });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!writing.is_finished());
        let mut left = 10_000;
        let mut buffer = [0; 1000];
        while left != 0 {
            match there.try_read(&mut buffer) {
                Err(farcall::Error::WouldBlock) => tokio::task::yield_now().await,
                read => left -= read.unwrap(),
            }
        }
        let (written, mut here) = writing.await.unwrap();
        written.unwrap();
        let waiting = tokio::spawn(async move { here.read(&mut [0]).await.unwrap() });
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(there);
        assert_eq!(waiting.await.unwrap(), 0);
    });
}

#[test]
fn a_read_that_is_given_up_loses_nothing() {
    run(async {
        let (mut here, mut there) = pair();
        let mut buffer = [0; 8];
        for i in 0..200u64 {
            let soon = Duration::from_micros(i * 5);
            assert!(timeout(soon, here.read(&mut buffer)).await.is_err());
            there.write_all(&i.to_le_bytes()).await.unwrap();
            here.read_exact(&mut buffer).await.unwrap();
            assert_eq!(buffer, i.to_le_bytes());
        }
    });
}

#[test]
fn what_sleeps_can_be_shut_down_and_taken_out_of_the_runtime() {
    let (mut writer, mut reader) = run(async {
        let (here, there) = pair();
        let (mut writer, _keep) = here.split();
        let (writes, mut reads) = there.split();
        std::mem::forget(_keep); // so that the write below has somebody to wait for
        let full = timeout(Duration::from_millis(20), async {
            loop {
                writer.write_all(&[1; 1000]).await.unwrap();
            }
        });
        assert!(full.await.is_err());
        assert!(timeout(Duration::from_millis(5), async {
            reads.read_exact(&mut [0; 100_000]).await.unwrap();
        })
        .await
        .is_err());
        writer.shutdown().await.unwrap();
        drop(writes);
        (writer.into_inner(), reads.into_inner())
    });
    assert_eq!(writer.try_write(b"x"), Err(farcall::Error::NobodyReceives));
    assert_eq!(reader.try_read(&mut [0]), Ok(0));
}

/// A stream that never runs dry does not keep other tasks from running.
#[test]
fn a_busy_stream_lets_others_run() {
    let (here, there) = small();
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let writer = std::thread::spawn(move || {
        let (mut writer, _reader) = there.split();
        while !stop.load(Ordering::SeqCst) {
            match writer.try_write(&[0; 4096]) {
                Ok(_) | Err(farcall::Error::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    run(async {
        let mut here = Stream::new(here).unwrap();
        let done = Arc::clone(&over);
        let other = tokio::spawn(async move {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut buffer = [0; 1];
        while here.read(&mut buffer).await.unwrap() != 0 {}
        other.await.unwrap();
    });
    writer.join().unwrap();
}

#[test]
fn a_peer_that_is_killed_ends_a_wait() {
    let (here, there) = small();
    let mut there = Some(there);
    let child = fork(|| {
        let mut end = there.take().unwrap();
        std::io::Read::read_exact(&mut end, &mut [0; 3]).unwrap();
        // SAFETY: it is this process that ends.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    drop(there);
    run(async {
        let mut here = Stream::new(here).unwrap();
        here.write_all(b"die").await.unwrap();
        let error = here.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
}

/// What a runtime waits for is open in no child: so a child takes nothing out of it.
#[test]
fn a_stream_is_this_processs_as_soon_as_a_runtime_has_it() {
    run(async {
        let (here, mut there) = small();
        let mut here = Some(Stream::new(here).unwrap());
        let child = fork(|| drop(here.take()));
        assert_eq!(child.wait(), 0);
        let mut here = here.unwrap();
        let read = tokio::spawn(async move {
            let mut bytes = [0; 5];
            timeout(LONG, here.read_exact(&mut bytes)).await.unwrap().unwrap();
            bytes
        });
        tokio::time::sleep(Duration::from_millis(20)).await; // it sleeps
        std::io::Write::write_all(&mut there, b"hello").unwrap();
        assert_eq!(&read.await.unwrap(), b"hello");
    });
}

#[test]
fn tasks_may_go_to_other_threads() {
    fn send<T: Send>(_: T) {}
    run(async {
        let (mut here, mut there) = pair();
        send(here.read(&mut [0]));
        send(there.write_all(b"x"));
    });
}
