// SPDX-License-Identifier: Apache-2.0
//! Tasks wait without threads, and without keeping others from running.
#![cfg(feature = "tokio")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use farcall::tokio::{Pipe, Publisher, Subscriber};
use farcall::{Error, PipeOptions, Policy, PublisherOptions};
use tokio::time::timeout;

mod processes;
use processes::{fork, LONG};
mod tasks;
use tasks::{both, run};

fn pair() -> (Pipe, Pipe) {
    let (here, there) = PipeOptions::new().capacity(4096).pair().unwrap();
    (Pipe::new(here).unwrap(), Pipe::new(there).unwrap())
}

#[test]
fn round_trips_between_tasks() {
    run(async {
        let (mut here, mut there) = pair();
        let echo = tokio::spawn(async move {
            while let Ok(message) = there.recv().await {
                there.send(&message).await.unwrap();
            }
        });
        for size in [0, 64, 1000, 5000, 100_000] {
            for i in 0..50 {
                let message = vec![i; size];
                let (sender, receiver) = here.halves();
                let (sent, received) = both(sender.send(&message), receiver.recv()).await;
                sent.unwrap();
                assert_eq!(received.unwrap(), message);
            }
        }
        here.finish().unwrap();
        assert_eq!(here.recv().await, Err(Error::Finished));
        echo.await.unwrap();
    });
}

#[test]
fn round_trips_with_another_process() {
    let (here, there) = farcall::Pipe::pair().unwrap();
    let mut there = Some(there);
    let child = fork(|| {
        run(async {
            let mut end = Pipe::new(there.take().unwrap()).unwrap();
            let mut message = Vec::new();
            while end.recv_into(&mut message).await.is_ok() {
                end.send(&message).await.unwrap();
            }
        })
    });
    drop(there);
    run(async {
        let mut end = Pipe::new(here).unwrap();
        for i in 0..2000u32 {
            end.send(&i.to_le_bytes()).await.unwrap();
            assert_eq!(end.recv().await.unwrap(), i.to_le_bytes());
        }
    });
    assert_eq!(child.wait(), 0);
}

#[test]
fn who_never_has_to_wait_lets_others_run() {
    run(async {
        let (mut here, mut there) = pair();
        let ran = Arc::new(AtomicBool::new(false));
        let other = Arc::clone(&ran);
        let task = tokio::spawn(async move { other.store(true, Ordering::Relaxed) });
        let mut count = 0;
        while !ran.load(Ordering::Relaxed) {
            here.send(b"there is always room").await.unwrap();
            there.recv().await.unwrap();
            count += 1;
            assert!(count < 10_000);
        }
        task.await.unwrap();
    });
}

