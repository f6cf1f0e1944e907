// SPDX-License-Identifier: Apache-2.0
//! Broadcasts: one writer, many readers, each at its own pace.

use std::thread;
use std::time::Duration;

use farcall::{Error, Policy, Publisher, PublisherOptions, Start, Subscriber, SubscriberOptions};

mod processes;
use processes::{fork, name, wait_until, LONG};

const SOON: Duration = Duration::from_millis(1);

fn small(policy: Policy) -> (Publisher, Subscriber) {
    let publisher = PublisherOptions::new().capacity(4096).policy(policy).create_unnamed().unwrap();
    let invitation = publisher.invite().unwrap();
    (publisher, Subscriber::adopt(invitation).unwrap())
}

#[test]
fn every_reader_gets_every_message() {
    let name = name("every");
    let mut publisher = Publisher::create(&name).unwrap();
    let mut readers: Vec<_> = (0..5).map(|_| Subscriber::open(&name).unwrap()).collect();
    assert_eq!(publisher.readers(), 5);
    for i in 0..50u8 {
        publisher.send(&vec![i; usize::from(i)]).unwrap();
    }
    readers.pop();
    wait_until("one has gone", || publisher.readers() == 4);
    drop(publisher);
    for reader in &mut readers {
        for (i, message) in reader.messages().enumerate() {
            assert_eq!(message.unwrap(), vec![i as u8; i]);
        }
        assert_eq!(reader.recv(), Err(Error::Finished));
        assert_eq!(reader.missed(), 0);
    }
}

#[test]
fn a_slow_reader_learns_how_many_it_missed() {
    let (mut publisher, mut reader) = small(Policy::Overwrite);
    for i in 0..1000u64 {
        publisher.try_send(&i.to_le_bytes()).unwrap();
    }
    let mut number = [0; 8];
    reader.recv_into(&mut number).unwrap();
    let first = u64::from_le_bytes(number);
    assert!(first > 0);
    assert_eq!((reader.just_missed(), reader.missed()), (first, first));
    for i in first + 1..1000 {
        assert_eq!(reader.try_recv_into(&mut number), Ok(8));
        assert_eq!(u64::from_le_bytes(number), i);
        assert_eq!((reader.just_missed(), reader.missed()), (0, first));
    }
    assert_eq!(reader.try_recv(), Err(Error::WouldBlock));
}

#[test]
fn a_writer_that_blocks_waits_for_its_readers() {
    let (mut publisher, mut reader) = small(Policy::Block);
    let mut sent = 0;
    while publisher.try_send(&[7; 100]).is_ok() {
        sent += 1;
        assert!(sent < 4096);
    }
    assert_eq!(publisher.try_send(&[7; 100]), Err(Error::WouldBlock));
    assert_eq!(publisher.send_timeout(&[7; 100], SOON), Err(Error::TimedOut));
    thread::scope(|scope| {
        scope.spawn(|| publisher.send(&[8; 100]).unwrap());
        for _ in 0..sent {
            assert_eq!(reader.recv_timeout(LONG).unwrap(), [7; 100]);
        }
        assert_eq!(reader.recv_timeout(LONG).unwrap(), [8; 100]);
    });
    assert_eq!(reader.missed(), 0);
}

#[test]
fn a_slow_reader_is_dropped() {
    let (mut publisher, mut reader) = small(Policy::DropReader);
    for _ in 0..1000 {
        publisher.send(&[0; 100]).unwrap();
    }
    assert_eq!(reader.messages().last(), Some(Err(Error::Dropped)));
    assert_eq!(reader.recv(), Err(Error::Dropped));
    wait_until("the writer has no reader", || publisher.readers() == 0);
}

#[test]
fn a_reader_begins_with_the_oldest_or_the_newest() {
    let name = name("begins");
    let mut publisher = Publisher::create(&name).unwrap();
    publisher.send(b"old").unwrap();
    let mut oldest = SubscriberOptions::new().start(Start::Oldest).open(&name).unwrap();
    let mut newest = Subscriber::open(&name).unwrap();
    publisher.send(b"new").unwrap();
    assert_eq!(oldest.recv().unwrap(), b"old");
    assert_eq!(oldest.recv().unwrap(), b"new");
    assert_eq!(newest.recv().unwrap(), b"new");
}

#[test]
fn what_is_too_long_is_told() {
    let (mut publisher, mut reader) = small(Policy::Overwrite);
    let size = publisher.longest();
    publisher.send(&vec![1; size]).unwrap();
    assert_eq!(publisher.send(&vec![1; size + 1]), Err(Error::TooLong { size: size + 1 }));
    assert_eq!(reader.recv_into(&mut [0; 10]), Err(Error::TooLong { size }));
    assert_eq!(reader.recv().unwrap(), vec![1; size]);
}

