//! Out of memory: the report, the error's message, and trigger conditions.

pub(super) mod oom_message;
pub(super) mod oom_report;
pub(super) mod trigger;
