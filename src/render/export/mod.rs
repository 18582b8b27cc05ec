//! A moment in the formats of other tools.

use crate::analysis::{AllocatedStack, FoldedProfile, Moment, Profile, StackLabel};
use crate::model::CudaIndex;
use crate::render::shared::{FrameLabels, one_line};
pub use history::{history_json, history_pickle};
pub use memory_viz::memory_viz;
pub use perfetto::perfetto;
pub use pprof::pprof;
pub use speedscope::speedscope;
pub use table::{
    ExportFrameJson, ExportJson, ExportMomentJson, ExportStackJson, export_csv, export_json,
};
pub use tables::{ExportedTable, TableExport};

mod history;
mod memory_viz;
mod parquet_file;
mod perfetto;
mod pickle;
mod pprof;
mod speedscope;
mod table;
mod tables;

/// A device's memory at a moment.
#[derive(Debug)]
pub struct ExportedDevice<'a> {
    /// `rank 3`, or `process 1234`.
    pub label: &'a str,
    /// Its recording.
    pub profile: &'a Profile,
    /// Live bytes by stack.
    pub folded: FoldedProfile,
    /// All allocations by stack; `None`: sampled.
    pub allocated: Option<Vec<AllocatedStack>>,
}

impl ExportedDevice<'_> {
    fn device(&self) -> CudaIndex {
        self.folded.device
    }

    fn rank(&self) -> Option<u32> {
        self.profile.start()?.rank
    }

    fn pid(&self) -> u32 {
        self.profile.start().map_or(0, |start| start.pid)
    }

    fn moment(&self) -> &'static str {
        match self.folded.moment {
            Moment::Peak => "peak",
            Moment::End => "end",
        }
    }

    /// Outermost first.
    fn frames(&self, path: &[StackLabel]) -> Vec<ExportedFrame> {
        frames(self.profile, path)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ExportedFrame {
    /// The function, or in brackets why there is none.
    name: String,
    /// The full path, or empty.
    file: String,
    /// 0 if there is none.
    line: u32,
    /// Of the function; 0: unknown.
    first_line: u32,
}

fn frames(profile: &Profile, path: &[StackLabel]) -> Vec<ExportedFrame> {
    let labels = FrameLabels { stacks: profile.stacks(), directory: None, full_filenames: true };
    let frame = |label: &StackLabel| {
        if let StackLabel::Frame(frame) = label
            && let Some(function) = profile.stacks().get_function(frame.function)
        {
            return ExportedFrame {
                name: one_line(&function.name),
                file: one_line(&function.file),
                line: frame.line,
                first_line: function.first_line,
            };
        }
        let name = one_line(&labels.label(*label, true));
        ExportedFrame { name, file: String::new(), line: 0, first_line: 0 }
    };
    path.iter().map(frame).collect()
}
