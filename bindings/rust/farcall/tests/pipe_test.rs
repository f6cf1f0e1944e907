// SPDX-License-Identifier: Apache-2.0
//! What a pipe does between two ends in one process.

use std::mem::MaybeUninit;
use std::thread;
use std::time::Duration;

use farcall::{Error, Pipe, PipeOptions, Stream, WaitMode};

const SOON: Duration = Duration::from_millis(1);

fn small() -> (Pipe, Pipe) {
    PipeOptions::new().capacity(4096).pair().unwrap()
}

/// Something of this size that no other place of it looks like.
fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn messages_of_any_size_arrive_whole_both_ways() {
    let (mut here, mut there) = small();
    for size in [0, 1, 56, 57, 255, 256, 257, 1024, 1025, 4096, 100_000] {
        let message = bytes(size);
        thread::scope(|scope| {
            let echo = scope.spawn(|| {
                let message = there.recv().unwrap();
                there.send(&message).unwrap();
            });
            here.send(&message).unwrap();
            assert_eq!(here.recv().unwrap(), message);
            echo.join().unwrap();
        });
    }
}

#[test]
fn each_way_to_wait_waits() {
    for mode in [WaitMode::Adaptive, WaitMode::Spin, WaitMode::Block] {
        let (mut here, mut there) = PipeOptions::new().wait(mode).pair().unwrap();
        let echo = thread::spawn(move || {
            let (sender, receiver) = there.halves();
            for message in receiver.messages() {
                sender.send(&message.unwrap()).unwrap();
            }
        });
        for i in 0..100u32 {
            here.send(&i.to_le_bytes()).unwrap();
            assert_eq!(here.recv().unwrap(), i.to_le_bytes());
        }
        here.finish().unwrap();
        assert_eq!(here.recv(), Err(Error::Finished));
        echo.join().unwrap();
    }
}

#[test]
fn nothing_that_is_there_and_no_room_are_told() {
    let (mut here, mut there) = small();
    assert_eq!(here.try_recv(), Err(Error::WouldBlock));
    assert_eq!(here.recv_timeout(SOON), Err(Error::TimedOut));
    assert_eq!(here.recv_timeout(Duration::ZERO), Err(Error::TimedOut));
    let mut sent = 0;
    while there.try_send(&[0; 100]).is_ok() {
        sent += 1;
        assert!(sent < 4096);
    }
    assert_eq!(there.try_send(&[0; 100]), Err(Error::WouldBlock));
    assert_eq!(there.send_timeout(&[0; 100], SOON), Err(Error::TimedOut));
    for _ in 0..sent {
        assert_eq!(here.try_recv().unwrap(), [0; 100]);
    }
    assert_eq!(here.try_recv(), Err(Error::WouldBlock));
    there.send_timeout(&[1; 100], Duration::MAX).unwrap();
    assert_eq!(here.recv_timeout(Duration::MAX).unwrap(), [1; 100]);
}

#[test]
fn what_does_not_fit_is_still_there() {
    let (mut here, mut there) = small();
    here.send(b"hello").unwrap();
    let mut buffer = [0; 4];
    for _ in 0..2 {
        assert_eq!(there.recv_into(&mut buffer), Err(Error::TooLong { size: 5 }));
        assert_eq!(there.recv_into(&mut buffer[..0]), Err(Error::TooLong { size: 5 }));
    }
    let mut enough = [MaybeUninit::uninit(); 5];
    assert_eq!(there.recv_into(&mut enough), Ok(5));
    // SAFETY: all of it has been written.
    assert_eq!(&enough.map(|byte| unsafe { byte.assume_init() }), b"hello");
}

#[test]
fn a_vector_is_used_again() {
    let (mut here, mut there) = small();
    let mut message = Vec::new();
    for size in [10, 2000, 0, 300] {
        thread::scope(|scope| {
            scope.spawn(|| here.send(&bytes(size)).unwrap());
            assert_eq!(there.recv_into_timeout(&mut message, Duration::from_secs(60)), Ok(size));
        });
        assert_eq!(message, bytes(size));
    }
    assert!(message.capacity() >= 2000);
    assert_eq!(there.try_recv_into(&mut message), Err(Error::WouldBlock));
    assert!(message.is_empty());
}

