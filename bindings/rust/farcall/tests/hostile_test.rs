// SPDX-License-Identifier: Apache-2.0
//! What a peer that has gone wrong writes into the shared memory ends in an error.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::io::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farcall::{
    Error, Pipe, PipeOptions, Policy, Publisher, PublisherOptions, Subscriber, SubscriberOptions,
};

mod processes;
use processes::{fork, name, wait_until, Chance, LONG};

const CAPACITY: usize = 4096;
const READY: u64 = 1 << 32;
const PIECE: u64 = 1 << 33;

/// Holds the descriptors of one end, and does with them as it likes.
struct Attacker {
    victim: Pipe,
    descriptors: [OwnedFd; 4],
    memory: *mut u8, // what this end writes, and the victim reads
    size: usize,
}

impl Attacker {
    fn new() -> Attacker {
        let (victim, other) = PipeOptions::new().capacity(CAPACITY).pair().unwrap();
        let descriptors = other.into_descriptors().unwrap();
        let file = fs::File::from(descriptors[0].try_clone().unwrap());
        let size = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        Attacker { victim, descriptors, memory: memory.cast(), size }
    }

    fn data(&self) -> usize {
        self.size - CAPACITY
    }

    fn write(&self, position: usize, value: u64) {
        assert!(position + 8 <= self.size && position % 8 == 0);
        // SAFETY: it is inside of the mapping; others see whole words.
        unsafe { self.memory.add(position).cast::<u64>().write_volatile(value) }
    }

    fn header(&self, value: u64, rest: u64) {
        self.write(self.data() + 8, rest);
        self.write(self.data(), value);
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { libc::munmap(self.memory.cast(), self.size) };
    }
}

#[test]
fn an_attacker_can_also_send_what_is_right() {
    let mut attacker = Attacker::new();
    attacker.header(READY | 5, u64::from_le_bytes(*b"hello..."));
    assert_eq!(attacker.victim.recv().unwrap(), b"hello");
}

#[test]
fn a_header_that_cannot_be_breaks_the_pipe() {
    for header in [
        READY | 0xFFFF_FFFF,
        READY | CAPACITY as u64,
        u64::MAX,
        1 << 63,
        PIECE | READY,
        PIECE | READY | 4,
    ] {
        let mut attacker = Attacker::new();
        attacker.header(header, 0);
        for _ in 0..3 {
            assert_eq!(attacker.victim.try_recv(), Err(Error::Broken));
        }
        assert_eq!(attacker.victim.recv_into(&mut [0; 10]), Err(Error::Broken));
        assert_eq!(attacker.victim.recv(), Err(Error::Broken));
        assert_eq!(attacker.victim.messages().last(), Some(Err(Error::Broken)));
    }
}

#[test]
fn a_message_that_claims_to_be_huge_is_not_believed_before_it_comes() {
    let mut attacker = Attacker::new();
    attacker.header(PIECE | READY | 100, 1 << 62);
    for _ in 0..3 {
        assert_eq!(attacker.victim.try_recv(), Err(Error::Os(libc::ENOMEM)));
    }
    let needed = Err(Error::TooLong { size: 1 << 62 });
    assert_eq!(attacker.victim.recv_into(&mut [0; 1000]), needed);
}

#[test]
fn garbage_anywhere_ends_in_an_error_or_in_bytes() {
    let mut outcomes = HashSet::new();
    for seed in 0..1000 {
        let mut attacker = Attacker::new();
        let mut chance = Chance::new(seed);
        for _ in 0..[1, 10, 200][seed as usize % 3] {
            attacker.write(chance.below(attacker.size / 8) * 8, chance.next());
        }
        if seed % 4 == 0 {
            attacker.header(READY | 40, 0); // a message follows that is right
        }
        let victim = &mut attacker.victim;
        let results = [
            victim.try_recv().map(drop),
            victim.try_send(&[0; 100]),
            victim.try_recv().map(drop),
            victim.halves().1.poll().map(drop),
            victim.halves().0.poll().map(drop),
            victim.finish(),
        ];
        outcomes.extend(results);
        // Garbage of a length that can be may wait for the rest of a message.
        for result in results {
            assert!(
                matches!(
                    result,
                    Ok(())
                        | Err(Error::Broken)
                        | Err(Error::WouldBlock)
                        | Err(Error::Finished)
                        | Err(Error::NobodyReceives)
                        | Err(Error::PeerDied)
                        | Err(Error::Os(libc::ENOMEM))
                ),
                "{result:?}"
            );
        }
    }
    assert!(outcomes.contains(&Ok(())) && outcomes.contains(&Err(Error::Broken)));
}

#[test]
fn garbage_while_the_victim_works_does_not_crash_it() {
    for seed in 0..5 {
        let mut attacker = Attacker::new();
        // The attacker is another process.
        let child = fork(|| {
            let mut chance = Chance::new(seed);
            let began = Instant::now();
            while began.elapsed() < LONG {
                attacker.write(attacker.data() + chance.below(CAPACITY / 8) * 8, chance.next());
            }
        });
        let error = (0..10_000_000).find_map(|_| attacker.victim.recv_timeout(LONG).err());
        assert!(matches!(error, Some(Error::Broken | Error::Os(libc::ENOMEM))), "{error:?}");
        drop(child);
    }
}

/// Mappings of this process that are farcall's, and may be written.
fn mappings() -> Vec<(usize, usize)> {
    fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|line| line.contains("memfd:farcall") && line.contains(" rw-s "))
        .map(|line| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            (usize::from_str_radix(from, 16).unwrap(), usize::from_str_radix(to, 16).unwrap())
        })
        .collect()
}

