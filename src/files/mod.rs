//! Files of memspy's own, in folders that others may write to: nobody else can redirect, read or mix them.
//!
//! Turns a path into a file that is memspy's own, or into the reason why there is none.
//! May import nothing; alone knows how files are made, and with which mode.
//! Never follows a link of another user, never writes into a file that somebody may have open, never widens a mode.
//! Start reading at [`FileCreation`].

mod creation;
mod own;
mod place;

pub use creation::{FileCreation, OWNER_ONLY};
pub use own::{create_folder, is_own_folder, read_own, use_folder};
pub use place::{FileIdentity, PathKind, PlaceError, place};
