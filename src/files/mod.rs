//! memspy's own files, in folders where others may write: nobody else can redirect, read or mix
//! them.
//!
//! Turns a path into a file of memspy's own, or a reason for failing.
//! May import nothing. Only this room creates files and sets modes.
//! Never follows another user's link, never writes into a file that somebody may have open, never
//! widens a mode.
//! Start reading at [`FileCreation`].

mod creation;
mod own;
mod place;

pub use creation::{FileCreation, OWNER_ONLY};
pub use own::{create_folder, is_own_folder, read_own, use_folder};
pub use place::{FileIdentity, PathKind, PlaceError, place};
