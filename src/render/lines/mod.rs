//! `memspy lines`: the memory of each line.

mod csv;
mod json;
mod ranked;
mod ranked_ranks;
mod ranks;
mod text;
mod text_table;

pub use csv::lines_csv;
pub use json::{
    BoundedJson, ByteBalanceJson, ExactRecordingJson, FunctionLinesJson, HighWaterJson,
    LineCellJson, LineJson, LinesJson, LiveMomentJson, OtherMemoryJson, RankedLineJson,
    RefusalsJson, lines_json,
};
pub use ranked::{RANKED_ROWS, ranked_lines_text};
pub use ranked_ranks::ranked_rank_lines_text;
pub(crate) use ranks::rank_peaks;
pub use ranks::{
    RankFunctionJson, RankJson, RankLineJson, RankLines, RankLinesJson, RankValueJson,
    RankValuesJson, rank_lines_csv, rank_lines_json, rank_lines_text,
};
pub use text::{LinesOptions, lines_text};
