//! Thread stacks: frames to names and lines.

mod activity;
mod bpf_stacks;
mod c_calls;
mod fallback;
mod poll_target;
mod read_windows;
mod stack_sampler;
mod thread;
mod thread_list;
mod thread_names;
mod thread_states;
mod walk;

pub use bpf_stacks::StackSymbolizer;
pub(in crate::python) use fallback::FallbackReader;
pub use poll_target::{PollTarget, ThreadKey};
pub use stack_sampler::SampleStats;
pub(in crate::python) use stack_sampler::StackSampler;
pub(in crate::python) use thread_states::{MAX_INTERPRETERS, MAX_THREADS, thread_states};
pub(in crate::python) use walk::{FrameFields, WalkOutcome, follow_callers};
