//! When all numbers begin anew, so that a recording of ever-new stacks goes on for days in the same memory.

use rustc_hash::FxHashSet;

use super::ExactRecorder;
use crate::model::{MissReason, ReaderKind, RecordSink, SinkResult};
use crate::probe::ProbeError;

/// Numbers beyond those after which they begin anew, for which that does not wait until it is due.
pub(super) const MAX_MORE_NUMBERS: usize = 1 << 16;

impl ExactRecorder {
    /// Begins all numbers anew when there are too many; `at_once` only when there are very many too many.
    pub(super) fn begin_anew(&mut self, at_once: bool, sink: &mut dyn RecordSink) -> SinkResult {
        let Some(most) = self.options.common.forget_after else { return Ok(()) };
        let size = self.session.table.size();
        let is_due =
            size > most + if at_once { MAX_MORE_NUMBERS } else { 0 } || self.sites.is_full();
        // What waits has numbers of the table, or will be named by what is known now.
        if !is_due || self.failing.is_waiting() {
            return Ok(());
        }
        // Stacks in the ring may be of code objects that are not described there.
        let codes = if self.is_emptied { self.sites.idle_codes() } else { Vec::new() };
        if let Err(error) = self.renew_codes(&codes) {
            return self.failed(&error);
        }
        self.empty_ring();
        self.sites.forget_codes(&codes);
        let old = self.session.begin_anew(sink)?;
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

    /// Has the kernel describe these code objects again, and with them all stacks.
    fn renew_codes(&mut self, codes: &[u64]) -> Result<(), ProbeError> {
        match &mut self.probe {
            Some(probe) if !codes.is_empty() => {
                probe.forget_codes(codes)?;
                // Another code object at the same address must not have the keys of the one forgotten.
                probe.renew_keys()
            }
            _ => Ok(()),
        }
    }

    fn failed(&mut self, error: &ProbeError) -> SinkResult {
        self.session.losses.add(ReaderKind::Events, MissReason::Failed(error.to_string()), 1);
        Ok(())
    }
}
