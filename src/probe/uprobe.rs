//! A uprobe as a perf event.

use std::ffi::CStr;
use std::io;

use perf_event::Builder;
use perf_event::events::Software;

use super::syscall::ProbePoint;

pub(super) const OPEN_UPROBE: &str = "open a uprobe (perf_event_open)";

/// `path` must outlive the builder. The upper half of `config` is the offset of the site's
/// semaphore (`PERF_UPROBE_REF_CTR_OFFSET_SHIFT`, kernel/events/core.c).
pub(super) fn uprobe<'a>(
    path: &CStr,
    point: &ProbePoint,
    process: u32,
    at_return: bool,
) -> io::Result<Builder<'a>> {
    const SEMAPHORE_SHIFT: u32 = 32;
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let kind = kind.trim().parse().map_err(io::Error::other)?;
    // perf-event2 supports the event only without a semaphore.
    let mut builder = Builder::new(Software::DUMMY);
    builder.observe_pid(process as i32).any_cpu().sample_period(1);
    let attributes = builder.attrs_mut();
    attributes.type_ = kind;
    attributes.config = u64::from(at_return) | point.semaphore << SEMAPHORE_SHIFT;
    attributes.kprobe_func = path.as_ptr() as u64;
    attributes.probe_offset = point.offset;
    Ok(builder)
}
