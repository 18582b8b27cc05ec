//! The live view: where the memory of a job is now, in a terminal.
//!
//! Turns a live profile, and the keys pressed, into pictures on a terminal.
//! May import `model`, `ownership`, `analysis`, `render` and `sampler`; alone knows ratatui.
//! Never reads a target by itself, and never leaves the terminal in another state than it found it in.
//! Start reading at [`run`]; what a picture is made of is in `view_model.rs`, how it is drawn in `draw.rs`.

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
