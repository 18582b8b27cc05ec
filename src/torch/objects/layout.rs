//! Six families of layouts of tensors, storages and nodes, for two C++ ABIs, compiled from the
//! headers of the wheels 2.1 to 2.15, and verified on tensors (`verify`).

use crate::target::{Addr, Field};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectsLayout {
    /// Minor version of PyTorch 2.
    pub(super) since: u32,
    /// `THPVariable.cdata`: the `TensorImpl`.
    pub(super) python: Field<Addr>,
    pub(super) tensor: TensorLayout,
    pub(super) node: NodeLayout,
    pub(super) saved: SavedLayout,
}

/// c10/core/TensorImpl.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TensorLayout {
    /// `storage_`, which follows `intrusive_ptr_target`.
    pub(super) storage: usize,
    /// `sizes_and_strides_`.
    pub(super) sizes: usize,
    /// `device_opt_` begins with its has-value byte (`c10::optional`, up to 2.1).
    pub(super) device_flag_first: bool,
}

impl TensorLayout {
    pub(super) const fn storage(self) -> Field<Addr> {
        Field::at(self.storage)
    }

    pub(super) const fn autograd_meta(self) -> Field<Addr> {
        Field::at(self.storage + 8)
    }

    /// Few tensors have it. It begins with a pointer to symbolic sizes, or null.
    pub(super) const fn extra_meta(self) -> Field<Addr> {
        Field::at(self.storage + 16)
    }

    pub(super) const fn version_counter(self) -> Field<Addr> {
        Field::at(self.storage + 24)
    }

    /// In a `VersionCounter`, also an `intrusive_ptr_target`.
    pub(super) const fn version(self) -> Field<u32> {
        Field::at(self.storage)
    }

    pub(super) const fn dimensions(self) -> Field<u64> {
        Field::at(self.sizes)
    }

    /// Or a pointer to sizes and strides, beyond [`INLINE_DIMENSIONS`].
    pub(super) const fn inline_sizes(self) -> usize {
        self.sizes + 8
    }

    pub(super) const fn inline_strides(self) -> usize {
        self.sizes + 8 + 8 * INLINE_DIMENSIONS
    }

    pub(super) const fn offset(self) -> Field<i64> {
        Field::at(self.sizes + 88)
    }

    pub(super) const fn numel(self) -> Field<i64> {
        Field::at(self.sizes + 96)
    }

    /// A `ScalarType` index.
    pub(super) const fn dtype(self) -> Field<u16> {
        Field::at(self.sizes + 104)
    }

    /// `device_opt_`: kind, index and has-value.
    pub(super) fn device(self, tensor: &[u8]) -> Option<[u8; 3]> {
        let at = self.sizes + 106;
        let bytes = *tensor.get(at..)?.first_chunk::<3>()?;
        let [first, second, third] = bytes;
        Some(if self.device_flag_first { [second, third, first] } else { bytes })
    }

    pub(super) const fn derived(self) -> usize {
        self.sizes + 120
    }

    pub(super) const fn len(self) -> usize {
        self.sizes + 112
    }

    /// `StorageImpl`: `data_ptr_`, `size_bytes_`.
    pub(super) const fn storage_data(self) -> Field<u64> {
        Field::at(self.storage)
    }

    pub(super) const fn storage_bytes(self) -> Field<i64> {
        Field::at(self.storage + 32)
    }
}

/// `C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE`.
pub(super) const INLINE_DIMENSIONS: usize = 5;

/// After a `std::string`: 8 bytes before the C++11 ABI, 32 since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AutogradLayout {
    pub(super) grad: Field<Addr>,
    pub(super) grad_fn: Field<Addr>,
    pub(super) requires_grad: Field<u8>,
}

/// `is_view_`, after `requires_grad_`, as are the places of `DifferentiableViewMeta`'s optional
/// `ViewInfo`s: behind `output_nr_` and a mutex, since 2.9 also a type. Each has a base, what made
/// it (40 bytes up to 2.2), and whether it is set.
pub(super) const IS_VIEW: usize = 2;
pub(super) const VIEW_INFOS: [usize; 2] = [48, 56];
pub(super) const VIEW_INFO_LENS: [usize; 2] = [48, 40];
pub(super) const VIEW_INFOS_END: usize = 56 + 2 * 56;
pub(super) const AUTOGRAD_LEN: usize = 152;
/// With the C++11 ABI an empty string points to its own buffer.
pub(super) const AUTOGRAD_NAME: usize = 8;
pub(super) const NAME_BUFFER: usize = 24;

