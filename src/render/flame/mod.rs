//! `memspy flame`: pictures, text trees and collapsed stacks.

mod collapsed;
mod diff;
mod frame_tree;
mod picture;
mod svg;
mod tree;

pub use collapsed::{NameStyle, collapsed};
pub use diff::{collapsed_diff, flame_diff};
pub use picture::{
    FlamePicture, RankMemory, RankMode, collapsed_of_ranks, flame, flame_of_ranks,
    modules_collapsed, modules_flame, owners_collapsed, owners_flame,
};
