//! What the autograd graph keeps, and which threads of its engine wait.

pub(super) mod autograd_outputs;
pub(super) mod engine_frames;
pub(super) mod modelsize;
pub(super) mod saved_tensors;
pub(super) mod trumpy;
