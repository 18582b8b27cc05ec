//! Memory of the autograd graph; waits for its engine.

pub(super) mod autograd_outputs;
pub(super) mod engine_frames;
pub(super) mod modelsize;
pub(super) mod saved_tensors;
pub(super) mod trumpy;
