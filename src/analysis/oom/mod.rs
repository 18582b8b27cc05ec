//! Out of memory: moment, report, message, trigger conditions.

mod oom_message;
mod oom_moment;
mod oom_report;
mod trigger;

pub use oom_message::{free_on_device, requested_bytes};
pub use oom_moment::OomMoment;
pub use oom_report::{
    AllocatorCache, FreeClass, OomBuilder, OomDevice, OomReport, OomThread, RefusedAllocation,
};
pub use trigger::{TriggerCondition, TriggerWatch, UnknownCondition};