#[test]
fn tasks_run_on_several_threads() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..20)
            .map(|number: u32| {
                let (mut here, mut there) = pair();
                tokio::spawn(async move {
                    let echo = tokio::spawn(async move {
                        while let Ok(message) = there.recv().await {
                            there.send(&message).await.unwrap();
                        }
                    });
                    for i in 0..200 {
                        here.send(&(number * i).to_le_bytes()).await.unwrap();
                        if i % 20 == 0 {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        assert_eq!(here.recv().await.unwrap(), (number * i).to_le_bytes());
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
fn a_sleeping_task_is_woken() {
    run(async {
        let (here, mut there) = farcall::Pipe::pair().unwrap();
        let mut here = Pipe::new(here).unwrap();
        let waiting = tokio::spawn(async move { (here.recv().await, here) });
        tokio::time::sleep(Duration::from_millis(20)).await; // its turns are over
        there.send(b"wake up").unwrap();
        let (received, mut here) = waiting.await.unwrap();
        assert_eq!(received.unwrap(), b"wake up");
        let waiting = tokio::spawn(async move { here.recv().await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(there);
        assert_eq!(waiting.await.unwrap(), Err(Error::Finished));
    });
}

#[test]
fn a_sender_waits_for_room() {
    run(async {
        let (here, mut there) = PipeOptions::new().capacity(4096).pair().unwrap();
        let mut here = Pipe::new(here).unwrap();
        let sending = tokio::spawn(async move {
            for i in 0..200 {
                here.send(&[i; 500]).await.unwrap();
            }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!sending.is_finished());
        for i in 0..200 {
            // As long as nothing is there, the sender may run.
            let received = loop {
                match there.try_recv() {
                    Err(Error::WouldBlock) => tokio::task::yield_now().await,
                    received => break received,
                }
            };
            assert_eq!(received.unwrap(), [i; 500]);
        }
        sending.await.unwrap();
    });
}

#[test]
fn a_publisher_waits_for_slow_readers() {
    run(async {
        let publisher = PublisherOptions::new().capacity(4096).create_unnamed().unwrap();
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let reader = farcall::Subscriber::adopt(publisher.invite().unwrap()).unwrap();
                let mut reader = Subscriber::new(reader).unwrap();
                tokio::spawn(async move {
                    for i in 0..2000u32 {
                        if i % 500 == 0 {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        assert_eq!(reader.recv().await.unwrap(), i.to_le_bytes());
                    }
                })
            })
            .collect();
        let mut publisher = Publisher::new(publisher).unwrap();
        for i in 0..2000u32 {
            publisher.send(&i.to_le_bytes()).await.unwrap();
        }
        for reader in readers {
            reader.await.unwrap();
        }
    });
}

#[test]
fn a_publisher_goes_on_when_a_slow_reader_dies() {
    let publisher = PublisherOptions::new().capacity(4096).create_unnamed().unwrap();
    let mut invitation = Some(publisher.invite().unwrap());
    let child = fork(|| {
        let _reader = farcall::Subscriber::adopt(invitation.take().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        unsafe { libc::_exit(0) }
    });
    drop(invitation);
    run(async {
        let mut publisher = Publisher::new(publisher).unwrap();
        let mut given_up = 0;
        for i in 0..500u32 {
            // What is given up has not been sent, and is sent again.
            while timeout(Duration::from_millis(10), publisher.send(&i.to_le_bytes()))
                .await
                .is_err()
            {
                given_up += 1;
            }
        }
        assert!(given_up > 0);
        assert_eq!(publisher.get_ref().readers(), 0);
    });
    child.wait();
}

#[test]
fn a_wait_that_is_given_up_loses_nothing() {
    run(async {
        let (mut here, mut there) = pair();
        for i in 0..200u64 {
            let soon = Duration::from_micros(i * 5);
            assert!(timeout(soon, here.recv()).await.is_err());
            there.send(&i.to_le_bytes()).await.unwrap();
            assert_eq!(here.recv().await.unwrap(), i.to_le_bytes());
        }
    });
}

#[test]
fn a_peer_that_is_killed_ends_a_wait() {
    let (here, there) = farcall::Pipe::pair().unwrap();
    let mut there = Some(there);
    let child = fork(|| {
        let mut end = there.take().unwrap();
        end.recv().unwrap();
        // SAFETY: it is this process that ends.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    drop(there);
    run(async {
        let mut here = Pipe::new(here).unwrap();
        here.send(b"die").await.unwrap();
        assert_eq!(here.recv().await, Err(Error::PeerDied));
    });
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
}

#[test]
fn readers_of_a_broadcast() {
    run(async {
        let mut publisher =
            PublisherOptions::new().policy(Policy::Overwrite).create_unnamed().unwrap();
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let reader = farcall::Subscriber::adopt(publisher.invite().unwrap()).unwrap();
                let mut reader = Subscriber::new(reader).unwrap();
                tokio::spawn(async move {
                    let mut numbers = Vec::new();
                    while let Ok(message) = reader.recv().await {
                        numbers.push(message[0]);
                    }
                    assert_eq!((reader.missed(), reader.just_missed()), (0, 0));
                    numbers
                })
            })
            .collect();
        for i in 0..100 {
            publisher.try_send(&[i]).unwrap();
            if i % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        drop(publisher);
        for reader in readers {
            assert_eq!(reader.await.unwrap(), (0..100).collect::<Vec<_>>());
        }
    });
}

/// What a runtime waits for is open in no child: so a child takes nothing out of it.
#[test]
fn an_end_is_this_processs_as_soon_as_a_runtime_has_it() {
    run(async {
        let (here, mut there) = farcall::Pipe::pair().unwrap();
        let mut here = Some(Pipe::new(here).unwrap());
        let child = fork(|| {
            let (sender, receiver) = here.take().unwrap().split();
            let (mut sender, mut receiver) = (sender.into_inner(), receiver.into_inner());
            assert_eq!(sender.send(b"x"), Err(Error::Busy));
            assert_eq!(receiver.recv(), Err(Error::Busy));
        });
        assert_eq!(child.wait(), 0);
        let mut here = here.unwrap();
        let received = tokio::spawn(async move { timeout(LONG, here.recv()).await });
        tokio::time::sleep(Duration::from_millis(20)).await; // it sleeps
        there.send(b"hello").unwrap();
        assert_eq!(received.await.unwrap().unwrap().unwrap(), b"hello");
    });
}

#[test]
fn it_is_the_same_end_outside_of_the_runtime() {
    let (sender, receiver) = run(async {
        let (mut here, mut there) = pair();
        here.send(b"in").await.unwrap();
        assert_eq!(there.recv().await.unwrap(), b"in");
        (here.split().0.into_inner(), there.split().1.into_inner())
    });
    let (mut sender, mut receiver) = (sender, receiver);
    sender.send(b"out").unwrap();
    assert_eq!(receiver.recv().unwrap(), b"out");
    drop(sender);
    assert_eq!(receiver.recv(), Err(Error::Finished));
}

#[test]
fn tasks_may_go_to_other_threads() {
    fn send<T: Send>(_: T) {}
    run(async {
        let (mut here, mut there) = pair();
        send(here.recv());
        send(there.send(b"x"));
    });
}
