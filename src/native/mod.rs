//! Stacks of C and C++ code, unwound from copies of registers and stacks.
//!
//! Turns these copies into named [`NativeFrame`](crate::model::NativeFrame)s. May import `model`,
//! `target`; only this room knows unwind tables (gimli) and mangled names. Never stops the target,
//! never guesses: without a table entry the stack ends and says so. Start reading at
//! [`NativeUnwinder`].

mod frame_rule;
mod modules;
mod names;
mod repeated;
mod stack_copy;
mod step;
mod unwinder;

pub use repeated::{RepeatedUnwinder, UnwoundStack};
pub use stack_copy::{StackCopy, copy_stacks};
pub use unwinder::{NativeUnwinder, UnwoundThread};
