// SPDX-License-Identifier: Apache-2.0
//! Tasks that receive messages.

use super::Watched;
use crate::error::Result;
use crate::messages::Received;
use crate::polling::Pollable;

// Its descriptor is always there; what comes after a poll has begun makes one more event of it.
impl Pollable for crate::messages::Channel {
    fn begin_poll(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn end_poll(&mut self) {}
}

/// A channel from which a task receives. See [`crate::messages::Channel`].
///
/// Answers and pulses wait for nobody. Who sends waits, which is for a thread: `spawn_blocking()`.
#[derive(Debug)]
pub struct Channel {
    watched: Watched<crate::messages::Channel>,
}

impl Channel {
    /// Has the runtime of this task wait for it. Panics where there is none, or none with io.
    pub fn new(channel: crate::messages::Channel) -> Result<Channel> {
        Ok(Channel { watched: Watched::new(channel)? })
    }

    /// Waits for the most urgent, of equals the oldest. What is given up loses nothing.
    pub async fn receive(&mut self) -> Result<Received> {
        self.watched.until(|channel| channel.try_receive()).await
    }

    /// The channel, to connect to it.
    pub fn get_ref(&self) -> &crate::messages::Channel {
        self.watched.what.get_ref()
    }
}
