//! What a look at owners may do: whether it stops the process, and what it may cost.

use std::time::Duration;

use crate::target::Budget;

/// Whether the process may be stopped for the look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StopPolicy {
    /// Stopped for some milliseconds: everything fits together.
    #[default]
    Stop,
    /// Never stopped: what was read may be torn, and is checked as far as it can be.
    Never,
}

/// How a look is made, and its limits. Each is kept whatever the process's memory looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookOptions {
    /// Whether the process may be stopped.
    pub stop_policy: StopPolicy,
    /// For how long at most at once.
    pub max_pause: Duration,
    /// How long the look may take.
    pub max_time: Duration,
    /// How many bytes of memory it may take, besides what the process's objects need (1 KiB each).
    pub max_memory: u64,
}

impl LookOptions {
    /// What a look may take unless told otherwise.
    pub const DEFAULT: LookOptions = LookOptions {
        stop_policy: StopPolicy::Stop,
        max_pause: Duration::from_secs(1),
        max_time: Duration::from_secs(5),
        max_memory: 512 << 20,
    };
}

impl Default for LookOptions {
    fn default() -> LookOptions {
        LookOptions::DEFAULT
    }
}

impl From<StopPolicy> for LookOptions {
    fn from(stop_policy: StopPolicy) -> LookOptions {
        LookOptions { stop_policy, ..LookOptions::DEFAULT }
    }
}

/// One look that is asked for. Its budget of time runs from when this is made, also over several attempts.
#[derive(Debug, Clone, Copy)]
pub struct LookRequest<'a> {
    pub(super) options: LookOptions,
    pub(super) budget: Budget,
    pub(super) asked: Option<&'a str>,
    /// Whether the process may be stopped a second time, whenever that is, if the first copy of its memory was not enough.
    pub(super) may_stop_again: bool,
    /// Is told of a long stop before it.
    pub(super) announce: Option<AnnounceStop>,
}

/// What is told of a stop that may be long, before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopEstimate {
    /// How long it may take.
    pub time: Duration,
    /// How many bytes are to be copied in it.
    pub bytes: u64,
    /// How long it may take at most.
    pub max_pause: Duration,
}

/// Takes the estimate.
pub type AnnounceStop = fn(StopEstimate);

/// Copied per second by a slow machine.
const SLOW_COPY: u64 = 2 << 30;
/// A stop as long as this is announced.
const LONG_STOP: Duration = Duration::from_millis(100);

impl StopEstimate {
    /// Of a stop for the copy of so many bytes; `None` for one that is not worth a word.
    pub(super) fn of(bytes: u64, max_pause: Duration) -> Option<StopEstimate> {
        let time = Duration::from_secs_f64(bytes as f64 / SLOW_COPY as f64);
        (time >= LONG_STOP || time > max_pause).then_some(StopEstimate { time, bytes, max_pause })
    }
}

impl<'a> LookRequest<'a> {
    /// A look with `options`; what refers to the tensors that are called `asked`, or are at that address (`0x…`), is looked for
    /// too, which takes as long again.
    pub fn new(options: LookOptions, asked: Option<&'a str>) -> LookRequest<'a> {
        let budget = Budget::new(options.max_time, options.max_memory);
        LookRequest { options, budget, asked, may_stop_again: true, announce: None }
    }

    /// The same look, which tells `announce` of a long stop before it.
    pub fn announced_by(self, announce: Option<AnnounceStop>) -> LookRequest<'a> {
        LookRequest { announce, ..self }
    }

    /// The same look, whose moment matters: where one stop is not enough it fails with
    /// [`OwnerError::Moved`](super::OwnerError::Moved), and the caller chooses the moment of the next one.
    pub fn with_one_stop(self) -> LookRequest<'a> {
        LookRequest { may_stop_again: false, ..self }
    }

    /// The same look with its whole budget of time.
    pub fn begun_anew(self) -> LookRequest<'a> {
        let LookOptions { max_time, max_memory, .. } = self.options;
        LookRequest { budget: Budget::new(max_time, max_memory), ..self }
    }

    /// Whether it may stop the process.
    pub fn stop_policy(&self) -> StopPolicy {
        self.options.stop_policy
    }

    /// The time that is left for it.
    pub fn time_left(&self) -> Duration {
        self.budget.left()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_announced_where_it_is_long_or_longer_than_it_may_be() {
        let announced = |bytes, max_pause| {
            StopEstimate::of(bytes, Duration::from_millis(max_pause))
                .map(|stop| stop.time.as_millis())
        };
        assert_eq!(announced(100 << 20, 1000), None);
        assert_eq!(announced(1 << 30, 1000), Some(500));
        assert_eq!(announced(100 << 20, 20), Some(48));
    }
}
