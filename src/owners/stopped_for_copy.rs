//! A process that stands still for a copy, and for how long it did.

use std::time::{Duration, Instant};

use super::error::OwnerError;
use crate::model::StopTotals;
use crate::target::{Process, Resumed, StopError, StoppedProcess};

/// A process that stands still, and what is known of that when it is over.
pub(super) struct StoppedForCopy {
    stop: Option<StoppedProcess>,
    pub(super) resumed: Resumed,
    /// When it was about to be stopped.
    pub(super) since: Instant,
    pub(super) stopped_for: Duration,
}

impl StoppedForCopy {
    pub(super) fn of(
        process: &Process,
        max_pause: Duration,
        stops: &mut StopTotals,
    ) -> Result<StoppedForCopy, OwnerError> {
        let since = Instant::now();
        match StoppedProcess::for_at_most(process, max_pause) {
            Ok(stop) => {
                let resumed = stop.resumed();
                Ok(StoppedForCopy { stop: Some(stop), resumed, since, stopped_for: Duration::ZERO })
            }
            Err(error) => {
                // All other threads stood still while this one was waited for.
                if let StopError::Stubborn { .. } = error {
                    stops.add(since.elapsed());
                }
                Err(error.into())
            }
        }
    }

    /// Lets the process go on, if it does not yet; for how long it was stopped.
    pub(super) fn end(&mut self) -> Duration {
        if let Some(stop) = self.stop.take() {
            self.stopped_for = stop.end();
        }
        self.stopped_for
    }

    /// How long ago it went on.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed().saturating_sub(self.stopped_for)
    }
}
