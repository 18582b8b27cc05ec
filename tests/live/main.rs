//! memspy beside real targets: CPythons, PyTorch on the simulated CUDA device, kernel probes.
//!
//! `scripts/setup.sh tests` provides what they run.

#![allow(
    unreachable_pub,
    missing_docs,
    clippy::print_stderr,
    reason = "tests have no API, and say what they compared"
)]

#[path = "../analysis_script/mod.rs"]
mod analysis_script;
#[path = "../exact_script/mod.rs"]
mod exact_script;
#[path = "../support/mod.rs"]
mod support;

mod answer_in_time;
mod checkpoint;
mod core_files;
mod devices;
mod dry_run;
mod exact_backward;
mod exact_driver;
mod exact_endings;
mod exact_flight;
mod exact_iterations;
mod exact_keeper;
mod exact_memlab;
mod exact_native;
mod exact_samples;
mod exact_server;
mod exact_stacks;
mod exact_torch;
mod export;
mod export_readers;
mod exporter;
mod findings;
mod flight_numbers;
mod follow_stacks;
mod holders;
mod holders_compiled;
mod holders_like;
mod holders_names;
mod holders_scenes;
mod holders_versions;
mod holders_watch;
mod hostile_job;
mod hostile_user;
mod jax;
mod leaks;
mod mcp;
mod messages;
mod misleading;
mod modules;
mod native_stacks;
mod pause;
mod peak_phase;
mod python_busy;
mod python_heap;
mod python_heap_trouble;
mod python_lives;
mod python_raised;
mod python_stacks;
mod ranks_together;
mod record_allocators;
mod record_endings;
mod record_flight;
mod record_followed;
mod record_holders;
mod record_match;
mod record_modes;
mod record_program;
mod record_ranks;
mod record_rights;
mod record_training;
mod record_truth;
mod record_waiting;
mod record_words;
mod recorded_history;
mod redacted;
mod report_page;
mod retained;
mod suggestions;
mod surprises;
mod top;
mod top_ranks;
mod torch_allocator;
mod torch_load;
mod torch_objects;
mod vllm_tags;
mod what_if;
