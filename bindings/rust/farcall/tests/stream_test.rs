// SPDX-License-Identifier: Apache-2.0
//! What a stream does between two ends, in one process and in two.

use std::fs;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::io::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use farcall::{Error, Pipe, PipeOptions, Polling, Stream, WaitMode};

mod processes;
use processes::{fork, name, wait_until_asleep, LONG};

const SOON: Duration = Duration::from_millis(1);
const CAPACITY: usize = 4096;

fn small() -> (Stream, Stream) {
    PipeOptions::new().capacity(CAPACITY).stream_pair().unwrap()
}

/// Something of this size that no other place of it looks like.
fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn bytes_go_both_ways_and_have_no_boundaries() {
    let (mut here, mut there) = small();
    here.write_all(b"one").unwrap();
    here.write_all(b"two").unwrap();
    there.write_all(b"back").unwrap();
    let mut buffer = [0; 100];
    assert_eq!(there.read(&mut buffer).unwrap(), 6);
    assert_eq!(&buffer[..6], b"onetwo");
    assert_eq!(here.read(&mut buffer[..2]).unwrap(), 2);
    assert_eq!(here.read(&mut buffer[2..]).unwrap(), 2);
    assert_eq!(&buffer[..4], b"back");
    assert_eq!(here.read(&mut []).unwrap(), 0);
    assert_eq!(here.write(&[]).unwrap(), 0);
}

#[test]
fn more_than_the_capacity_goes_through_in_every_mode() {
    let all = bytes(1_000_003);
    for wait in [WaitMode::Adaptive, WaitMode::Block, WaitMode::Spin] {
        let (mut here, mut there) =
            PipeOptions::new().capacity(CAPACITY).wait(wait).stream_pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(here.write(&all).unwrap(), all.len()); // no signals here: all at once
                here.flush().unwrap();
                here.finish().unwrap();
                here.finish().unwrap();
            });
            let mut received = Vec::new();
            there.read_to_end(&mut received).unwrap();
            assert!(received == all);
            assert_eq!(there.read(&mut [0; 10]).unwrap(), 0);
        });
    }
}

#[test]
fn bytes_go_one_by_one() {
    let all = bytes(50_000);
    let (mut here, mut there) = small();
    thread::scope(|scope| {
        scope.spawn(|| {
            for byte in &all {
                here.write_all(&[*byte]).unwrap();
            }
        });
        let mut byte = [0];
        for expected in &all {
            there.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], *expected);
        }
    });
}

#[test]
fn the_standard_librarys_buffers_go_around_it() {
    let (mut here, there) = small();
    let (writer, _reader) = there.split();
    let lines = thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = BufWriter::new(writer);
            for i in 0..10_000 {
                writeln!(writer, "line {i}").unwrap();
            }
            // Dropped: flushed, and nothing follows.
        });
        let lines = BufReader::new(&mut here).lines();
        lines.map(Result::unwrap).enumerate().all(|(i, line)| line == format!("line {i}"))
    });
    assert!(lines);
}

#[test]
fn what_is_not_done_in_time_says_how_far_it_came() {
    let (mut here, mut there) = small();
    let all = bytes(10_000);
    let mut buffer = [0; 2 * CAPACITY];
    assert_eq!(here.try_read(&mut buffer), Err(Error::WouldBlock));
    assert_eq!(here.read_timeout(&mut buffer, SOON), Err(Error::TimedOut));
    let began = Instant::now();
    assert_eq!(here.write_timeout(&all, SOON), Ok(CAPACITY));
    assert!(began.elapsed() >= SOON);
    assert_eq!(here.write_timeout(&all, SOON), Err(Error::TimedOut));
    assert_eq!(here.try_write(&all), Err(Error::WouldBlock));
    assert_eq!(there.try_read(&mut buffer), Ok(CAPACITY));
    assert_eq!(buffer[..CAPACITY], all[..CAPACITY]);
    assert_eq!(here.try_write(&all[CAPACITY..]), Ok(CAPACITY));
    assert_eq!(there.read_timeout(&mut buffer, LONG), Ok(CAPACITY));
    assert_eq!(buffer[..CAPACITY], all[CAPACITY..2 * CAPACITY]);
}

