//! Tensors, storages, autograd nodes.

mod classes;
mod counts;
mod cpp_memory;
mod cuda_graph;
mod dlpack;
mod graph;
mod layout;
mod outputs;
mod reader;
mod tensor;

pub use graph::{AutogradGraph, AutogradNode, SavedTensor};
pub use reader::{TensorReader, TensorTypes};
pub use tensor::TensorDecoder;
