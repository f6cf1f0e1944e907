// SPDX-License-Identifier: Apache-2.0
//! Calls: a function of one process that others call by the path of a door.

use std::any::Any;
use std::ffi::CString;
use std::marker::PhantomData;
use std::mem;
use std::os::raw::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::{AsRawFd, RawFd};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

use farcall_sys as sys;

use crate::error::{Error, Result};
use crate::polling::{Pollable, Polling};
use crate::wait::Timeout;

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Os(libc::EINVAL))
}

/// A server's reply, while a call is served.
#[derive(Debug)]
pub struct Reply<'a> {
    raw: *mut sys::farcall_call_reply, // of this thread's call alone
    call: PhantomData<&'a mut ()>,
}

impl Reply<'_> {
    /// Appends to it.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        // SAFETY: the call is in progress, and the bytes are there.
        let result =
            unsafe { sys::farcall_reply_write(self.raw, bytes.as_ptr().cast(), bytes.len()) };
        Error::check(result).map(drop)
    }
}

/// Who calls, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The process, where it can be seen from here.
    pub process: Option<u32>,
    /// The effective user.
    pub user: u32,
    /// The effective group.
    pub group: u32,
}

impl Caller {
    /// Of the call that this thread serves. EINVAL where it serves none, or whose client has gone.
    pub fn of_this_call() -> Result<Caller> {
        let mut caller = sys::farcall_caller {
            size: mem::size_of::<sys::farcall_caller>(),
            pid: 0,
            uid: 0,
            gid: 0,
        };
        // SAFETY: there is room for it.
        Error::check(unsafe { sys::farcall_caller_get(&mut caller) })?;
        let process = u32::try_from(caller.pid).ok().filter(|process| *process != 0);
        Ok(Caller { process, user: caller.uid, group: caller.gid })
    }
}

/// How to make a [`Server`].
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    longest: usize,
    mode: u32,
}

impl ServerOptions {
    /// What is usual: requests of any size, from this user.
    pub fn new() -> ServerOptions {
        ServerOptions::default()
    }

    /// The size of the longest request that is taken.
    pub fn longest(&mut self, bytes: usize) -> &mut ServerOptions {
        self.longest = bytes;
        self
    }

    /// The mode of the file: who may read it may call. 0600, if it is not said.
    pub fn mode(&mut self, mode: u32) -> &mut ServerOptions {
        self.mode = mode;
        self
    }

    /// See [`Server::create()`].
    pub fn create<P>(&self, path: impl AsRef<Path>, procedure: P) -> Result<Server>
    where
        P: Fn(&[u8], &mut Reply<'_>) -> Result<()> + Send + Sync + 'static,
    {
        let path = c_path(path.as_ref())?;
        let options = sys::farcall_server_options {
            size: mem::size_of::<sys::farcall_server_options>(),
            longest: self.longest,
            mode: self.mode,
            release: Some(release::<P>),
        };
        let context = Box::into_raw(Box::new(procedure));
        let mut raw = ptr::null_mut();
        // SAFETY: what it is called with is there; the context is what serve() and release() take it for,
        // and lives until release(). Threads of the library may call both: it is Send and Sync.
        let result = unsafe {
            sys::farcall_server_create(
                path.as_ptr(),
                Some(serve::<P>),
                context.cast(),
                &options,
                &mut raw,
            )
        };
        if let Err(error) = Error::check(result) {
            // SAFETY: where nothing is served it stays the caller's.
            drop(unsafe { Box::from_raw(context) });
            return Err(error);
        }
        Ok(Server { raw: NonNull::new(raw).expect("the library has made a server") })
    }
}

/// A function that other processes call by the path of a door.
///
/// Threads of the library serve the calls, several at once. A panic, or an error, of the function ends
/// its call with [`Error::CallFailed`]. Dropping the server removes the file; calls in progress are still
/// served. In a forked child nothing ends.
///
/// ```
/// use farcall::{Client, Server};
///
/// let path = std::env::temp_dir().join(format!("farcall-rust-{}", std::process::id()));
/// let server = Server::create(&path, |request, reply| reply.write(&request.to_ascii_uppercase()))?;
/// let client = Client::open(&path)?; // in any process of this user
/// assert_eq!(client.call(b"hello")?, b"HELLO");
/// # Ok::<(), farcall::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    raw: NonNull<sys::farcall_server>,
}

