//! Thread stacks: frames to names and lines.

pub(super) mod activity;
pub(super) mod bpf_stacks;
pub(in crate::python) mod c_calls;
pub(super) mod fallback;
pub(super) mod read_windows;
pub(super) mod scatter_read;
pub(super) mod stack_sampler;
pub(super) mod thread;
pub(super) mod thread_list;
pub(super) mod thread_names;
pub(super) mod thread_states;
pub(super) mod walk;