#[test]
fn names_and_readers_are_limited() {
    let name = name("limits");
    let missing = SubscriberOptions::new().timeout(SOON).open(&name);
    assert_eq!(missing.unwrap_err(), Error::Os(libc::ECONNREFUSED));
    let publisher = PublisherOptions::new().readers(1).create(&name).unwrap();
    assert_eq!(Publisher::create(&name).unwrap_err(), Error::Os(libc::EADDRINUSE));
    let _reader = Subscriber::open(&name).unwrap();
    assert_eq!(publisher.invite().unwrap_err(), Error::Os(libc::EUSERS));
    assert_eq!(Subscriber::open(&name).unwrap_err(), Error::Os(libc::EUSERS));
    assert_eq!(
        PublisherOptions::new().readers(65).create_unnamed().unwrap_err().errno(),
        libc::EINVAL
    );
    let file = std::fs::File::open("/dev/null").unwrap().into();
    assert_eq!(Subscriber::adopt(file).unwrap_err(), Error::Broken);
}

#[test]
#[allow(clippy::needless_collect)] // all threads begin before one of them is waited for
fn threads_invite_and_count_at_once() {
    let mut publisher = PublisherOptions::new().policy(Policy::Overwrite).create_unnamed().unwrap();
    let mut readers: Vec<_> = thread::scope(|scope| {
        let inviting: Vec<_> = (0..4)
            .map(|_| {
                let publisher = &publisher;
                scope.spawn(move || {
                    let readers: Vec<_> = (0..8)
                        .map(|_| Subscriber::adopt(publisher.invite().unwrap()).unwrap())
                        .collect();
                    assert!(publisher.readers() >= 8);
                    readers
                })
            })
            .collect();
        inviting.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(readers.len(), 32);
    thread::scope(|scope| {
        scope.spawn(|| publisher.send(b"to all").unwrap());
        for reader in &mut readers {
            assert_eq!(reader.recv_timeout(LONG).unwrap(), b"to all");
        }
    });
}

#[test]
fn a_writer_that_is_killed_ends_its_readers() {
    let name = name("killed");
    let writer = fork(|| {
        let mut publisher = Publisher::create(&name).unwrap();
        wait_until("there is a reader", || publisher.readers() == 1);
        publisher.send(b"last words").unwrap();
        thread::sleep(LONG);
    });
    let mut reader = SubscriberOptions::new().timeout(LONG).open(&name).unwrap();
    assert_eq!(reader.recv_timeout(LONG).unwrap(), b"last words");
    writer.signal(libc::SIGKILL);
    assert_eq!(reader.recv_timeout(LONG), Err(Error::PeerDied));
    assert_eq!(writer.wait(), 128 + libc::SIGKILL);
}

#[test]
fn a_reader_that_is_killed_does_not_hold_up_the_writer() {
    let (mut publisher, mut reader) = small(Policy::Block);
    drop(Subscriber::adopt(publisher.invite().unwrap()).unwrap());
    let invitation = publisher.invite().unwrap();
    let child = fork(|| {
        let mut mine = Subscriber::adopt(invitation.try_clone().unwrap()).unwrap();
        mine.recv().unwrap();
        thread::sleep(LONG);
    });
    drop(invitation);
    publisher.send(b"first").unwrap();
    child.wait_until_asleep();
    child.signal(libc::SIGKILL);
    child.wait();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(reader.messages().filter(Result::is_ok).count(), 1001));
        for _ in 0..1000 {
            publisher.send_timeout(&[0; 100], LONG).unwrap();
        }
        drop(publisher);
    });
}

#[test]
fn neither_is_used_in_a_forked_child() {
    let (mut publisher, mut reader) = small(Policy::Overwrite);
    publisher.send(b"x").unwrap();
    let child = fork(|| {
        assert_eq!(publisher.send(b"y"), Err(Error::Busy));
        assert_eq!(publisher.invite().unwrap_err(), Error::Busy);
        assert_eq!(reader.recv(), Err(Error::Busy));
        assert_eq!(reader.poll().unwrap_err(), Error::Busy);
        drop(std::mem::replace(&mut reader, small(Policy::Block).1));
        drop(std::mem::replace(&mut publisher, small(Policy::Block).0));
    });
    assert_eq!(child.wait(), 0);
    assert_eq!(reader.recv().unwrap(), b"x");
    publisher.send(b"z").unwrap();
    assert_eq!(reader.recv().unwrap(), b"z");
}
