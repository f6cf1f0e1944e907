// SPDX-License-Identifier: Apache-2.0
//! Pipes between processes: forked, executed, killed.

use std::env;
use std::process::Command;
use std::thread;

use farcall::{exec, Error, Pipe, PipeOptions, Subscriber};

mod processes;
use processes::{execute, fork, name, LONG};

/// Sends back what comes.
fn echo(mut end: Pipe) {
    let (sender, receiver) = end.halves();
    for message in receiver.messages() {
        sender.send(&message.unwrap()).unwrap();
    }
}

fn round_trips(end: &mut Pipe) {
    for i in 0..1000usize {
        let message = vec![i as u8; i * 7];
        end.send_timeout(&message, LONG).unwrap();
        assert_eq!(end.recv_timeout(LONG).unwrap(), message);
    }
}

#[test]
fn an_end_goes_over_a_fork() {
    let (mut here, there) = PipeOptions::new().capacity(4096).pair().unwrap();
    let mut there = Some(there);
    let child = fork(|| echo(there.take().unwrap()));
    drop(there);
    round_trips(&mut here);
    here.finish().unwrap();
    assert_eq!(here.recv(), Err(Error::Finished));
    assert_eq!(child.wait(), 0);
}

/// This test once more, in a process of its own, where VARIABLE says what it has been given.
fn this_test(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--test-threads=1"]);
    command
}

#[test]
fn an_end_goes_to_a_program() {
    if env::var_os("FARCALL_TEST_PIPE").is_some() {
        // SAFETY: they were given to this process, and are taken once.
        return echo(Pipe::adopt(unsafe { exec::take("FARCALL_TEST_PIPE") }.unwrap()).unwrap());
    }
    let (mut here, there) = Pipe::pair().unwrap();
    let mut command = this_test("an_end_goes_to_a_program");
    exec::give(&mut command, "FARCALL_TEST_PIPE", there.into_descriptors().unwrap());
    let child = execute(&mut command);
    drop(command);
    round_trips(&mut here);
    drop(here);
    child.said();
}

#[test]
fn an_invitation_goes_to_a_program() {
    if env::var_os("FARCALL_TEST_INVITATION").is_some() {
        // SAFETY: it was given to this process, and is taken once.
        let invitation = unsafe { exec::take("FARCALL_TEST_INVITATION") }.unwrap().remove(0);
        let mut reader = Subscriber::adopt(invitation).unwrap();
        assert_eq!(reader.recv_timeout(LONG).unwrap(), b"hello");
        return;
    }
    let mut publisher = farcall::PublisherOptions::new().create_unnamed().unwrap();
    let mut command = this_test("an_invitation_goes_to_a_program");
    exec::give(&mut command, "FARCALL_TEST_INVITATION", [publisher.invite().unwrap()]);
    publisher.send(b"hello").unwrap();
    execute(&mut command).said();
}

#[test]
fn what_was_not_given_is_not_taken() {
    // SAFETY: nothing comes of it.
    unsafe {
        assert_eq!(exec::take("FARCALL_TEST_NOTHING").unwrap_err(), Error::Os(libc::EBADF));
        env::set_var("FARCALL_TEST_NOTHING", "1,x");
        assert_eq!(exec::take("FARCALL_TEST_NOTHING").unwrap_err(), Error::Os(libc::EBADF));
        env::set_var("FARCALL_TEST_NOTHING", "1000");
        assert_eq!(exec::take("FARCALL_TEST_NOTHING").unwrap_err(), Error::Os(libc::EBADF));
    }
}

#[test]
fn a_program_inherits_nothing_that_it_was_not_given() {
    let (mut here, _there) = Pipe::pair().unwrap();
    here.send(b"x").unwrap();
    let (_, other) = Pipe::pair().unwrap();
    let _descriptors = other.into_descriptors().unwrap();
    let mut list = Command::new("sh");
    let said = execute(list.args(["-c", "ls -l /proc/self/fd"])).said();
    assert!(!said.contains("farcall"), "{said}");
    // Its own folder, standard streams, and what ls itself opens.
    assert!(
        said.lines().filter(|line| line.contains("->")).all(|line| !line.contains("memfd")),
        "{said}"
    );
}

#[test]
fn a_peer_that_is_killed_while_this_end_waits_is_told() {
    for receives in [true, false] {
        let (mut here, there) = PipeOptions::new().capacity(4096).pair().unwrap();
        let mut there = Some(there);
        let child = fork(|| {
            let mut end = there.take().unwrap();
            end.send(b"ready").unwrap();
            thread::sleep(LONG);
        });
        drop(there);
        assert_eq!(here.recv_timeout(LONG).unwrap(), b"ready");
        let killer = thread::spawn(move || {
            child.wait_until_asleep();
            child.signal(libc::SIGKILL);
            child.wait()
        });
        if receives {
            assert_eq!(here.recv(), Err(Error::PeerDied));
        } else {
            let error = (0..10_000).find_map(|_| here.send(&[0; 100]).err());
            assert_eq!(error, Some(Error::NobodyReceives));
        }
        assert_eq!(killer.join().unwrap(), 128 + libc::SIGKILL);
    }
}

#[test]
fn an_end_that_is_used_is_not_its_childs() {
    let (mut here, mut there) = Pipe::pair().unwrap();
    here.send(b"x").unwrap();
    assert_eq!(there.recv().unwrap(), b"x");
    let child = fork(|| {
        assert_eq!(here.send(b"y"), Err(Error::Busy));
        assert_eq!(here.recv(), Err(Error::Busy));
        assert_eq!(here.finish(), Err(Error::Busy));
        let (sender, receiver) = std::mem::replace(&mut here, Pipe::pair().unwrap().0).split();
        drop(receiver);
        drop(sender); // neither of them tells the other end anything
    });
    assert_eq!(child.wait(), 0);
    assert_eq!(there.try_recv(), Err(Error::WouldBlock));
    here.send(b"z").unwrap();
    assert_eq!(there.recv().unwrap(), b"z");
}

#[test]
fn dropping_the_halves_of_an_unused_end_does_not_take_it_from_others() {
    let (here, mut there) = Pipe::pair().unwrap();
    let mut halves = Some(here.split());
    let child = fork(|| drop(halves.take()));
    assert_eq!(child.wait(), 0);
    let (mut sender, mut receiver) = halves.take().unwrap();
    sender.send(b"x").unwrap();
    assert_eq!(there.recv_timeout(LONG).unwrap(), b"x");
    there.send(b"y").unwrap();
    assert_eq!(receiver.recv_timeout(LONG).unwrap(), b"y");
}

#[test]
fn a_sender_that_is_dropped_unused_after_a_fork_finishes_once_the_receiver_is_used() {
    let (here, mut there) = Pipe::pair().unwrap();
    let (sender, mut receiver) = here.split();
    assert_eq!(fork(|| ()).wait(), 0);
    drop(sender);
    there.send(b"x").unwrap();
    assert_eq!(receiver.recv_timeout(LONG).unwrap(), b"x");
    assert_eq!(there.recv_timeout(LONG), Err(Error::Finished));
}

#[test]
fn strangers_meet_by_a_name() {
    let name = name("strangers");
    let child = fork(|| echo(PipeOptions::new().timeout(LONG).serve(&name).unwrap()));
    let mut end = PipeOptions::new().timeout(LONG).open(&name).unwrap();
    round_trips(&mut end);
    drop(end);
    assert_eq!(child.wait(), 0);
}
