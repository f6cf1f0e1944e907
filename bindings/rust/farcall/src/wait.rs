// SPDX-License-Identifier: Apache-2.0
//! How sides wait, and for how long.

use std::os::raw::c_int;
use std::time::{Duration, Instant};

/// How a side waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WaitMode {
    /// It spins as long as that has paid lately, then sleeps.
    #[default]
    Adaptive,
    /// It never sleeps.
    Spin,
    /// It sleeps at once.
    Block,
}

impl WaitMode {
    pub(crate) fn number(self) -> c_int {
        match self {
            WaitMode::Adaptive => farcall_sys::FARCALL_WAIT_ADAPTIVE,
            WaitMode::Spin => farcall_sys::FARCALL_WAIT_SPIN,
            WaitMode::Block => farcall_sys::FARCALL_WAIT_BLOCK,
        }
    }
}

/// A timeout as the C interface wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(i64);

impl Timeout {
    pub(crate) const NEVER: Timeout = Timeout(farcall_sys::FARCALL_FOREVER);
    pub(crate) const AT_ONCE: Timeout = Timeout(0);

    /// Not 0, which is another error when nothing is there.
    pub(crate) fn after(duration: Duration) -> Timeout {
        Timeout(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX).max(1))
    }

    pub(crate) fn of(duration: Option<Duration>) -> Timeout {
        duration.map_or(Timeout::NEVER, Timeout::after)
    }

    pub(crate) fn nanoseconds(self) -> i64 {
        self.0
    }

    /// What is left of it, for what takes more than one call.
    pub(crate) fn since(self, began: Option<Instant>) -> Timeout {
        match began {
            Some(began) => {
                Timeout::after(Duration::from_nanos(self.0 as u64).saturating_sub(began.elapsed()))
            }
            None => self,
        }
    }

    /// Whether that was all, of what since() returns.
    #[cfg(feature = "messages")]
    pub(crate) fn is_over(self) -> bool {
        self.0 == 1
    }

    /// When it began, for since(), where there is something to subtract.
    pub(crate) fn begin(self) -> Option<Instant> {
        (self.0 > 0).then(Instant::now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_never_becomes_another_kind_of_wait() {
        assert_eq!(Timeout::after(Duration::ZERO), Timeout(1));
        assert_eq!(Timeout::after(Duration::from_nanos(5)), Timeout(5));
        assert_eq!(Timeout::after(Duration::MAX), Timeout(i64::MAX));
        assert_eq!(Timeout::of(None), Timeout::NEVER);
        for timeout in [Timeout::NEVER, Timeout::AT_ONCE] {
            assert_eq!(timeout.since(timeout.begin()), timeout);
        }
        let long_ago = Instant::now().checked_sub(Duration::from_secs(2));
        assert_eq!(Timeout(1_000_000_000).since(long_ago), Timeout(1));
        #[cfg(feature = "messages")]
        {
            assert!(Timeout(1_000_000_000).since(long_ago).is_over());
            assert!(![Timeout::NEVER, Timeout::AT_ONCE, Timeout(2)].iter().any(|t| t.is_over()));
        }
    }
}
