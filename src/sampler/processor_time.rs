//! What a thread has used of the processors.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long the calling thread has run on a processor.
pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
