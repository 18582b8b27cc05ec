//! memspy's own files, in folders where others may write.
//!
//! Turns a path into a file, or a reason for failing. May import nothing; only this room creates
//! files. Never follows another user's link, writes into a file that may be open elsewhere, or
//! widens a mode. Start reading at [`FileCreation`].

mod creation;
mod own;
mod place;

pub use creation::{FileCreation, OWNER_ONLY};
pub use own::{create_folder, is_own_folder, read_own, use_folder};
pub use place::{FileIdentity, PathKind, PlaceError, place};