// SAFETY: nothing can be done with it but to drop it, which any thread may.
unsafe impl Send for Server {}
// SAFETY: a reference gives access to nothing.
unsafe impl Sync for Server {}

impl Server {
    /// Serves at `path`: the file is made, unless it is there, and removed in the end.
    ///
    /// EADDRINUSE where something is served there already, EPERM where the file is somebody else's, EINVAL
    /// where it is no regular file.
    pub fn create<P>(path: impl AsRef<Path>, procedure: P) -> Result<Server>
    where
        P: Fn(&[u8], &mut Reply<'_>) -> Result<()> + Send + Sync + 'static,
    {
        ServerOptions::new().create(path, procedure)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: it is alive, and this is the last use of it. Also a forked child may close it.
        unsafe { sys::farcall_server_close(self.raw.as_ptr()) }
    }
}

/// What the library calls. No panic gets out, and no cancellation comes in: its threads have that
/// disabled.
///
/// # Safety
///
/// `context` is a `P`; the request is there until this returns, and nobody writes to it.
unsafe extern "C" fn serve<P>(
    context: *mut c_void,
    request: *const c_void,
    size: usize,
    reply: *mut sys::farcall_call_reply,
) -> c_int
where
    P: Fn(&[u8], &mut Reply<'_>) -> Result<()> + Send + Sync + 'static,
{
    // SAFETY: the caller says so. Others may call it at once: it is Sync.
    let procedure = unsafe { &*context.cast::<P>() };
    // SAFETY: the caller says so.
    let request =
        if size == 0 { &[][..] } else { unsafe { slice::from_raw_parts(request.cast(), size) } };
    let mut reply = Reply { raw: reply, call: PhantomData };
    match panic::catch_unwind(AssertUnwindSafe(|| procedure(request, &mut reply))) {
        Ok(Ok(())) => 0,
        Ok(Err(_)) => -1,
        Err(panic) => {
            drop_panic(panic);
            -1
        }
    }
}

/// The last call has ended.
///
/// # Safety
///
/// `context` is a `P` in a box, and nobody uses it any more.
unsafe extern "C" fn release<P>(context: *mut c_void) {
    // SAFETY: the caller says so.
    let procedure = unsafe { Box::from_raw(context.cast::<P>()) };
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| drop(procedure))) {
        drop_panic(panic);
    }
}

/// Drops what a panic carries. Where that panics, too, what the second one carries is left alone.
fn drop_panic(panic: Box<dyn Any + Send>) {
    if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        mem::forget(second);
    }
}

/// What a door is called through: one of [`Server`], or of any other language.
///
/// Any number of threads may call at once, and so may forked children.
#[derive(Debug)]
pub struct Client {
    raw: NonNull<sys::farcall_client>,
}

// SAFETY: the library lets it go from thread to thread.
unsafe impl Send for Client {}
// SAFETY: who has a reference can call, which the library lets any thread do at any time.
unsafe impl Sync for Client {}

/// Room that most replies find enough; longer ones come in memory of the library.
const USUAL: usize = 1024;

