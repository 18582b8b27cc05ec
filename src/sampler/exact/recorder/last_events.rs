//! What is in the ring when nothing comes any more: read for a moment, and what is left then is counted as lost.

use std::time::{Duration, Instant};

use super::ExactRecorder;
use crate::model::{MissReason, ReaderKind};
use crate::probe::RingRecord;

/// How long the last events are named. A job may have put more code into the ring than can be read in any time that somebody
/// waits for.
const MAX_NAMING: Duration = Duration::from_secs(1);

impl ExactRecorder {
    /// Takes the last events, after the probes have been taken away.
    pub(super) fn take_last_events(&mut self) {
        let until = Instant::now() + MAX_NAMING;
        // A ring holds more than is taken at once.
        while self.empty_ring() > 0 {
            if Instant::now() >= until {
                return self.lose_last_events();
            }
        }
    }

    fn lose_last_events(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        let mut lost = 0;
        loop {
            let taken = probe.drain(&mut |raw| {
                lost += u64::from(matches!(raw, RingRecord::Event(_)));
                true
            });
            if taken == 0 {
                break;
            }
        }
        self.totals.lost += lost;
        self.session.losses.add(ReaderKind::Events, MissReason::Late, lost);
    }
}