#[test]
fn a_long_message_goes_on_where_it_stopped() {
    let (mut here, mut there) = small();
    let message = bytes(50_000);
    let mut received = Vec::new();
    let mut sent = false;
    for _ in 0..1000 {
        if !sent {
            match here.try_send(&message) {
                Ok(()) => sent = true,
                Err(error) => assert_eq!(error, Error::WouldBlock),
            }
        }
        match there.try_recv_into(&mut received) {
            Ok(_) => break,
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
        if !sent {
            assert_eq!(here.try_send(b"another one"), Err(Error::Os(libc::EINVAL)));
        }
    }
    assert!(sent);
    assert_eq!(received, message);
}

#[test]
fn long_messages_of_one_size_are_not_mixed() {
    let (mut here, mut there) = small();
    let mut message = vec![b'A'; 8000];
    assert_eq!(here.try_send(&message), Err(Error::WouldBlock));
    message.fill(b'B');
    assert_eq!(here.send(&message), Err(Error::Os(libc::EINVAL)));
    thread::scope(|scope| {
        let received = scope.spawn(|| there.recv());
        here.send(&[b'A'; 8000]).unwrap();
        assert_eq!(received.join().unwrap().unwrap(), [b'A'; 8000]);
    });
}

#[test]
fn an_end_that_is_dropped_ends_the_other() {
    let (mut here, there) = small();
    here.send(b"to nobody").unwrap();
    drop(there);
    assert_eq!(here.recv(), Err(Error::Finished));
    assert_eq!(here.send(b""), Err(Error::NobodyReceives));
    assert_eq!(here.messages().count(), 0);
}

#[test]
fn what_has_been_sent_is_received_after_the_end() {
    let (mut here, mut there) = small();
    for i in 0..5 {
        here.send(&[i]).unwrap();
    }
    here.finish().unwrap();
    here.finish().unwrap();
    assert_eq!(here.send(b""), Err(Error::NobodyReceives));
    let all: Vec<_> = there.messages().map(Result::unwrap).collect();
    assert_eq!(all, [[0], [1], [2], [3], [4]]);
    there.send(b"the other direction is open").unwrap();
    assert!(here.recv().is_ok());
}

#[test]
fn halves_go_their_own_ways() {
    let (here, there) = small();
    let (mut sender, mut receiver) = here.split();
    let (mut back, mut forth) = there.split();
    let answers = thread::spawn(move || {
        (0..1000).all(|i: u32| receiver.recv().unwrap() == i.to_le_bytes())
            && receiver.recv() == Err(Error::Finished)
    });
    let echo = thread::spawn(move || {
        for message in forth.messages() {
            back.send(&message.unwrap()).unwrap();
        } // back is dropped: nothing follows
    });
    for i in 0..1000u32 {
        sender.send(&i.to_le_bytes()).unwrap();
    }
    drop(sender);
    echo.join().unwrap();
    assert!(answers.join().unwrap());
}

#[test]
fn an_end_that_was_used_cannot_be_passed_on() {
    let (mut here, there) = small();
    here.send(b"x").unwrap();
    assert_eq!(here.into_descriptors().unwrap_err(), Error::Busy);
    let descriptors = there.into_descriptors().unwrap();
    let again: Vec<_> = descriptors.iter().map(|fd| fd.try_clone().unwrap()).collect();
    let (mut one, mut other) = (Pipe::adopt(descriptors).unwrap(), Pipe::adopt(again).unwrap());
    assert_eq!(one.recv().unwrap(), b"x");
    assert_eq!(other.recv(), Err(Error::Busy)); // the first to use it has it
}

/// Safe code may swap the senders of two ends, and each of them then has a half of the other.
#[test]
fn an_end_of_halves_of_two_cannot_be_passed_on() {
    let ((mut one, _), (mut other, _)) = (small(), small());
    std::mem::swap(one.halves().0, other.halves().0);
    assert_eq!(one.into_descriptors().unwrap_err(), Error::Busy);
    assert_eq!(other.into_descriptors().unwrap_err(), Error::Busy);
    let ((mut one, _), (mut other, _)) = (Stream::pair().unwrap(), Stream::pair().unwrap());
    std::mem::swap(one.halves().1, other.halves().1);
    assert_eq!(one.into_descriptors().unwrap_err(), Error::Busy);
    assert_eq!(other.into_descriptors().unwrap_err(), Error::Busy);
}

#[test]
fn what_is_no_end_is_refused() {
    let (_, there) = small();
    let three = there.into_descriptors().unwrap().into_iter().take(3);
    assert_eq!(Pipe::adopt(three).unwrap_err(), Error::Os(libc::EINVAL));
    let files = (0..4).map(|_| std::fs::File::open("/dev/null").unwrap().into());
    assert_eq!(Pipe::adopt(files).unwrap_err(), Error::Broken);
    let (_, large) = PipeOptions::new().capacity(1 << 20).pair().unwrap();
    let descriptors = large.into_descriptors().unwrap();
    assert_eq!(PipeOptions::new().capacity(4096).adopt(descriptors).unwrap_err(), Error::Broken);
    assert_eq!(PipeOptions::new().capacity(usize::MAX).pair().unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn names() {
    let name = format!("farcall-rust-{}", std::process::id());
    let nobody = PipeOptions::new().timeout(SOON).open(&name);
    assert_eq!(nobody.unwrap_err(), Error::Os(libc::ECONNREFUSED));
    assert_eq!(PipeOptions::new().timeout(SOON).serve(&name).unwrap_err(), Error::TimedOut);
    assert_eq!(Pipe::open("a\0b").unwrap_err(), Error::Os(libc::EINVAL));
    thread::scope(|scope| {
        let served = scope.spawn(|| Pipe::serve(&name).unwrap());
        let mut opened = Pipe::open(&name).unwrap();
        opened.send(b"hello").unwrap();
        assert_eq!(served.join().unwrap().recv().unwrap(), b"hello");
    });
}

#[test]
fn what_may_go_to_another_thread_and_what_may_be_shared() {
    fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<Pipe>();
    send_and_sync::<farcall::Sender>();
    send_and_sync::<farcall::Receiver>();
    send_and_sync::<farcall::Stream>();
    send_and_sync::<farcall::Reader>();
    send_and_sync::<farcall::Writer>();
    send_and_sync::<Error>();
}