impl Client {
    /// Waits until something is served at `path`, however long.
    ///
    /// EACCES where this process may not read the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Client> {
        Client::opened(path.as_ref(), Timeout::NEVER)
    }

    /// Waits so long. ENOENT where there is no such file, ECONNREFUSED where nothing is served there,
    /// [`Error::TimedOut`] where the server does not answer.
    pub fn open_timeout(path: impl AsRef<Path>, timeout: Duration) -> Result<Client> {
        Client::opened(path.as_ref(), Timeout::after(timeout))
    }

    fn opened(path: &Path, timeout: Timeout) -> Result<Client> {
        let path = c_path(path)?;
        let mut raw = ptr::null_mut();
        // SAFETY: what it is called with is there.
        let result =
            unsafe { sys::farcall_client_open(path.as_ptr(), timeout.nanoseconds(), &mut raw) };
        Error::check(result)?;
        Ok(Client { raw: NonNull::new(raw).expect("the library has made a client") })
    }

    /// Calls, and waits for the reply.
    ///
    /// [`Error::NobodyReceives`] where nobody serves it any more, and the request has not been seen;
    /// [`Error::CallFailed`] where the server has seen it, and has failed or died; [`Error::TooLong`] where
    /// it is longer than the server takes; EUSERS where the server has too many clients. After
    /// [`Error::Interrupted`] the server may have seen it.
    pub fn call(&self, request: &[u8]) -> Result<Vec<u8>> {
        self.called(request, Timeout::NEVER)
    }

    /// The same, for so long: then [`Error::TimedOut`], and the server may have seen the request.
    pub fn call_timeout(&self, request: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        self.called(request, Timeout::after(timeout))
    }

    fn called(&self, request: &[u8], timeout: Timeout) -> Result<Vec<u8>> {
        let options = call_options(timeout);
        answered(request.len(), |answer| {
            // SAFETY: it is alive, any thread may call, and all that it is called with is there.
            unsafe {
                sys::farcall_client_call(
                    self.raw.as_ptr(),
                    request.as_ptr().cast(),
                    request.len(),
                    answer,
                    &options,
                )
            }
        })
    }

    /// Begins a call, and does not wait for the server: many may be in progress at once.
    ///
    /// EUSERS where the server has too many clients, EOPNOTSUPP where it is a door of the kernel.
    pub fn begin(&self, request: &[u8]) -> Result<Call> {
        self.begun(request, Timeout::NEVER)
    }

    /// The same: after so long [`Error::TimedOut`] is what is taken.
    pub fn begin_timeout(&self, request: &[u8], timeout: Duration) -> Result<Call> {
        self.begun(request, Timeout::after(timeout))
    }

    fn begun(&self, request: &[u8], timeout: Timeout) -> Result<Call> {
        let options = call_options(timeout);
        let mut raw = ptr::null_mut();
        // SAFETY: it is alive, any thread may call, and all that it is called with is there.
        let result = unsafe {
            sys::farcall_client_begin(
                self.raw.as_ptr(),
                request.as_ptr().cast(),
                request.len(),
                &options,
                &mut raw,
            )
        };
        Error::check_called(result, request.len())?;
        let raw = NonNull::new(raw).expect("the library has made a call");
        Ok(Call { raw, size: request.len(), polling: false })
    }
}

fn call_options(timeout: Timeout) -> sys::farcall_call_options {
    sys::farcall_call_options {
        size: mem::size_of::<sys::farcall_call_options>(),
        timeout: timeout.nanoseconds(),
        give_up: None,
        context: ptr::null_mut(),
        ask_after: 0,
    }
}

/// The reply to a request of that size, which `call` gets from the library.
fn answered(size: usize, call: impl FnOnce(&mut sys::farcall_answer) -> c_int) -> Result<Vec<u8>> {
    let mut reply: Vec<u8> = Vec::with_capacity(USUAL);
    let mut answer = sys::farcall_answer {
        size: mem::size_of::<sys::farcall_answer>(),
        bytes: reply.as_mut_ptr().cast(),
        room: reply.capacity(),
        length: 0,
        memory: ptr::null_mut(),
        memory_size: 0,
    };
    Error::check_called(call(&mut answer), size)?;
    if answer.memory.is_null() {
        // SAFETY: so many bytes have been written, and there was room for them.
        unsafe { reply.set_len(answer.length) };
    } else {
        // SAFETY: that is where the reply is, until it is freed, which is done once.
        unsafe {
            reply.extend_from_slice(slice::from_raw_parts(answer.bytes.cast(), answer.length));
            sys::farcall_answer_free(&mut answer);
        }
    }
    Ok(reply)
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: it is alive, and this is the last use of it. Also a forked child may close it.
        unsafe { sys::farcall_client_close(self.raw.as_ptr()) }
    }
}

