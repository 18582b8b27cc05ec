//! Answers in the forms people and programs read: flamegraphs, tables, listings.
//!
//! Turns `analysis` answers into bytes on a `Write`. May import `model`, `ownership`, `analysis`,
//! inferno, csv, flate2, parquet, textwrap, serde and serde_json. Never prints, never exits, never
//! opens a file. Start reading at [`flame`](fn@flame) and [`lines_text`].

mod certainty;
mod checkpoint;
mod clock;
mod collapsed;
mod devices;
mod devices_export;
mod dump;
mod dump_json;
mod escape;
mod exact;
mod export;
mod findings;
mod flame;
mod flame_diff;
mod flame_text;
mod fragmentation;
mod growth;
mod header;
mod interchange;
mod iterations;
mod job_summary;
pub mod json;
mod label;
mod like;
mod line_diff;
mod line_notes;
mod lines;
mod lines_export;
mod mixed_stacks;
mod mixed_stacks_json;
mod oom_accounting;
mod oom_conclusion;
mod oom_report;
mod oom_stacks;
mod open_metrics;
mod owner_groups;
mod owners;
mod owners_json;
mod rank_lines;
mod ranked_lines;
mod referrers;
mod report;
mod size;
mod sleep_tags;
mod suggestion;
mod summary;
mod warnings;
mod wrap;

pub use certainty::certainty_in_short;
pub use checkpoint::{CheckpointFigures, move_json, move_text};
pub use clock::{length, utc};
pub use collapsed::{NameStyle, collapsed};
pub use devices::{DevicesTarget, DevicesView, devices_text};
pub use devices_export::{devices_csv, devices_csv_head, devices_json};
pub use dump::{DumpOptions, OwnersOrReason, allocator_text, dump_text};
pub use dump_json::dump_json;
pub use escape::{EscapeGuard, visible};
pub use exact::{kind as memory_name, way};
pub use export::{
    ExportedDevice, ExportedTable, TableExport, export_csv, export_json, history_json,
    history_pickle, memory_viz, perfetto, pprof, speedscope,
};
pub use findings::{FindingText, finding_text};
pub use flame::{
    FlamePicture, RankMemory, RankMode, collapsed_of_ranks, flame, flame_of_ranks,
    owners_collapsed, owners_flame,
};
pub use flame_diff::{collapsed_diff, flame_diff};
pub use growth::{GrowthKeeper, growth_json, growth_text};
pub use header::header;
pub use iterations::{iterations_csv, iterations_json, iterations_text};
pub use job_summary::{
    JobSummary, LineBytes, LinesSource, ObservedLines, job_summary_json, job_summary_text,
    odd_rank_text,
};
pub use label::{FrameLabels, one_line, short_file};
pub use like::{like_modelsize_json, like_modelsize_text, like_trumpy_json, like_trumpy_text};
pub use line_diff::{ComparedOwners, DiffRows, DiffStyle, diff_text, owner_diff_text};
pub use lines::{LinesOptions, lines_text};
pub use lines_export::{lines_csv, lines_json};
pub use oom_report::oom_report_text;
pub use open_metrics::{
    ExportedGpu, ExportedJob, MetricsFormat, NamedBytes, metrics_content_type, metrics_text,
};
pub use owner_groups::{DEFAULT_ROWS, group_label, pattern_name};
pub use owners::{
    DeviceChoice, TensorsOptions, changes_text, graph_text, incomplete, pause, place, tensors_text,
};
pub use owners_json::{ownership_json, ownership_json_line};
pub use rank_lines::{RankLines, rank_lines_csv, rank_lines_json, rank_lines_text};
pub use ranked_lines::{RANKED_ROWS, ranked_lines_text, ranked_rank_lines_text};
pub use referrers::referrers_text;
pub use report::{ReportOptions, ReportedRecording, report_page};
pub use size::{bytes, count, number, optional_bytes, signed_bytes};
pub use suggestion::{file_word, in_sentence, suggestion, suggestion_on};
pub use summary::summary;
pub use warnings::warnings;
pub use wrap::{FittingWriter, words_wrapped};

use crate::analysis::LineError;

/// Why something could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The output did not take the bytes.
    #[error("cannot write the report: {0}")]
    Write(#[from] std::io::Error),
    /// The CSV writer refused a row.
    #[error("cannot write CSV: {0}")]
    Csv(#[from] csv::Error),
    /// The JSON writer failed.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The lines could not be ranked.
    #[error(transparent)]
    Lines(#[from] LineError),
    /// There are no bytes to draw.
    #[error("no memory was allocated at this moment; there is nothing to draw")]
    Empty,
}

impl RenderError {
    /// The I/O error of the output, through whichever writer it came. A reader that closes a pipe
    /// early is no failure.
    pub fn into_io(self) -> std::io::Error {
        match self {
            RenderError::Write(error) => error,
            RenderError::Json(error) if error.is_io() => error.into(),
            RenderError::Csv(error) if error.is_io_error() => match error.into_kind() {
                csv::ErrorKind::Io(error) => error,
                other => std::io::Error::other(format!("cannot write CSV: {other:?}")),
            },
            other => std::io::Error::other(other),
        }
    }
}

#[cfg(test)]
mod incomplete_tests;

#[cfg(test)]
mod tests {
    use std::io;

    use super::RenderError;

    /// A pipe whose reader has gone.
    struct ClosedPipe;

    impl io::Write for ClosedPipe {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    /// Regression: `memspy ... --json | head` ended with "cannot write JSON: Broken pipe".
    #[test]
    fn a_closed_pipe_is_recognised_through_every_writer() {
        let json = serde_json::to_writer(ClosedPipe, &[1, 2]).unwrap_err();
        assert_eq!(RenderError::from(json).into_io().kind(), io::ErrorKind::BrokenPipe);
        let mut csv = csv::Writer::from_writer(ClosedPipe);
        csv.write_record(["a", "b"]).unwrap();
        let csv = csv::Error::from(csv.flush().unwrap_err());
        assert_eq!(RenderError::from(csv).into_io().kind(), io::ErrorKind::BrokenPipe);
    }
}
