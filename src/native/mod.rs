//! Stacks of C and C++ code, unwound from copies of registers and stacks.
//!
//! Turns the registers of threads that stand still, and copies of their stacks, into [`NativeFrame`](crate::model::NativeFrame)s with names.
//! May import `model`, `target`, and alone knows unwind tables (gimli) and mangled names.
//! Never stops the target, never guesses: where no table tells how a function was called, the stack ends, and says so.
//! Start reading at [`NativeUnwinder`].

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
