// SPDX-License-Identifier: Apache-2.0
//! Tasks that call.

use std::sync::atomic::{AtomicU32, Ordering};

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::Interest;

use super::{Turn, MOST_TURNS};
use crate::error::{Error, Result};
use crate::Call;

/// What a door is called through. See [`crate::Client`].
///
/// Any number of calls may be in progress at once, of one task or of many. A call that is given up, as by
/// a timeout of tokio, ends: the server is told, and its answer is dropped.
///
/// ```
/// use farcall::tokio::Client;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # let path = std::env::temp_dir().join(format!("farcall-task-{}", std::process::id()));
/// # let server = farcall::Server::create(&path, |request, reply| reply.write(request))?;
/// # runtime.block_on(async {
/// let client = std::sync::Arc::new(Client::new(farcall::Client::open(&path)?));
/// let shared = client.clone();
/// let other = tokio::spawn(async move { shared.call(b"other").await });
/// assert_eq!(client.call(b"one").await?, b"one");
/// assert_eq!(other.await.unwrap()?, b"other");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    client: crate::Client,
    turns: AtomicU32, // that the next call takes before it sleeps
}

impl Client {
    /// Calls of it can be waited for by tasks.
    pub fn new(client: crate::Client) -> Client {
        Client { client, turns: AtomicU32::new(MOST_TURNS / 2) }
    }

    /// The client, for calls that a thread waits in.
    pub fn get_ref(&self) -> &crate::Client {
        &self.client
    }

    /// What it is outside of the runtime.
    pub fn into_inner(self) -> crate::Client {
        self.client
    }

    /// Calls, and waits for the reply. Errors as those of [`crate::Client::call()`], and of
    /// [`crate::Client::begin()`]. Panics where there is no runtime with io.
    pub async fn call(&self, request: &[u8]) -> Result<Vec<u8>> {
        let mut call = self.client.begin(request)?;
        // relaxed: several that count at once make no difference.
        let turns = self.turns.load(Ordering::Relaxed);
        for turn in 0..=turns {
            if let Some(done) = attempt(&mut call) {
                if turn > 0 {
                    self.turns.store(MOST_TURNS.min(turns * 2), Ordering::Relaxed);
                }
                return done;
            }
            Turn(false).await;
        }
        self.turns.store((turns / 2).max(1), Ordering::Relaxed);
        loop {
            sleep(&mut call).await?;
            if let Some(done) = attempt(&mut call) {
                return done;
            }
        }
    }
}

/// None: it is in progress still.
fn attempt(call: &mut Call) -> Option<Result<Vec<u8>>> {
    match call.try_take() {
        Err(Error::WouldBlock | Error::Interrupted) => None,
        done => Some(done),
    }
}

/// Until there may be something to take. The runtime forgets the descriptor before that is done: from
/// then on it may be another call's.
async fn sleep(call: &mut Call) -> Result<()> {
    if let Some(polling) = call.poll()? {
        let watched = AsyncFd::with_interest(polling, Interest::READABLE)
            .map_err(|error| Error::from_io(&error))?;
        let ready = watched.readable().await.map_err(|error| Error::from_io(&error))?;
        drop(ready);
    }
    Ok(())
}
