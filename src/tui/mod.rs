//! The live view: a job's memory in a terminal.
//!
//! Turns a live profile and keys into pictures. May import `model`, `ownership`, `analysis`,
//! `render` and `sampler`; alone uses ratatui. Never reads a target, and always restores the
//! terminal. Start reading at [`run`], then `view_model.rs` and `draw.rs`.

mod app;
mod bars;
mod chart;
mod draw;
mod event_loop;
mod list;
mod owner_poller;
mod palette;
mod rank_tabs;
mod ranks;
mod recording;
mod screen;
mod state;
mod table;
mod view_model;

pub use app::{BoxError, TopError, TopOptions, run};
pub use draw::draw;
pub use palette::Palette;
pub use rank_tabs::{FindRanks, NewRank, run_all};
pub use ranks::{RankFacts, RanksOverview, draw_ranks, ranks_state};
pub use recording::{AttachFn, LiveRecording};
pub use state::{KeyAction, ListView, ViewState};
pub use view_model::{LastOwners, OwnersView, ViewModel};
