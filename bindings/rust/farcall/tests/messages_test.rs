// SPDX-License-Identifier: Apache-2.0
//! Messages that are sent, received and answered.
#![cfg(feature = "messages")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use farcall::messages::{Channel, ChannelOptions, Connection, Pulse, Received};
use farcall::Error;

mod processes;
use processes::{fork, message, name, LONG};

#[test]
fn messages_of_any_size_are_answered() {
    let name = name("sizes");
    let channel = Channel::attach(&name).unwrap();
    let child = fork(|| {
        let connection = Connection::open(&name).unwrap();
        for size in [0, 1, 16383, 16384, 16385, 1_000_000] {
            let mut reply = vec![0; size];
            let replied = connection.send_timeout(&vec![7; size], &mut reply, LONG).unwrap();
            assert_eq!((replied.status, replied.size), (5, size));
            assert!(reply == vec![7; size]);
        }
    });
    for _ in 0..6 {
        let message = message(&channel);
        assert!(message.origin().process.is_some());
        let data = message.data().to_vec();
        message.reply(5, &data).unwrap();
    }
    assert_eq!(child.wait(), 0);
}

#[test]
fn what_is_dropped_or_refused_hangs_nobody() {
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let client = thread::spawn(move || {
        [(); 3].map(|()| connection.send_timeout(b"x", &mut [], LONG).unwrap_err())
    });
    drop(message(&channel));
    message(&channel).error(Error::Os(libc::EIO)).unwrap();
    assert_eq!(message(&channel).reply(-1, b""), Err(Error::Os(libc::EINVAL)));
    assert_eq!(
        client.join().unwrap(),
        [Error::CallFailed, Error::Os(libc::EIO), Error::CallFailed]
    );
}

#[test]
fn pulses_and_the_end_of_a_connection_are_told() {
    let channel = Channel::new().unwrap();
    assert_eq!(channel.try_receive().unwrap_err(), Error::WouldBlock);
    let soon = channel.receive_timeout(Duration::from_millis(1));
    assert_eq!(soon.unwrap_err(), Error::TimedOut);
    let connection = channel.connect().unwrap();
    connection.pulse(1, 3, -5).unwrap();
    connection.pulse(2, 4, 6).unwrap();
    let pulse = || match channel.receive_timeout(LONG).unwrap() {
        Received::Pulse(pulse) => (pulse.origin.priority, pulse.code, pulse.value),
        other => panic!("{other:?}"),
    };
    // The less urgent may have arrived, and be received, before the other.
    let mut pulses = [pulse(), pulse()];
    pulses.sort_unstable();
    assert_eq!(pulses, [(1, 3, -5), (2, 4, 6)]);
    drop(connection);
    assert_eq!(pulse().1, Pulse::DISCONNECT);
}

