//! Rules of ownership: sums, names and patterns, graph owners.
//!
//! Turns an ownership snapshot into sums, storages and names, live or recorded. May import `model`.
//! Never reads a process, a file or the clock. Start reading at [`breakdown()`].

mod active_blocks;
mod attribute_names;
mod breakdown;
mod called;
mod cpp_blocks;
mod graph_roots;
mod name_pattern;
mod reference_names;
mod session_names;

pub use active_blocks::{InUse, cuda as cuda_device};
pub use attribute_names::with_attributes;
pub use breakdown::{breakdown, held_storages, is_garbage, owner_label, storages, summarize};
pub use called::{NamedTensors, called};
pub use graph_roots::{ALIVE_BY, SAVED_BY, graph_roots, kept_by};
pub use name_pattern::{NamePart, name_parts, name_pattern};
pub use reference_names::{reference_of, references_in};
pub use session_names::{is_of_last_error, is_session_output};

#[cfg(test)]
pub(crate) mod fixture {
    use crate::model::{DType, TensorCategory, TensorInfo, TensorRow};

    /// Its Python object is at the next address.
    pub(crate) fn row(at: u64) -> TensorRow {
        TensorRow {
            tensor: TensorInfo {
                at,
                class: "TensorImpl".into(),
                storage: None,
                shape: None,
                strides: None,
                nested: None,
                numel: None,
                dtype: DType(6),
                device: None,
                offset: 0,
                version: None,
                requires_grad: false,
                grad_fn: None,
                grad: None,
                parts: Vec::new(),
                part_names: &[],
            },
            object: Some(at + 1),
            python_class: None,
            category: TensorCategory::Other,
            names: Vec::new(),
            saved: Vec::new(),
            made_by: None,
            only_in_cpp: false,
            garbage: false,
        }
    }
}
