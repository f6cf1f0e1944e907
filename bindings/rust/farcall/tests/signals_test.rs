// SPDX-License-Identifier: Apache-2.0
//! Every wait ends with a signal whose handler tells of it.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use farcall::{
    Error, Pipe, PipeOptions, Policy, Publisher, PublisherOptions, Stream, Subscriber, WaitMode,
};

mod processes;
use processes::{fork, name, LONG};

static CAUGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn caught(_: libc::c_int) {
    farcall::note_signal();
    CAUGHT.fetch_add(1, Ordering::SeqCst);
}

fn catch(signal: libc::c_int) {
    let handler = caught as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler may be called at any time.
    assert_ne!(unsafe { libc::signal(signal, handler) }, libc::SIG_ERR);
}

fn full(wait: WaitMode) -> (Pipe, Pipe) {
    let (mut here, there) = PipeOptions::new().capacity(4096).wait(wait).pair().unwrap();
    let sent = (0..4096).take_while(|_| here.try_send(&[0; 100]).is_ok()).count();
    assert!(sent < 4096);
    (here, there)
}

/// A child that sleeps in `wait` until it gets a signal.
fn interrupted(wait: impl FnOnce() -> Result<(), Error>) {
    let child = fork(|| {
        catch(libc::SIGINT);
        CAUGHT.store(0, Ordering::SeqCst);
        assert_eq!(wait(), Err(Error::Interrupted));
        assert_eq!(CAUGHT.load(Ordering::SeqCst), 1);
    });
    child.wait_until_asleep();
    thread::sleep(Duration::from_millis(20)); // asleep in the wait, and not on the way there
    child.signal(libc::SIGINT);
    assert_eq!(child.wait(), 0);
}

#[test]
fn who_receives_is_interrupted() {
    for wait in [WaitMode::Adaptive, WaitMode::Block] {
        interrupted(|| full(wait).0.recv().map(drop));
        interrupted(|| full(wait).0.recv_timeout(LONG).map(drop));
    }
}

#[test]
fn who_sends_is_interrupted() {
    for wait in [WaitMode::Adaptive, WaitMode::Block] {
        interrupted(|| {
            let (mut here, _there) = full(wait);
            here.send(&[0; 100])
        });
        interrupted(|| {
            let (mut here, _there) = full(wait);
            here.send(&[0; 100_000])
        });
    }
}

#[test]
fn who_waits_for_a_name_is_interrupted() {
    interrupted(|| Pipe::serve(&name("nobody-opens")).map(drop));
    interrupted(|| Pipe::open(&name("nobody-serves")).map(drop));
    interrupted(|| Subscriber::open(&name("nobody-publishes")).map(drop));
}

#[test]
fn who_publishes_and_who_subscribes_is_interrupted() {
    interrupted(|| {
        let mut publisher =
            PublisherOptions::new().capacity(4096).policy(Policy::Block).create_unnamed().unwrap();
        let _reader = Subscriber::adopt(publisher.invite().unwrap()).unwrap();
        (0..4096).find_map(|_| publisher.send(&[0; 100]).err()).map_or(Ok(()), Err)
    });
    interrupted(|| {
        let name = name("subscribes");
        let _publisher = Publisher::create(&name).unwrap();
        Subscriber::open(&name).unwrap().recv().map(drop)
    });
}

#[test]
fn who_reads_is_interrupted() {
    interrupted(|| {
        let (mut here, _there) = Stream::pair().unwrap();
        let error = here.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        Err(Error::Interrupted)
    });
}

#[test]
fn who_writes_is_interrupted_and_learns_how_far_it_came() {
    interrupted(|| {
        let (mut here, mut there) = PipeOptions::new().capacity(4096).stream_pair().unwrap();
        assert_eq!(here.write(&[7; 10_000]).unwrap(), 4096); // here the signal comes
        assert_eq!(CAUGHT.load(Ordering::SeqCst), 1);
        there.read_exact(&mut [0; 4096]).unwrap();
        assert_eq!(there.try_read(&mut [0]), Err(Error::WouldBlock));
        Err(Error::Interrupted)
    });
}

#[test]
fn all_bytes_come_through_many_signals() {
    catch(libc::SIGUSR1);
    let (mut here, mut there) = PipeOptions::new().capacity(4096).stream_pair().unwrap();
    let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i / 3) as u8).collect();
    let working = AtomicBool::new(true);
    thread::scope(|scope| {
        // SAFETY: it is this thread.
        let reads = unsafe { libc::pthread_self() };
        let (bytes, working) = (&bytes, &working);
        let writes = scope.spawn(move || {
            here.write_all(bytes).unwrap(); // goes on by itself
            here.finish().unwrap();
        });
        scope.spawn(move || {
            while working.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_micros(20));
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(reads, libc::SIGUSR1) };
            }
        });
        let mut received = Vec::new();
        there.read_to_end(&mut received).unwrap();
        working.store(false, Ordering::SeqCst);
        assert!(received == *bytes);
        writes.join().unwrap();
    });
}

#[test]
fn who_is_not_told_of_signals_dies_of_them() {
    let child = fork(|| {
        let (mut here, _there) = Pipe::pair().unwrap();
        let _ = here.recv();
    });
    child.wait_until_asleep();
    child.signal(libc::SIGINT);
    assert_eq!(child.wait(), 128 + libc::SIGINT);
}

#[test]
fn a_signal_at_any_moment_of_a_wait_ends_it() {
    catch(libc::SIGUSR1);
    for wait in [WaitMode::Adaptive, WaitMode::Block, WaitMode::Spin] {
        let (mut here, mut there) = full(wait);
        for i in 0..200u64 {
            let waits = AtomicBool::new(true);
            // SAFETY: it is this thread.
            let thread = unsafe { libc::pthread_self() };
            thread::scope(|scope| {
                let signals = scope.spawn(|| {
                    let mut sent = 0;
                    while waits.load(Ordering::SeqCst) {
                        thread::sleep(Duration::from_micros(i * 3));
                        // SAFETY: the thread waits for this one.
                        unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                        sent += 1;
                    }
                    sent
                });
                let error = if i % 2 == 0 { here.send(&[0; 100]) } else { here.recv().map(drop) };
                waits.store(false, Ordering::SeqCst);
                assert_eq!(error, Err(Error::Interrupted));
                assert!(signals.join().unwrap() > 0);
            });
        }
        assert_eq!(there.recv().unwrap(), [0; 100]);
    }
}

#[test]
fn a_long_message_goes_on_after_a_signal() {
    catch(libc::SIGUSR1);
    let (mut here, mut there) = PipeOptions::new().capacity(4096).pair().unwrap();
    let message: Vec<u8> = (0..200_000u32).map(|i| (i / 3) as u8).collect();
    let working = AtomicBool::new(true);
    thread::scope(|scope| {
        // SAFETY: it is this thread.
        let receives = unsafe { libc::pthread_self() };
        let sends = scope.spawn(|| {
            for _ in 0..1_000_000 {
                match here.send(&message) {
                    Err(Error::Interrupted) => {}
                    done => return done,
                }
            }
            Err(Error::TimedOut)
        });
        let working = &working;
        scope.spawn(move || {
            while working.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_micros(20));
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(receives, libc::SIGUSR1) };
            }
        });
        let received = (0..1_000_000).find_map(|_| match there.recv() {
            Err(Error::Interrupted) => None,
            done => Some(done),
        });
        working.store(false, Ordering::SeqCst);
        assert_eq!(received.unwrap().unwrap(), message);
        assert_eq!(sends.join().unwrap(), Ok(()));
    });
}