#[test]
fn a_closed_end_is_the_end_one_way_and_an_error_the_other() {
    let (mut here, there) = small();
    let (mut writer, reader) = there.split();
    writer.write_all(b"last").unwrap();
    drop(writer);
    let mut text = String::new();
    here.read_to_string(&mut text).unwrap();
    assert_eq!(text, "last");
    here.write_all(b"the other way goes on").unwrap();
    drop(reader);
    assert_eq!(here.write(b"nobody").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(here.try_write(b"nobody"), Err(Error::NobodyReceives));
    here.finish().unwrap();
    assert_eq!(here.try_write(b"finished"), Err(Error::NobodyReceives));
}

#[test]
fn a_stream_is_no_pipe_and_a_pipe_is_no_stream() {
    let (_here, there) = Stream::pair().unwrap();
    assert!(matches!(Pipe::adopt(there.into_descriptors().unwrap()), Err(Error::OtherKind)));
    let (_here, there) = Pipe::pair().unwrap();
    assert!(matches!(Stream::adopt(there.into_descriptors().unwrap()), Err(Error::OtherKind)));
    assert!(matches!(Stream::adopt([]), Err(Error::Os(libc::EINVAL))));
    let (mut here, there) = small();
    let mut there = Stream::adopt(there.into_descriptors().unwrap()).unwrap();
    here.write_all(b"adopted").unwrap();
    here.finish().unwrap();
    let mut text = String::new();
    there.read_to_string(&mut text).unwrap();
    assert_eq!(text, "adopted");
    assert!(matches!(there.into_descriptors(), Err(Error::Busy)));
}

#[test]
fn parts_of_two_streams_make_none() {
    let (_one, first) = small();
    let (_other, second) = small();
    let [a, b, _, _] = first.into_descriptors().unwrap();
    let [_, _, c, d] = second.into_descriptors().unwrap();
    assert!(matches!(Stream::adopt([a, b, c, d]), Err(Error::Broken)));
}

#[test]
fn streams_have_names() {
    let name = name("stream");
    thread::scope(|scope| {
        let served = scope.spawn(|| Stream::serve(&name).unwrap());
        assert!(matches!(Pipe::open(&name), Err(Error::OtherKind)), "and it is still served");
        let mut opened = Stream::open(&name).unwrap();
        opened.write_all(b"hello").unwrap();
        let mut buffer = [0; 5];
        served.join().unwrap().read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"hello");
    });
}

fn becomes_readable(descriptor: &impl AsRawFd, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which is open.
    unsafe { libc::poll(&mut poll, 1, milliseconds) == 1 }
}

#[test]
fn both_directions_can_be_polled() {
    let (mut here, mut there) = small();
    for _ in 0..3 {
        let polling = here.halves().1.poll().unwrap().expect("nothing to read");
        assert!(!becomes_readable(&polling, 0));
        there.write_all(b"xy").unwrap();
        assert!(becomes_readable(&polling, -1));
        drop(polling);
        assert_eq!(here.try_read(&mut [0]), Ok(1));
        assert!(here.halves().1.poll().unwrap().is_none());
        assert_eq!(here.try_read(&mut [0; 5]), Ok(1));
    }
    assert!(here.halves().0.poll().unwrap().is_none());
    assert_eq!(here.try_write(&bytes(5000)), Ok(CAPACITY));
    let polling: Polling<'_, farcall::Writer> = here.halves().0.poll().unwrap().expect("no room");
    assert!(!becomes_readable(&polling, 0));
    there.read_exact(&mut [0; CAPACITY]).unwrap();
    assert!(becomes_readable(&polling, -1));
    drop(polling);
    assert_eq!(here.try_write(b"room"), Ok(4));
    // One that is forgotten ends with what is done next.
    std::mem::forget(here.halves().1.poll().unwrap());
    there.write_all(b"z").unwrap();
    assert_eq!(here.try_read(&mut [0]), Ok(1));
}

#[test]
fn a_writer_that_is_killed_is_not_the_end_of_a_stream() {
    let (mut here, there) = small();
    let mut there = Some(there);
    let child = fork(|| {
        let mut end = there.take().unwrap();
        end.write_all(b"last words").unwrap();
        // SAFETY: it is this process that ends.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    drop(there);
    let mut received = Vec::new();
    let error = here.read_to_end(&mut received).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(received, b"last words");
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
}

#[test]
fn a_reader_that_is_killed_ends_a_write() {
    let (mut here, there) = small();
    let mut there = Some(there);
    let child = fork(|| {
        let mut end = there.take().unwrap();
        end.read_exact(&mut [0; 10]).unwrap();
        loop {
            thread::sleep(LONG);
        }
    });
    drop(there);
    here.write_all(&[0; 10]).unwrap();
    let (tell, told) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let written = scope.spawn(|| {
            tell.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            here.write(&[0; 3 * CAPACITY])
        });
        child.wait_until_asleep();
        wait_until_asleep(told.recv().unwrap().to_str().unwrap());
        child.signal(libc::SIGKILL);
        let written = written.join().unwrap().unwrap();
        // It is told of what has been read in larger pieces than that.
        assert!((CAPACITY - 10..=CAPACITY).contains(&written), "{written}");
    });
    assert_eq!(here.write(b"nobody").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
}

#[test]
fn the_first_use_makes_an_end_one_processs() {
    let (mut here, mut there) = small();
    here.write_all(b"mine").unwrap();
    let child = fork(|| {
        assert_eq!(here.try_write(b"yours"), Err(Error::Busy));
        assert_eq!(here.try_read(&mut [0]), Err(Error::Busy));
        assert!(matches!(here.halves().0.poll(), Err(Error::Busy)));
    });
    assert_eq!(child.wait(), 0);
    let mut buffer = [0; 4];
    there.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"mine");
}