/// Writes garbage into mappings that this process shares, for so long.
fn scribble(seed: u64, mappings: &[(usize, usize)], long: Duration) {
    assert!(!mappings.is_empty());
    let mut chance = Chance::new(seed);
    let began = Instant::now();
    while began.elapsed() < long {
        for _ in 0..100 {
            let (from, to) = mappings[chance.below(mappings.len())];
            let place = from + chance.below((to - from) / 8) * 8;
            // SAFETY: it is inside of a mapping; nothing else of this process uses it.
            unsafe { (place as *mut u64).write_volatile(chance.next()) };
        }
    }
}

#[test]
fn a_publisher_that_writes_garbage_does_not_crash_its_reader() {
    for seed in 0..5 {
        let name = name(&format!("garbage-{seed}"));
        let (mut go, mut going) = UnixStream::pair().unwrap();
        let child = fork(|| {
            let mut publisher = PublisherOptions::new().capacity(CAPACITY).create(&name).unwrap();
            going.read_exact(&mut [0]).unwrap(); // there is a reader
            for i in 0..10 {
                publisher.send(&[i; 100]).unwrap();
            }
            scribble(seed, &mappings(), Duration::from_millis(200));
        });
        let mut reader = SubscriberOptions::new().timeout(LONG).open(&name).unwrap();
        go.write_all(&[0]).unwrap();
        let error = (0..10_000_000).find_map(|_| reader.recv_timeout(LONG).err()).unwrap();
        assert!(
            matches!(
                error,
                Error::Broken
                    | Error::PeerDied
                    | Error::Finished
                    | Error::Dropped
                    | Error::Os(libc::ENOMEM)
            ),
            "{error:?}"
        );
        child.wait();
    }
}

#[test]
fn a_reader_that_writes_garbage_does_not_hurt_the_publisher_and_the_others() {
    for seed in 0..5 {
        let mut publisher: Publisher = PublisherOptions::new()
            .capacity(CAPACITY)
            .policy(Policy::Overwrite)
            .create_unnamed()
            .unwrap();
        let mut good = Subscriber::adopt(publisher.invite().unwrap()).unwrap();
        let invitation = publisher.invite().unwrap();
        let mut given = Some(invitation);
        let child = fork(|| {
            // What the parent has mapped this process has as well, as no reader would.
            let before = mappings();
            let mut bad = Subscriber::adopt(given.take().unwrap()).unwrap();
            bad.recv().unwrap();
            let own: Vec<_> = mappings().into_iter().filter(|one| !before.contains(one)).collect();
            scribble(seed, &own, Duration::from_millis(100));
        });
        drop(given);
        let began = Instant::now();
        let mut received = 0u32;
        for i in 0..u32::MAX {
            publisher.send_timeout(&i.to_le_bytes(), LONG).unwrap();
            assert_eq!(good.recv_timeout(LONG).unwrap(), i.to_le_bytes());
            received += 1;
            if began.elapsed() > Duration::from_millis(300) {
                break;
            }
        }
        assert!(received > 0);
        child.signal(libc::SIGKILL);
        child.wait();
        wait_until("the bad one has gone", || publisher.readers() == 1);
    }
}

/// The same for bytes: the position of the writer is all that is believed, and not that if it cannot be.
#[test]
fn garbage_in_a_stream_ends_in_an_error_or_in_bytes() {
    let mut outcomes = HashSet::new();
    for seed in 0..300 {
        let (mut victim, other) = PipeOptions::new().capacity(CAPACITY).stream_pair().unwrap();
        let [out, _out_socket, back, _back_socket] = other.into_descriptors().unwrap();
        let memories = [fs::File::from(out), fs::File::from(back)];
        let mut chance = Chance::new(seed);
        let child = fork(|| {
            let began = Instant::now();
            while began.elapsed() < LONG {
                // Positions, states and what else there is; in the end one that cannot be.
                let value = chance.next();
                let value = if value % 4 == 0 { value } else { value % (2 * CAPACITY as u64) };
                let place = [128, 256, 384, 512][chance.below(4)] + 8 * chance.below(2) as u64;
                memories[chance.below(2)].write_at(&value.to_ne_bytes(), place).unwrap();
            }
        });
        const WHOLE: usize = 2 * CAPACITY;
        let mut buffer = [0; WHOLE];
        for _ in 0..200 {
            let results = [
                victim.read_timeout(&mut buffer, Duration::from_micros(50)),
                victim.write_timeout(&buffer, Duration::from_micros(50)),
                victim.halves().1.poll().map(|_| 0),
                victim.halves().0.poll().map(|_| 0),
            ];
            for result in results {
                assert!(
                    matches!(
                        result,
                        Ok(0..=WHOLE)
                            | Err(Error::Broken | Error::TimedOut | Error::PeerDied)
                            | Err(Error::NobodyReceives)
                    ),
                    "{result:?}"
                );
                outcomes.insert(result.map(|bytes| bytes != 0));
            }
        }
        drop(child);
    }
    assert!(outcomes.contains(&Ok(true)) && outcomes.contains(&Err(Error::Broken)));
}

#[test]
fn an_end_without_its_peers_socket_is_dead() {
    let mut attacker = Attacker::new();
    let (_, other) = Pipe::pair().unwrap();
    attacker.descriptors = other.into_descriptors().unwrap();
    assert_eq!(attacker.victim.recv(), Err(Error::PeerDied));
    // It looks now and then, and when there is no room.
    let error = (0..1000).find_map(|_| attacker.victim.send(&[0; 100]).err());
    assert_eq!(error, Some(Error::NobodyReceives));
}
