//! Reference counts of C++ objects.

use super::layout::EDGE_OF_SHARED;
use super::tensor::TensorDecoder;
use crate::target::Addr;

/// `intrusive_ptr_target.refcount_` (c10/util/intrusive_ptr.h): since 2.10 the lower half of its
/// word.
const STRONG: u64 = 8;
/// `std::enable_shared_from_this`: pointers to object and control block.
const SHARED_SELF: u64 = 8;
const SHARED_COUNTS: u64 = 16;
/// `_Sp_counted_base._M_use_count` (libstdc++).
const SHARED_USES: u64 = 8;

impl TensorDecoder<'_> {
    /// Includes the reference of its Python object.
    pub fn references_of_tensor(&self, tensor: Addr) -> Option<i64> {
        self.memory.u32(tensor + STRONG).ok().map(i64::from)
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
