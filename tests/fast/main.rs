//! Tests without Python and GPU: traces, analysis, reports, command line, shape of the code.
//!
//! `cargo test --lib --test fast` runs these and the unit tests in a minute.

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
#[path = "../flight_support/mod.rs"]
mod flight_support;
#[path = "../hostile_support/mod.rs"]
mod hostile_support;
#[path = "../support/mod.rs"]
mod support;
#[path = "../trace_support/mod.rs"]
mod trace_support;

mod analysis_attribution;
mod analysis_followed;
mod analysis_followed_addresses;
mod analysis_followed_frees;
mod analysis_followed_peak;
mod analysis_followed_random;
mod analysis_followed_samples;
mod analysis_followed_totals;
mod analysis_lines;
mod analysis_live;
mod analysis_training;
mod analysis_waiting;
mod architecture;
mod cli_bad_input;
mod core_files;
mod damage_told;
mod diff_moments;
mod documents;
mod exact_attribution;
mod exact_beginning;
mod exact_lines;
mod exact_maps;
mod exact_reports;
mod export;
mod export_tables;
mod flame_moments;
mod flame_pictures;
mod flame_streams;
mod flight_ring;
mod flight_size;
mod flight_triggers;
mod hostile_numbers;
mod hostile_text;
mod hostile_times;
mod json_docs;
mod kernel_program;
mod line_diff;
mod man_pages;
mod modules;
mod one_peak;
mod oom_page;
mod questions;
mod readme;
mod release_notes;
mod render_reports;
mod report_page;
mod torch_layouts;
mod trace_ahead;
mod trace_damage;
mod trace_exact;
mod trace_files;
mod trace_followed;
mod trace_format;
mod trace_gap;
mod trace_inherited;
mod trace_killed;
mod trace_mixed;
mod trace_repeated;
mod trace_roundtrip;
mod trace_size;
mod trace_thrown;
mod tui_views;
