// SPDX-License-Identifier: Apache-2.0
//! Other processes for tests, and what this one holds. Nothing here is waited for without bound.
#![allow(dead_code)] // no test needs all of it

use std::env;
use std::fs;
use std::io::Read;
use std::ops::Deref;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than anything takes.
pub const LONG: Duration = Duration::from_secs(60);

/// A name that nobody else serves.
pub fn name(of: &str) -> String {
    format!("farcall-rust-{of}-{}", std::process::id())
}

/// Where a door may be. Its file goes with this, also when a test fails or its server was killed.
pub struct Place(PathBuf);

impl Place {
    pub fn new(of: &str) -> Place {
        Place(env::temp_dir().join(name(of)))
    }
}

impl Deref for Place {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Place {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // as a rule its server has done so
    }
}

pub fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < LONG, "it never was so: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The next that is received, which is to be one that wants an answer.
#[cfg(feature = "messages")]
pub fn message(channel: &farcall::messages::Channel) -> farcall::messages::Message {
    match channel.receive_timeout(LONG).unwrap() {
        farcall::messages::Received::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

/// That is known a moment after a client has left. It is not answered then.
#[cfg(feature = "messages")]
pub fn wait_until_gone(message: farcall::messages::Message) {
    wait_until("the client is gone", || message.read(0, &mut [0]).is_err());
    assert_eq!(message.reply(0, b"late"), Err(farcall::Error::Gone));
}

/// A child of fork(2), killed where it is not waited for.
pub struct Forked(libc::pid_t);

/// Runs `child` in one, which ends with 0 unless it panics.
pub fn fork(child: impl FnOnce()) -> Forked {
    // SAFETY: under CTest there is no other thread; elsewhere none whose locks the child needs.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: it dies with its parent, which may fail.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let good = panic::catch_unwind(AssertUnwindSafe(child)).is_ok();
            // SAFETY: nothing of the parent's is cleaned up.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        pid => Forked(pid),
    }
}

impl Forked {
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: it has not been waited for, so it is this child.
        assert_eq!(unsafe { libc::kill(self.0, signal) }, 0);
    }

    pub fn wait_until_asleep(&self) {
        wait_until_asleep(&format!("{}", self.0));
    }

    /// Its exit status, or 128 and the signal that it died of.
    pub fn wait(self) -> i32 {
        let mut status = 0;
        wait_until("a child ends", || {
            // SAFETY: it has not been waited for.
            unsafe { libc::waitpid(self.0, &mut status, libc::WNOHANG) == self.0 }
        });
        std::mem::forget(self);
        if libc::WIFEXITED(status) {
            return libc::WEXITSTATUS(status);
        }
        128 + libc::WTERMSIG(status)
    }
}

/// What is below /proc for it: a process, or a thread as /proc/thread-self names it.
pub fn wait_until_asleep(task: &str) {
    let stat = format!("/proc/{task}/stat");
    wait_until("asleep", || {
        let stat = fs::read_to_string(&stat).unwrap();
        let state = stat.rsplit(')').next().unwrap().trim().chars().next();
        assert_ne!(state, Some('Z'), "it has ended");
        state == Some('S')
    });
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: it has not been waited for, so it is this child.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A program that is executed, killed where it is not waited for.
pub struct Program {
    child: Child,
    pub stdout: ChildStdout,
}

pub fn execute(command: &mut Command) -> Program {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    Program { child, stdout }
}

impl Program {
    /// Waits until it has said something.
    pub fn wait_until_ready(&mut self) {
        let mut said = [0; 6];
        self.stdout.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"ready\n");
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What else it says until it ends, as it should; it finds its input ended.
    pub fn said(mut self) -> String {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Numbers by chance, the same each time.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, most: usize) -> usize {
        self.next() as usize % most
    }
}
