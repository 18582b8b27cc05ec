//! Out of memory: report, message, trigger conditions.

pub(super) mod oom_message;
pub(super) mod oom_report;
pub(super) mod trigger;
