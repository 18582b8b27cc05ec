//! Answers in the forms people and programs read: flamegraphs, tables, listings.
//!
//! Turns `analysis` answers into bytes on a `Write`. May import `model`, `ownership`, `analysis`,
//! base64, chrono, csv, flate2, inferno, parquet, prometheus_client, serde, serde_json, textwrap.
//! Never prints, never exits, never opens a file. Start reading at [`flame`](fn@flame) and
//! [`lines_text`].

mod checkpoint;
mod devices;
mod diff;
mod doctor;
mod dry_run;
mod dump;
mod export;
mod flame;
mod iterations;
pub mod json;
mod lines;
mod metrics;
mod modules;
mod oom;
mod owners;
mod record;
mod report;
mod shared;
mod summary;
mod what_if;

pub use checkpoint::{CheckpointFigures, move_json, move_text};
pub use devices::{
    DevicesTarget, DevicesView, devices_csv, devices_csv_head, devices_json, devices_text,
};
pub use diff::{ComparedOwners, DiffRows, DiffStyle, diff_text, owner_diff_text};
pub use dry_run::{
    DryRunAnswer, FitAnswer, FittedJson, RunClass, RunPeaks, RunProcess, dry_run_json, dry_run_text,
};
pub use dump::{DumpOptions, OwnersResult, dump_json, dump_text};
pub use export::{
    ExportedDevice, ExportedTable, TableExport, export_csv, export_json, history_json,
    history_pickle, memory_viz, perfetto, pprof, speedscope,
};
pub use flame::{
    FlamePicture, NameStyle, RankMemory, RankMode, collapsed, collapsed_diff, collapsed_of_ranks,
    flame, flame_diff, flame_of_ranks, modules_collapsed, modules_flame, owners_collapsed,
    owners_flame,
};
pub use iterations::{iterations_csv, iterations_json, iterations_text};
pub use lines::{
    LinesOptions, RANKED_ROWS, RankLines, lines_csv, lines_json, lines_text, rank_lines_csv,
    rank_lines_json, rank_lines_text, ranked_lines_text, ranked_rank_lines_text,
};
pub use metrics::{
    ExportedGpu, ExportedJob, MetricsFormat, NamedBytes, metrics_content_type, metrics_text,
};
pub use modules::{ModulesOptions, modules_text};
pub use oom::oom_report_text;
pub use owners::{
    DEFAULT_ROWS, DeviceChoice, TensorsOptions, changes_text, graph_text, group_label, incomplete,
    like_modelsize_json, like_modelsize_text, like_trumpy_json, like_trumpy_text, ownership_json,
    ownership_json_line, pattern_name, pause, place, tensors_text, uncertain, why_text,
};
pub use record::{next_steps, ranks_summary, summary};
pub use report::{ReportOptions, ReportedRecording, report_page};
pub use shared::{
    EscapeGuard, FittingWriter, FrameLabels, OutputError, allocator_text, bytes,
    certainty_in_short, count, file_word, full_in, header, in_sentence, length, memory_name,
    number, one_line, optional_bytes, short_file, signed_bytes, suggestion, suggestion_on, utc,
    visible, warnings, way, words_wrapped,
};
pub use summary::{
    FindingText, GrowthKeeper, JobSummary, LineBytes, LinesSource, ObservedLines, SummaryStyle,
    finding_text, findings_json, findings_text, growth_json, growth_text, job_summary_json,
    job_summary_text, odd_rank_text, unchecked,
};
pub use what_if::{WhatIfAnswer, setting_name, what_if_json, what_if_page, what_if_text};
