//! The memory of a moment folded by stack.

pub(super) mod fold;
pub(super) mod fold_limit;
