//! `memspy summary` and `growth`.

mod bars;
mod color;
mod device_lines;
mod findings;
mod growth;
mod headline;
mod host_line;
mod json;
mod owner_table;
mod screen;
mod text;

pub use device_lines::odd_rank_text;
pub use findings::{FindingText, finding_text, findings_text, unchecked};
pub use growth::{GrowthKeeper, growth_json, growth_text};
pub use json::{
    FindingsJson, GpuLinesJson, GrowthJson, KeeperJson, LineBytesJson, LineGrowthJson,
    ObservedGrowthJson, ObservedLinesJson, OwnerGrowthJson, SummaryFindingJson, SummaryGpuJson,
    SummaryJson, findings_json, job_summary_json,
};
pub use text::{JobSummary, LineBytes, LinesSource, ObservedLines, SummaryStyle, job_summary_text};
