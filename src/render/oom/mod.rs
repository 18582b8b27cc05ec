//! The report about an out-of-memory error.

mod accounting;
mod conclusion;
mod report;
mod stacks;

pub use report::oom_report_text;
