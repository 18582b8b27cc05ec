//! What the commands share.

mod allocator;
mod certainty;
mod clock;
mod error;
mod escape;
mod exact;
mod header;
mod interchange;
mod job_cost;
mod label;
pub(crate) mod line_notes;
mod peak_phase;

mod sleep_tags;
mod suggestion;
mod warnings;
mod wrap;

pub use crate::model::{bytes, count, number, optional_bytes, signed_bytes};
pub(crate) use crate::model::{percent, scaled, short_bytes, short_signed_bytes};
pub use allocator::{
    FragmentationJson, PrivatePoolJson, SegmentSumJson, SizeClassJson, allocator_text,
};
pub(crate) use allocator::{fragmentation_text, free_by_size_text};
pub use certainty::{AttributionJson, certainty_in_short};
pub(crate) use certainty::{certainty_at_peak, evidence};
pub(crate) use clock::rough_length;
pub use clock::{full_in, length, utc};
pub use error::OutputError;
pub(crate) use escape::html_escaped;
pub use escape::{EscapeGuard, visible};
pub(crate) use exact::{events_line, exact_notes};
pub use exact::{memory_name, way};
pub use header::header;
pub(crate) use header::{
    MUCH_BEFORE, allocated_line, end_text, following_line, gpu_line, sampling_line, time_range,
};
pub(crate) use interchange::{CsvSheet, json_line};
pub use interchange::{JsonDocument, JsonFormat};
pub(crate) use job_cost::{exact_cost_warning, job_cost_line};
pub(crate) use label::short_native;
pub use label::{FrameLabels, one_line, short_file};
pub(crate) use peak_phase::{phase_at_peak, phase_in_short};
pub use sleep_tags::SleepTagJson;
pub(crate) use sleep_tags::tag_rows;
pub use suggestion::{file_word, in_sentence, suggestion, suggestion_on};
pub use warnings::warnings;
pub(crate) use wrap::{COMMENT, cut, indented, wrapped};
pub use wrap::{FittingWriter, words_wrapped};
