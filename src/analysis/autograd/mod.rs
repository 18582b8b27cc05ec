//! Memory of the autograd graph; waits for its engine.

mod autograd_outputs;
mod engine_frames;
mod modelsize;
mod saved_tensors;
mod trumpy;

pub use autograd_outputs::results;
pub(crate) use engine_frames::EngineFrames;
pub use modelsize::{ModelSize, model_sizes};
pub use saved_tensors::{NodeClass, SavedSummary, saved};
pub use trumpy::{BackwardMemory, LossMemory, losses, memory_for_backward};
