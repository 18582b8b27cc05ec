//! A process stopped for a copy.

use std::time::{Duration, Instant};

use super::error::OwnerError;
use crate::model::StopTotals;
use crate::target::{Process, Resumed, StopError, StoppedProcess};

pub(super) struct CopyStop {
    stop: Option<StoppedProcess>,
    /// The process was stopped.
    pub(super) is_real: bool,
    is_counted: bool,
    pub(super) resumed: Resumed,
    pub(super) since: Instant,
    pub(super) stopped_for: Duration,
}

impl CopyStop {
    pub(super) fn of(
        process: &Process,
        max_pause: Duration,
        stops: &mut StopTotals,
    ) -> Result<CopyStop, OwnerError> {
        let since = Instant::now();
        match StoppedProcess::for_at_most(process, max_pause) {
            Ok(stop) => {
                let resumed = stop.resumed();
                let (stop, stopped_for) = (Some(stop), Duration::ZERO);
                Ok(CopyStop { stop, is_real: true, is_counted: false, resumed, since, stopped_for })
            }
            Err(error) => {
                // All other threads were stopped while waiting for this one.
                if let StopError::Stubborn { .. } = error {
                    stops.add(since.elapsed());
                }
                Err(error.into())
            }
        }
    }

    /// For a process that cannot be stopped in time: it runs on.
    pub(super) fn none() -> CopyStop {
        CopyStop {
            stop: None,
            is_real: false,
            is_counted: true,
            resumed: Resumed::default(),
            since: Instant::now(),
            stopped_for: Duration::ZERO,
        }
    }

    /// The process continues.
    pub(super) fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            self.stopped_for = stop.end();
        }
    }

    /// Also counts the stop, once.
    pub(super) fn count(&mut self, stops: &mut StopTotals) {
        self.end();
        if !std::mem::replace(&mut self.is_counted, true) {
            stops.add(self.stopped_for);
        }
    }

    pub(super) fn age(&self) -> Duration {
        self.since.elapsed().saturating_sub(self.stopped_for)
    }
}
