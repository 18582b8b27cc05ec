//! Reads the rest of the ring at the end, for a bounded time; what remains counts as lost.

use std::time::{Duration, Instant};

use super::ExactRecorder;
use crate::model::{MissReason, ReaderKind};
use crate::probe::RingRecord;

/// The ring may contain more code than a user waits for.
const MAX_NAMING: Duration = Duration::from_secs(1);

impl ExactRecorder {
    pub(super) fn take_last_events(&mut self) {
        let until = Instant::now() + MAX_NAMING;
        // One drain takes less than a full ring.
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
