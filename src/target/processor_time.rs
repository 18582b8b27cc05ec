//! The processor time of the calling thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
