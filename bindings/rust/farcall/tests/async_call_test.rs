// SPDX-License-Identifier: Apache-2.0
//! Calls that nobody waits in, and tasks that call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farcall::{Caller, Client, Error, Server};

mod processes;
use processes::{wait_until, Place, LONG};

fn slow_echo(path: &Place) -> Server {
    Server::create(path, |request, reply| {
        thread::sleep(Duration::from_micros(200));
        reply.write(request)
    })
    .unwrap()
}

/// Answers when it is told to; and says when it has been reached, and when its caller has gone.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    reached: AtomicBool,
    gone: AtomicBool,
}

fn gated(path: &Place) -> (Arc<Gate>, Server) {
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let server = Server::create(path, move |request, reply| {
        held.reached.store(true, Ordering::SeqCst);
        wait_until("the call is to end", || {
            held.gone.fetch_or(Caller::of_this_call().is_err(), Ordering::SeqCst);
            held.gone.load(Ordering::SeqCst) || held.open.load(Ordering::SeqCst)
        });
        reply.write(request)
    })
    .unwrap();
    (gate, server)
}

#[test]
fn many_are_begun_and_taken() {
    let path = Place::new("begun");
    let _server = slow_echo(&path);
    let client = Client::open(&path).unwrap();
    let mut calls: Vec<_> = (0..50).map(|i: u8| client.begin(&vec![i; 100 * i as usize])).collect();
    drop(client);
    for (i, call) in calls.iter_mut().enumerate() {
        let call = call.as_mut().unwrap();
        assert_eq!(call.take().unwrap(), vec![i as u8; 100 * i]);
        assert_eq!(call.try_take(), Err(Error::Os(libc::EINVAL)));
    }
}

#[test]
fn dropped_is_given_up() {
    let path = Place::new("dropped");
    let (gate, _server) = gated(&path);
    let client = Client::open(&path).unwrap();
    let mut call = client.begin(b"x").unwrap();
    wait_until("the server is called", || {
        assert_eq!(call.try_take(), Err(Error::WouldBlock));
        gate.reached.load(Ordering::SeqCst)
    });
    drop(call);
    wait_until("the server is told", || gate.gone.load(Ordering::SeqCst));
    assert_eq!(client.call_timeout(b"next", LONG).unwrap(), b"next");
}

#[test]
fn time_is_up() {
    let path = Place::new("late");
    let (gate, _server) = gated(&path);
    let client = Client::open(&path).unwrap();
    let mut call = client.begin_timeout(b"x", Duration::from_millis(20)).unwrap();
    assert_eq!(call.take(), Err(Error::TimedOut));
    gate.open.store(true, Ordering::SeqCst);
}

#[cfg(feature = "tokio")]
mod of_tasks {
    use super::*;
    use farcall::tokio::Client;
    use tokio::runtime::{Builder, Runtime};
    use tokio::time::timeout;

    fn client(path: &Place) -> Client {
        Client::new(farcall::Client::open(path).unwrap())
    }

    fn runtimes() -> [Runtime; 2] {
        let single = Builder::new_current_thread().enable_all().build().unwrap();
        let several = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        [single, several]
    }

    #[test]
    fn many_are_in_progress_at_once() {
        let path = Place::new("tasks");
        let _server = slow_echo(&path);
        for runtime in runtimes() {
            runtime.block_on(async {
                let client = Arc::new(client(&path));
                for _ in 0..20 {
                    let tasks: Vec<_> = (0..50u32)
                        .map(|i| {
                            let client = client.clone();
                            tokio::spawn(async move { client.call(&i.to_le_bytes()).await })
                        })
                        .collect();
                    for (i, task) in (0u32..).zip(tasks) {
                        assert_eq!(task.await.unwrap().unwrap(), i.to_le_bytes());
                    }
                }
            });
        }
    }

    #[test]
    fn a_task_that_is_given_up_gives_its_call_up() {
        let path = Place::new("task");
        let (gate, _server) = gated(&path);
        let [runtime, _] = runtimes();
        runtime.block_on(async {
            let client = client(&path);
            let call = client.call(b"x");
            tokio::pin!(call);
            while !gate.reached.load(Ordering::SeqCst) {
                assert!(timeout(Duration::from_millis(1), &mut call).await.is_err());
            }
            assert!(timeout(Duration::from_millis(20), client.call(b"y")).await.is_err());
        });
        wait_until("the server is told", || gate.gone.load(Ordering::SeqCst));
    }

    #[test]
    fn errors_are_those_of_calls() {
        let path = Place::new("errors");
        let server = Server::create(&path, |_, _| Err(Error::Os(libc::EIO))).unwrap();
        let [runtime, _] = runtimes();
        runtime.block_on(async {
            let client = client(&path);
            assert_eq!(client.call(b"x").await, Err(Error::CallFailed));
            drop(server);
            assert_eq!(client.call(b"x").await, Err(Error::NobodyReceives));
        });
    }
}
