//! Running out of memory: the report, what the error said, and the conditions that are waited for.

pub(super) mod oom_message;
pub(super) mod oom_report;
pub(super) mod trigger;
