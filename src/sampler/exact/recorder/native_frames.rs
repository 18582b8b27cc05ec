//! Lets events wait for native frames, for a bounded time and in a bounded number.

use std::time::{Duration, Instant};

use super::{ExactRecorder, RING_POLL_INTERVAL, monotonic};
use crate::model::NativeFrames;
use crate::model::SiteId;
use crate::probe::{NativeCopy, RawEvent};

/// Reading PyTorch's tables and symbols takes about a second, several on a busy machine.
pub(super) const NATIVE_TIMEOUT: Duration = Duration::from_secs(20);
const CHECK_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_WAITING: usize = 1 << 17;

impl ExactRecorder {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub(super) fn waits_for_native_from(&mut self) -> u64 {
        let Some(native) = self.sites.native() else { return u64::MAX };
        native.poll();
        match self.waiting.len() > MAX_WAITING {
            true => u64::MAX,
            false => monotonic().saturating_sub(NATIVE_TIMEOUT.as_nanos() as u64),
        }
    }

    /// Returns whether all queued copies are unwound.
    pub(super) fn wait_for_native(&mut self, is_last: bool) -> bool {
        let timeout = if is_last { NATIVE_TIMEOUT } else { CHECK_TIMEOUT };
        let Some(native) = self.sites.native() else { return true };
        native.poll();
        let (began, until) = (Instant::now(), native.pushed());
        while self.sites.native().is_some_and(|native| native.unwound() < until) {
            if began.elapsed() > timeout {
                return false;
            }
            std::thread::sleep(RING_POLL_INTERVAL);
            self.empty_ring();
            if let Some(native) = self.sites.native() {
                native.poll();
            }
        }
        true
    }

    pub(super) fn wait_for_last_native(&mut self) {
        let Some(native) = self.sites.native() else { return };
        let began = Instant::now();
        while native.unwound() < native.pushed() && began.elapsed() < CHECK_TIMEOUT {
            std::thread::sleep(RING_POLL_INTERVAL);
            native.poll();
        }
    }

    pub(super) fn count_native(&mut self, raw: &RawEvent, site: Option<SiteId>) {
        if raw.native == NativeCopy::NotTaken {
            return;
        }
        let site = site.and_then(|site| self.session.table.get_site(site));
        match site.map(|site| site.native) {
            Some(NativeFrames::Stack(_)) => self.totals.native += 1,
            _ => self.totals.native_lost += 1,
        }
    }
}
