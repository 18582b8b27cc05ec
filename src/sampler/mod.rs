//! Turns an attached target into [`Record`](crate::model::Record)s in time order.
//! May import `model`, `abi`, `ownership`, `files`, `target`, `python`, `native`, `torch`, `gpu`,
//! `probe`, `owners`, `suspend`; owns the threads and sleeps of a recording.
//! Never interprets, never changes the target, stops it only to read owners, never prints.
//! Start reading at [`Recorder`].

mod attach;
mod attached_recorder;
mod availability;
mod background;
mod device_watch;
mod error_thread;
mod exact;
mod follow;
mod forked_copy;
mod free_processors;
mod gpu_watch;
mod history;
mod job_threads;
mod loop_variables;
mod losses;
mod mixed_stacks;
mod neighbours;
mod optimizer_counter;
mod own_processor;
mod owner_thread;
mod owners;
mod priority;
mod process_tree;
mod quiet_moment;
mod readers;
mod recorder;
mod recording_loop;
mod reorder_buffer;
mod run_records;
mod session;
mod sleep;
mod snapshot_policy;
mod snapshot_thread;
mod source_embedder;
mod step_shape;
mod steps;
mod ticker;
mod time_slice;
mod worker;

pub use crate::owners::{OwnerError, SnapshotOptions, StopPolicy};
pub use crate::probe::PlacementError;
pub use crate::target::{CommandPattern, MachineFacts, host_name, ignored_signals};
pub use crate::torch::AllocatorError;
pub use attach::{attach, attach_when_python};
pub use attached_recorder::AttachedRecorder;
pub use availability::exact_availability;
pub use background::BackgroundSink;
pub use device_watch::{DevicePoll, MachineReading, TargetReading};
pub use exact::{
    CostNews, CostWatch, ExactAvailability, ExactCost, ExactOptions, ExactRecorder, ProbeCoverage,
    PythonPart, TrialFailure, allow_keeper, check_exact_rights, expected_share, is_probe_keeper,
    keep_probes, merge,
};
pub use follow::FollowBudget;
pub use forked_copy::ForkedCopy;
pub use free_processors::{IdleMeter, MANY_PROCESSORS, processors};
pub use history::{HistoryError, read_history};
pub use job_threads::read_threads;
pub use mixed_stacks::{NativeError, read_mixed_stacks};
pub use neighbours::read_neighbours;
pub use owners::{
    OwnerReading, ReadOwners, read_host, read_owners, read_referrers, read_sleep_tags, watch_owners,
};
pub use priority::with_raised_priority;
pub use process_tree::{ProcessTree, RankProcess, rank_of};
pub use readers::{AttachError, StackCoverage, TargetIdentity, TargetReaders, TimedSnapshot};
pub use recorder::{RecordOptions, Recorder};
pub use recording_loop::RecordingProgress;
pub use run_records::{RunReading, record_run};
pub use session::CommonOptions;
pub use sleep::sleep_unless;
pub use source_embedder::{SourceEmbedder, SourceReader};
pub use worker::{StopSignal, Worker};
