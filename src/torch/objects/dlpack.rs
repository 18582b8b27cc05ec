//! Tensors exported as unconsumed DLPack capsules.

use super::tensor::TensorDecoder;
use crate::target::{Addr, Field};

/// `PyCapsule.pointer`, `.name` (Objects/capsule.c, 3.8 to 3.15).
const POINTER: Field<Addr> = Field::at(16);
const NAME: Field<Addr> = Field::at(24);
/// Names, and the offset of `manager_ctx` in `DLManagedTensor`, `DLManagedTensorVersioned`
/// (dlpack.h).
const KINDS: [(&[u8], u64); 2] = [(b"dltensor\0", 48), (b"dltensor_versioned\0", 8)];
/// `ATenDLMTensor.handle` (aten/src/ATen/DLPack.cpp).
const HANDLE: u64 = 0;

impl TensorDecoder<'_> {
    /// `None` for other capsules.
    pub fn tensor_of_capsule(&self, capsule: Addr) -> Option<Addr> {
        let memory = self.memory;
        let pointer = |field: Field<Addr>| {
            let to = memory.pointer(capsule + self.head.shift(field.offset) as u64).ok()?;
            to.is_plausible().then_some(to)
        };
        let name = pointer(NAME)?;
        let is_called =
            |text: &&(&[u8], u64)| memory.vec(name, text.0.len()).is_ok_and(|read| read == text.0);
        let (_, context) = KINDS.iter().find(is_called)?;
        let context = memory.pointer(pointer(POINTER)? + *context).ok()?;
        let tensor = memory.pointer(Some(context).filter(|at| at.is_plausible())? + HANDLE).ok()?;
        self.is_tensor(tensor).then_some(tensor)
    }
}