#[test]
fn a_server_that_is_killed_ends_the_wait() {
    let name = name("killed");
    let child = fork(|| {
        let channel = Channel::attach(&name).unwrap();
        let _kept = message(&channel);
        // SAFETY: it is this process that ends.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    let mut connection = Connection::open(&name);
    processes::wait_until("it serves", || {
        if connection.is_err() {
            connection = Connection::open(&name);
        }
        connection.is_ok()
    });
    let sent = connection.unwrap().send_timeout(b"x", &mut [], LONG);
    assert_eq!(sent, Err(Error::Gone));
    assert_eq!(child.wait(), 128 + libc::SIGKILL);
}

#[test]
fn a_child_has_no_channels_of_its_parent() {
    let channel = Channel::new().unwrap();
    let child = fork(|| assert_eq!(channel.try_receive().unwrap_err(), Error::Busy));
    assert_eq!(child.wait(), 0);
    assert_eq!(channel.try_receive().unwrap_err(), Error::WouldBlock);
}

#[test]
fn its_descriptor_is_readable_when_there_is_something() {
    use std::os::unix::io::AsRawFd;
    let channel = Channel::new().unwrap();
    let mut poll = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: there is one.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0);
    channel.connect().unwrap().pulse(0, 1, 0).unwrap();
    // SAFETY: there is one.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1);
    assert!(channel.try_receive().is_ok());
}

#[test]
fn ten_thousand_connections_leave_nothing() {
    let held = || fs::read_dir("/proc/self/fd").unwrap().count();
    let channel = Channel::new().unwrap();
    let round = || {
        channel.connect().unwrap().pulse(0, 1, 0).unwrap();
        for _ in 0..2 {
            assert!(matches!(channel.receive_timeout(LONG).unwrap(), Received::Pulse(_)));
        }
    };
    (0..50).for_each(|_| round());
    let before = held();
    (0..10_000).for_each(|_| round());
    processes::wait_until("all are closed", || held() <= before);
}

#[test]
fn who_sends_is_known() {
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let client = thread::spawn(move || {
        // SAFETY: they take nothing.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        connection.send_timeout(b"x", &mut [], LONG).unwrap();
        connection.send_one_way_timeout(b"y", LONG).unwrap();
        thread
    });
    let message = message(&channel);
    let origin = *message.origin();
    assert_ne!(message.id(), 0);
    message.reply(0, b"").unwrap();
    let one_way = match channel.receive_timeout(LONG).unwrap() {
        Received::OneWay(one_way) => one_way,
        other => panic!("{other:?}"),
    };
    let thread = client.join().unwrap();
    assert_eq!((origin.process, origin.thread), (Some(std::process::id()), Some(thread)));
    // SAFETY: they take nothing.
    assert_eq!((origin.user, origin.group), unsafe { (libc::geteuid(), libc::getegid()) });
    assert_eq!((one_way.data.as_slice(), one_way.length), (&b"y"[..], 1));
    assert_eq!(one_way.origin.connection, origin.connection);
}

#[test]
fn what_is_sent_one_way_is_cut() {
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let soon = connection.send_one_way_timeout(b"x", Duration::from_millis(1));
    assert_eq!(soon, Err(Error::TimedOut)); // nobody has received it
    let client = thread::spawn(move || connection.send_one_way(&[3; 20_000]));
    match channel.receive_timeout(LONG).unwrap() {
        Received::OneWay(one_way) => {
            assert_eq!((one_way.data, one_way.length), (vec![3; 16384], 20_000));
        }
        other => panic!("{other:?}"),
    }
    client.join().unwrap().unwrap();
}

#[test]
fn a_reply_is_written_in_parts() {
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let client = thread::spawn(move || {
        let mut reply = [b'.'; 8];
        let replied = connection.send_timeout(b"abcdef", &mut reply, LONG).unwrap();
        (replied.size, reply)
    });
    let message = message(&channel);
    let mut part = [0; 10];
    assert_eq!(message.read(4, &mut part), Ok(2));
    assert_eq!(&part[..2], b"ef");
    assert_eq!(message.room(), 8);
    assert_eq!(message.write(6, b"xyz"), Ok(2));
    message.reply(0, b"12").unwrap();
    assert_eq!(client.join().unwrap(), (8, *b"12....xy"));
}

#[test]
fn descriptors_go_along_and_are_owned() {
    let held = || fs::read_dir("/proc/self/fd").unwrap().count();
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let round = |taken: bool| {
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let (mut reader, writer) = UnixStream::pair().unwrap();
                let sent = [writer.as_fd(), reader.as_fd()];
                connection.sending(b"x").descriptors(&sent).timeout(LONG).send(&mut []).unwrap();
                drop(writer);
                let mut said = String::new();
                reader.read_to_string(&mut said).unwrap();
                said
            });
            let mut message = message(&channel);
            let mut said = "";
            if taken {
                let mut came = message.take_descriptors();
                assert_eq!(came.len(), 2);
                assert!(message.take_descriptors().is_empty());
                UnixStream::from(came.remove(0)).write_all(b"hello").unwrap();
                said = "hello";
            }
            message.reply(0, b"").unwrap();
            assert_eq!(client.join().unwrap(), said);
        });
    };
    round(true);
    let before = held();
    (0..200).for_each(|i| round(i % 2 == 0));
    processes::wait_until("all are closed", || held() <= before);
}

/// A socket whose last close takes ten minutes, unless the other is closed.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    while client.write(&[0; 65536]).is_ok() {}
    client.set_nonblocking(false).unwrap(); // for others close() waits for nobody
    let linger = libc::linger { l_onoff: 1, l_linger: 600 };
    // SAFETY: it is there, and so long.
    let set = unsafe {
        libc::setsockopt(
            client.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&linger as *const libc::linger).cast(),
            std::mem::size_of_val(&linger) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    (client, server)
}