pub(super) fn autograd(layout: &ObjectsLayout, cxx11: bool) -> AutogradLayout {
    let (grad, requires_grad) = match (cxx11, layout.node.edge_len) {
        (false, _) => (16, 120),
        (true, EDGE_OF_SHARED) => (40, 144),
        (true, _) => (40, 128),
    };
    AutogradLayout {
        grad: Field::at(grad),
        grad_fn: Field::at(grad + 8),
        requires_grad: Field::at(requires_grad),
    }
}

/// torch/csrc/autograd/function.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeLayout {
    /// `next_edges_`: a vector.
    pub(super) next_edges: usize,
    pub(super) edge_len: usize,
    /// `input_metadata_`: a small vector.
    pub(super) inputs: usize,
    pub(super) len: usize,
    /// In `PyNode`: its `THPFunction`.
    pub(super) python: Field<Addr>,
}

/// `sizeof(Edge)` with a `std::shared_ptr<Node>`.
pub(super) const EDGE_OF_SHARED: usize = 24;

/// torch/csrc/autograd/saved_variable.h; `data_` comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SavedLayout {
    pub(super) len: usize,
    /// `saved_version_`, `output_nr_`: 4 bytes each.
    pub(super) version: usize,
    /// `was_default_constructed_`, then four more.
    pub(super) flags: usize,
    pub(super) hooks: Field<Addr>,
}

pub(super) const FLAGS: usize = 5;
/// `is_output_`.
pub(super) const IS_OUTPUT: usize = 4;

const SHARED_NODE: NodeLayout = NodeLayout {
    next_edges: 96,
    edge_len: EDGE_OF_SHARED,
    inputs: 264,
    len: 472,
    python: Field::at(472),
};
const COUNTED_NODE: NodeLayout =
    NodeLayout { next_edges: 88, edge_len: 16, inputs: 256, len: 464, python: Field::at(112) };
const LONG_SAVED: SavedLayout =
    SavedLayout { len: 112, version: 48, flags: 56, hooks: Field::at(64) };
const SAVED: SavedLayout = SavedLayout { len: 104, version: 40, flags: 48, hooks: Field::at(56) };
const SHORT_SAVED: SavedLayout =
    SavedLayout { len: 80, version: 32, flags: 40, hooks: Field::at(48) };

/// An unknown version most likely matches the newest.
pub(super) const FAMILIES: [ObjectsLayout; 6] = [
    ObjectsLayout {
        since: 13,
        python: Field::at(16),
        tensor: TensorLayout { storage: 16, sizes: 56, device_flag_first: false },
        node: COUNTED_NODE,
        saved: SHORT_SAVED,
    },
    ObjectsLayout {
        since: 10,
        python: Field::at(16),
        tensor: TensorLayout { storage: 16, sizes: 64, device_flag_first: false },
        node: SHARED_NODE,
        saved: SAVED,
    },
    ObjectsLayout {
        since: 5,
        python: Field::at(24),
        tensor: TensorLayout { storage: 16, sizes: 64, device_flag_first: false },
        node: SHARED_NODE,
        saved: SAVED,
    },
    ObjectsLayout {
        since: 3,
        python: Field::at(24),
        tensor: TensorLayout { storage: 16, sizes: 64, device_flag_first: false },
        node: SHARED_NODE,
        saved: LONG_SAVED,
    },
    ObjectsLayout {
        since: 2,
        python: Field::at(24),
        tensor: TensorLayout { storage: 24, sizes: 72, device_flag_first: false },
        node: SHARED_NODE,
        saved: LONG_SAVED,
    },
    ObjectsLayout {
        since: 1,
        python: Field::at(24),
        tensor: TensorLayout { storage: 24, sizes: 72, device_flag_first: true },
        node: SHARED_NODE,
        saved: LONG_SAVED,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// 2.1's GPU tensors had no device: their memory was in no tensor.
    #[test]
    fn pytorch_2_1_stores_the_device_flag_first() {
        let device = |since: u32, bytes: [u8; 3]| {
            let family = FAMILIES.iter().find(|family| family.since == since)?;
            let mut tensor = vec![0; family.tensor.len()];
            let at = family.tensor.sizes + 106;
            tensor.get_mut(at..at + 3)?.copy_from_slice(&bytes);
            family.tensor.device(&tensor)
        };
        assert_eq!(device(1, [1, 1, 0]), Some([1, 0, 1]), "cuda:0");
        assert_eq!(device(2, [1, 0, 1]), Some([1, 0, 1]), "cuda:0");
        assert_eq!(device(1, [1, 0, 0xff]), Some([0, 0xff, 1]), "cpu");
    }
}
