//! The processor time of a thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