#[test]
fn descriptors_that_nobody_takes_keep_nobody_waiting() {
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let (client, server) = lingering();
    let number = client.into_raw_fd();
    let sender = thread::spawn(move || {
        // SAFETY: it is open until the message has been received.
        let sent = [unsafe { BorrowedFd::borrow_raw(number) }];
        connection.sending(b"x").descriptors(&sent).timeout(LONG).send(&mut [])
    });
    let message = message(&channel);
    // SAFETY: it is this test's; and not the last of that socket any more.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    let (tell, told) = mpsc::channel();
    let receiver = thread::spawn(move || tell.send(message.reply(0, b"")));
    let in_time = told.recv_timeout(LONG);
    drop(server); // ends the wait of whoever closes
    assert_eq!(in_time, Ok(Ok(())));
    receiver.join().unwrap().unwrap();
    sender.join().unwrap().unwrap();
}

#[test]
fn descriptors_that_cannot_be_are_refused() {
    let channel = Channel::new().unwrap();
    let connection = channel.connect().unwrap();
    let file = fs::File::open("/dev/null").unwrap();
    let many = [file.as_fd(); 17];
    let sent = connection.sending(b"x").descriptors(&many).timeout(LONG).send(&mut []);
    assert_eq!(sent, Err(Error::Os(libc::EINVAL)));
    assert_eq!(channel.try_receive().unwrap_err(), Error::WouldBlock);
}

#[test]
fn a_connection_is_passed_on_with_a_message() {
    let (channel, other) = (Channel::new().unwrap(), Channel::new().unwrap());
    let (connection, passed) = (channel.connect().unwrap(), other.connect().unwrap());
    let client = thread::spawn(move || {
        let sent = [passed.descriptor().unwrap()];
        connection.sending(b"").descriptors(&sent).timeout(LONG).keep_waiting().send(&mut [])
    });
    let mut message = message(&channel);
    let adopted = Connection::adopt(message.take_descriptors().remove(0)).unwrap();
    message.reply(0, b"").unwrap();
    client.join().unwrap().unwrap();
    adopted.pulse(0, 5, 6).unwrap();
    match other.receive_timeout(LONG).unwrap() {
        Received::Pulse(pulse) => assert_eq!((pulse.code, pulse.value), (5, 6)),
        other => panic!("{other:?}"),
    }
    let file = fs::File::open("/dev/null").unwrap();
    assert!(Connection::adopt(file.into()).is_err());
}

#[test]
fn a_name_lets_those_connect_that_its_mode_names() {
    let name = name("mode");
    let channel = ChannelOptions::new().inherit(true).mode(0o622).attach(&name).unwrap();
    assert_eq!(Channel::attach(&name).unwrap_err(), Error::Os(libc::EADDRINUSE));
    // SAFETY: it takes nothing.
    let user = unsafe { libc::geteuid() };
    let child = fork(|| {
        // SAFETY: where this is root, it becomes nobody; else nothing.
        unsafe { libc::setuid(65534) };
        let connection = Connection::open(&format!("{user}/{name}")).unwrap();
        connection.send_timeout(b"x", &mut [], LONG).unwrap();
    });
    let message = message(&channel);
    assert_eq!(message.origin().user, if user == 0 { 65534 } else { user });
    message.reply(0, b"").unwrap();
    assert_eq!(child.wait(), 0);
    if user == 0 {
        let private = format!("{name}-private");
        let _channel = Channel::attach(&private).unwrap();
        let child = fork(|| {
            // SAFETY: it becomes nobody.
            unsafe { libc::setuid(65534) };
            let opened = Connection::open(&format!("{user}/{private}"));
            assert!(opened.and_then(|c| c.send_timeout(b"", &mut [], LONG)).is_err());
        });
        assert_eq!(child.wait(), 0);
    }
}

#[test]
fn what_is_no_connection_is_closed() {
    let (mut here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    assert_eq!(Connection::adopt(there.into()).unwrap_err(), Error::Os(libc::EINVAL));
    assert_eq!(here.read(&mut [0]).unwrap(), 0);
}
