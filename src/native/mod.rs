//! Stacks of C and C++ code.
//!
//! Turns copies of registers and stacks into [`NativeFrame`](crate::model::NativeFrame)s.
//! May import `model`, `target`; only this room knows unwind tables (gimli) and mangled names.
//! Never stops the target, never guesses a caller. Start reading at [`Unwinder`].

mod frame_rule;
mod modules;
mod names;
mod repeated;
mod stack_copy;
mod step;
mod unwinder;

pub use repeated::{RepeatedUnwinder, UnwoundStack};
pub use stack_copy::{StackCopy, copy_stacks};
pub use unwinder::{Unwinder, UnwoundThread};