/// A call in progress, of [`Client::begin()`]. Dropping it gives the call up: the server is told, and its
/// answer is dropped.
///
/// ```
/// use std::os::unix::io::AsRawFd;
/// use farcall::{Client, Error, Server};
///
/// let path = std::env::temp_dir().join(format!("farcall-begun-{}", std::process::id()));
/// let server = Server::create(&path, |request, reply| reply.write(&request.to_ascii_uppercase()))?;
/// let client = Client::open(&path)?;
/// let mut call = client.begin(b"hello")?;
/// let reply = loop {
///     if let Some(polling) = call.poll()? {
///         let mut poll = libc::pollfd { fd: polling.as_raw_fd(), events: libc::POLLIN, revents: 0 };
///         assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1); // beside others
///     }
///     match call.try_take() {
///         Err(Error::WouldBlock) => {}
///         done => break done?,
///     }
/// };
/// assert_eq!(reply, b"HELLO");
/// # Ok::<(), farcall::Error>(())
/// ```
#[derive(Debug)]
pub struct Call {
    raw: NonNull<sys::farcall_call>,
    size: usize, // of the request
    polling: bool,
}

// SAFETY: the library lets it go from thread to thread.
unsafe impl Send for Call {}
// SAFETY: a reference gives access to the number of its descriptor only, which nothing changes meanwhile.
unsafe impl Sync for Call {}

impl Call {
    /// Takes the reply; [`Error::WouldBlock`] where there is none yet. Other errors are as with
    /// [`Client::call()`], and the end of the call, but [`Error::Interrupted`]. After its end EINVAL.
    pub fn try_take(&mut self) -> Result<Vec<u8>> {
        self.taken(Timeout::AT_ONCE)
    }

    /// The same, and waits for it.
    pub fn take(&mut self) -> Result<Vec<u8>> {
        self.taken(Timeout::NEVER)
    }

    fn taken(&mut self, timeout: Timeout) -> Result<Vec<u8>> {
        self.end_poll();
        answered(self.size, |answer| {
            // SAFETY: it is alive, and this thread's alone; there is room for the answer.
            unsafe { sys::farcall_call_take(self.raw.as_ptr(), answer, timeout.nanoseconds()) }
        })
    }

    /// Prepares to wait for something to take by the descriptor of what is returned; `None` where there is
    /// something already. That may be a step of the call only, after which there is no reply yet. The time
    /// of the call is not told by the descriptor.
    pub fn poll(&mut self) -> Result<Option<Polling<'_, Call>>> {
        Polling::begin(self)
    }
}

impl Pollable for Call {
    fn begin_poll(&mut self) -> Result<bool> {
        self.end_poll();
        // SAFETY: it is alive, and this thread's alone.
        let result = Error::check(unsafe { sys::farcall_call_poll_begin(self.raw.as_ptr()) })?;
        self.polling = result == 1;
        Ok(self.polling)
    }

    fn end_poll(&mut self) {
        if mem::replace(&mut self.polling, false) {
            // SAFETY: it is alive, and this thread's alone.
            unsafe { sys::farcall_call_poll_end(self.raw.as_ptr()) }
        }
    }
}

impl AsRawFd for Call {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: it is alive.
        unsafe { sys::farcall_call_poll_descriptor(self.raw.as_ptr()) }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: it is alive, and this is the last use of it. Also a forked child may close it.
        unsafe { sys::farcall_call_close(self.raw.as_ptr()) }
    }
}
