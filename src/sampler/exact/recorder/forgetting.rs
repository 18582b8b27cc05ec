//! Numbers restart, to bound the memory of long recordings.

use rustc_hash::FxHashSet;

use super::ExactRecorder;
use crate::model::{MissReason, ReaderKind, RecordSink, SinkResult};
use crate::probe::PlacementError;

/// This many numbers above the limit restart at once.
pub(super) const MAX_MORE_NUMBERS: usize = 1 << 16;

impl ExactRecorder {
    /// With `at_once`, only if there are far too many numbers.
    pub(super) fn restart_numbers(
        &mut self,
        at_once: bool,
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let Some(most) = self.options.common.forget_after else { return Ok(()) };
        let size = self.session.table.size();
        let is_due =
            size > most + if at_once { MAX_MORE_NUMBERS } else { 0 } || self.sites.is_full();
        // Pending records use numbers of the old table.
        if !is_due || self.failing.is_waiting() {
            return Ok(());
        }
        let codes = if self.is_emptied { self.sites.idle_codes() } else { Vec::new() };
        if let Err(error) = self.renew_codes(&codes) {
            return self.failed(&error);
        }
        self.empty_ring();
        self.sites.forget_codes(&codes);
        let old = self.session.restart_numbers(sink)?;
        let waiting: FxHashSet<_> = self.waiting.stacks().collect();
        let table = &mut self.session.table;
        if !self.sites.renumber(&old, table, most / 2, &waiting)
            && let Some(probe) = &mut self.probe
            && let Err(error) = probe.renew_keys()
        {
            return self.failed(&error);
        }
        Ok(())
    }

    /// The kernel program describes these code objects, and all stacks, again.
    fn renew_codes(&mut self, codes: &[u64]) -> Result<(), PlacementError> {
        match &mut self.probe {
            Some(probe) if !codes.is_empty() => {
                probe.forget_codes(codes)?;
                // A new code object at this address must not get the key of a forgotten one.
                probe.renew_keys()
            }
            _ => Ok(()),
        }
    }

    fn failed(&mut self, error: &PlacementError) -> SinkResult {
        self.session.losses.add(ReaderKind::Events, MissReason::Failed(error.to_string()), 1);
        Ok(())
    }
}
