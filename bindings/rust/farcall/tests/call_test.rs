// SPDX-License-Identifier: Apache-2.0
//! Functions that are called by the path of a door.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farcall::{Caller, Client, Error, Server, ServerOptions};

mod processes;
use processes::{fork, wait_until, Place, LONG};

#[test]
fn requests_and_replies_of_any_size() {
    let path = Place::new("sizes");
    let _server = Server::create(&path, |request, reply| {
        for piece in request.chunks(1000) {
            reply.write(piece)?;
        }
        reply.write(b"!")
    })
    .unwrap();
    let client = Client::open(&path).unwrap();
    for size in [0, 1, 1000, 1023, 1024, 100_000, 3_000_000] {
        let mut request = vec![size as u8; size];
        let reply = client.call(&request).unwrap();
        request.push(b'!');
        assert_eq!(reply, request);
    }
}

#[test]
fn other_processes_call_and_are_known() {
    let path = Place::new("processes");
    let server = Server::create(&path, |request, reply| {
        let caller = Caller::of_this_call()?;
        reply.write(request)?;
        reply.write(&caller.process.unwrap().to_le_bytes())?;
        reply.write(&caller.user.to_le_bytes())
    })
    .unwrap();
    let child = fork(|| {
        let client = Client::open(&path).unwrap();
        for _ in 0..1000 {
            let reply = client.call_timeout(b"x", LONG).unwrap();
            assert_eq!(reply[0], b'x');
            assert_eq!(reply[1..5], std::process::id().to_le_bytes());
            // SAFETY: it always works.
            assert_eq!(reply[5..], unsafe { libc::geteuid() }.to_le_bytes());
        }
    });
    assert_eq!(child.wait(), 0);
    assert_eq!(Caller::of_this_call(), Err(Error::Os(libc::EINVAL)));
    drop(server);
    assert!(!path.exists());
}

#[test]
fn errors_and_panics_end_their_call_alone() {
    let path = Place::new("errors");
    let _server = Server::create(&path, |request, reply| match request {
        b"panic" => panic!("as it is meant to"),
        b"error" => Err(Error::Os(libc::EIO)),
        _ => reply.write(request),
    })
    .unwrap();
    let client = Client::open(&path).unwrap();
    for _ in 0..20 {
        assert_eq!(client.call(b"panic"), Err(Error::CallFailed));
        assert_eq!(client.call(b"error"), Err(Error::CallFailed));
        assert_eq!(client.call(b"good").unwrap(), b"good");
    }
}

#[test]
fn threads_call_at_once() {
    let path = Place::new("threads");
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let server = Server::create(&path, move |request, reply| {
        counted.fetch_add(1, Ordering::SeqCst);
        reply.write(request)
    })
    .unwrap();
    let client = Client::open(&path).unwrap();
    thread::scope(|scope| {
        for number in 0..4u8 {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..500 {
                    assert_eq!(client.call(&[number; 100]).unwrap(), [number; 100]);
                }
            });
        }
    });
    assert_eq!(calls.load(Ordering::SeqCst), 2000);
    drop(server);
    wait_until("the function is dropped", || Arc::strong_count(&calls) == 1);
    assert_eq!(client.call(b"x"), Err(Error::NobodyReceives));
}

#[test]
fn what_cannot_be_served_or_opened_is_told() {
    let path = Place::new("refused");
    let soon = Duration::from_millis(1);
    assert_eq!(Client::open_timeout(&path, soon).unwrap_err(), Error::Os(libc::ENOENT));
    let function = Arc::new(());
    let kept = Arc::clone(&function);
    let server = ServerOptions::new()
        .longest(10)
        .create(&path, move |_, _| {
            let _ = &kept;
            thread::sleep(LONG);
            Ok(())
        })
        .unwrap();
    let again = Arc::clone(&function);
    let refused = Server::create(&path, move |_, _| {
        let _ = &again;
        Ok(())
    });
    assert_eq!(refused.unwrap_err(), Error::Os(libc::EADDRINUSE));
    assert_eq!(Arc::strong_count(&function), 2); // that of the other has been dropped
    let client = Client::open(&path).unwrap();
    assert_eq!(client.call(&[0; 11]), Err(Error::TooLong { size: 11 }));
    assert_eq!(client.call_timeout(&[0; 10], soon), Err(Error::TimedOut));
    drop(server);
    fs::write(&path, "").unwrap();
    assert_eq!(Client::open_timeout(&path, soon).unwrap_err(), Error::Os(libc::ECONNREFUSED));
}

/// Of the descriptors that a server may have each user's clients get a quarter.
#[test]
fn a_server_that_has_too_many_clients_says_so() {
    let path = Place::new("many");
    let child = fork(|| {
        let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: what it is called with is there.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
        let _server = Server::create(&path, |_, _| {
            thread::sleep(LONG);
            Ok(())
        })
        .unwrap();
        thread::sleep(LONG);
    });
    let client = Arc::new(Client::open_timeout(&path, LONG).unwrap());
    let (sender, refused) = channel();
    // Each call in progress has a session of its own.
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let (client, sender) = (client.clone(), sender.clone());
            thread::spawn(move || sender.send(client.call_timeout(b"x", LONG)).unwrap())
        })
        .collect();
    assert_eq!(refused.recv_timeout(LONG).unwrap(), Err(Error::Os(libc::EUSERS)));
    child.signal(libc::SIGKILL);
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
    for call in calls {
        call.join().unwrap();
    }
}

#[test]
fn a_server_that_is_killed_ends_the_call() {
    let path = Place::new("killed");
    let child = fork(|| {
        let (sender, calls) = channel();
        let sender = std::sync::Mutex::new(sender);
        let _server = Server::create(&path, move |_, _| {
            sender.lock().unwrap().send(()).unwrap();
            thread::sleep(LONG);
            Ok(())
        })
        .unwrap();
        calls.recv().unwrap();
        // SAFETY: it is this process that ends.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    let client = Client::open_timeout(&path, LONG).unwrap();
    assert_eq!(client.call_timeout(b"x", LONG), Err(Error::CallFailed));
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
}
