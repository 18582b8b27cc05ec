//! Reference counts of C++ objects.

use super::layout::EDGE_OF_SHARED;
use super::tensor::{HAS_PY_OBJECT, TensorDecoder};
use crate::target::{Addr, Field};

/// `intrusive_ptr_target.refcount_` (c10/util/intrusive_ptr.h): since 2.10 the lower half of its
/// word.
const STRONG: u64 = 8;
/// Of a `StorageImpl`, at least.
const STORAGE_LEN: usize = 128;
/// `PyObject.ob_refcnt`, before the class, except without a GIL.
const REFCOUNT: u64 = 0;
/// `std::enable_shared_from_this`: pointers to object and control block.
const SHARED_SELF: u64 = 8;
const SHARED_COUNTS: u64 = 16;
/// `_Sp_counted_base._M_use_count` (libstdc++).
const SHARED_USES: u64 = 8;

impl TensorDecoder<'_> {
    /// What `read` returns; `None` if a part of it may be of another moment than the snapshot.
    pub fn of_one_moment<T>(&self, read: impl FnOnce(&Self) -> Option<T>) -> Option<T> {
        let (result, is_torn) = self.memory.noting_torn(|| read(self));
        result.filter(|_| !is_torn)
    }

    /// Includes the reference of its Python object.
    pub fn references_of_tensor(&self, tensor: Addr) -> Option<i64> {
        self.memory.u32(tensor + STRONG).ok().map(i64::from)
    }

    /// As of a tensor: a `StorageImpl` and its Python object keep each other alive, and count as
    /// one. `None` if unknown.
    pub fn references_of_storage(&self, storage: Addr) -> Option<i64> {
        let word = self.memory.u64(storage + STRONG).ok()?;
        let in_cpp = i64::from(word as u32);
        if word & HAS_PY_OBJECT == 0 {
            return Some(in_cpp);
        }
        // `pyobj_slot_` is behind the other fields (c10/core/StorageImpl.h).
        let fields = self.memory.vec(storage, STORAGE_LEN).ok()?;
        let words = fields.chunks_exact(8).filter_map(|word| Field::<Addr>::at(0).get(word));
        let object =
            words.filter(|at| at.is_plausible()).find(|at| self.is_object_of(*at, storage))?;
        let in_python = i64::from(self.memory.u32(object + REFCOUNT).ok()? as i32);
        let is_known = in_python > 0 && self.head.class as u64 == REFCOUNT + 8;
        is_known.then(|| in_python - i64::from(in_cpp > 1) + in_cpp - 1)
    }

    /// `THPStorage.cdata`: a `MaybeOwned<Storage>` (torch/csrc/Storage.h).
    fn is_object_of(&self, object: Addr, storage: Addr) -> bool {
        let cdata = object + self.head.len as u64;
        [cdata, cdata + 8].iter().any(|at| self.memory.pointer(*at).ok() == Some(storage))
    }

    /// `None` if unknown.
    pub fn references_of_node(&self, node: Addr) -> Option<i64> {
        if self.layout.node.edge_len != EDGE_OF_SHARED {
            return self.memory.u32(node + STRONG).ok().map(i64::from);
        }
        let is_self = self.memory.pointer(node + SHARED_SELF).ok()? == node;
        let counts = self.memory.pointer(node + SHARED_COUNTS).ok()?;
        let uses = is_self.then(|| self.memory.u32(counts + SHARED_USES).ok()).flatten();
        uses.map(i64::from)
    }
}
