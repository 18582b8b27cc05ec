//! Tensors and storages, copied and checked.

use super::classes::{CppClasses, CppKind};
use super::layout::{
    AUTOGRAD_LEN, AUTOGRAD_NAME, AutogradLayout, INLINE_DIMENSIONS, NAME_BUFFER, ObjectsLayout,
    autograd,
};
use crate::model::{DType, ObjectHead, Storage, TensorDevice, TensorInfo};
use crate::target::{Addr, Field, Memory};

/// More dimensions than PyTorch allows.
const MOST_DIMENSIONS: u64 = 64;
/// How far the fields of a sparse tensor are searched for the tensors it is made of.
const DERIVED_LEN: usize = 120;
/// No `ScalarType` has a larger index.
const MOST_DTYPES: u16 = 64;

/// Reads tensors of a process that stands still.
pub struct Tensors<'a> {
    pub(super) memory: &'a dyn Memory,
    pub(super) head: ObjectHead,
    pub(super) layout: ObjectsLayout,
    autograd: AutogradLayout,
    pub(super) classes: CppClasses,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(
        memory: &'a dyn Memory,
        head: ObjectHead,
        layout: ObjectsLayout,
        classes: CppClasses,
    ) -> Tensors<'a> {
        Tensors { memory, head, layout, autograd: autograd(&layout, true), classes }
    }

    /// Itself, with the C++ ABI found out, if all `samples` are tensors by this layout.
    pub(super) fn verified_by(mut self, samples: &[Addr]) -> Option<Tensors<'a>> {
        let impls: Vec<Addr> = samples.iter().filter_map(|object| self.impl_of(*object)).collect();
        // A tensor being made has none yet, but most have.
        if 2 * impls.len() < samples.len() {
            return None;
        }
        let cxx11 = |at: &Addr| {
            let meta =
                self.memory.pointer(self.layout.tensor.autograd_meta().in_target(*at)).ok()?;
            let meta = Some(meta).filter(|meta| meta.is_plausible())?;
            let name = self.memory.u64(meta + AUTOGRAD_NAME as u64).ok()?;
            Some(name == meta.0 + NAME_BUFFER as u64)
        };
        if let Some(cxx11) = impls.iter().find_map(cxx11) {
            self.autograd = autograd(&self.layout, cxx11);
        }
        impls.iter().all(|at| self.looks_right(*at)).then_some(self)
    }

    /// Whether the numbers of a tensor fit together, so that the layout must be right.
    fn looks_right(&self, at: Addr) -> bool {
        let Some(tensor) = self.tensor(at) else { return false };
        let product = tensor.shape.as_ref().is_none_or(|shape| {
            shape.iter().try_fold(1i64, |product, size| product.checked_mul(*size))
                == Some(tensor.numel)
        });
        let grad = |grad: u64| self.classes.of(self.memory, Addr(grad)).is_some();
        // Sparse and wrapping tensors count their elements in their own way.
        let plain = &*tensor.class != "TensorImpl" || product;
        plain && tensor.dtype.0 < MOST_DTYPES && tensor.grad_fn.is_none_or(grad)
    }

    /// The `TensorImpl` of a Python tensor; `None` for one that is being made, or is not one.
    pub fn impl_of(&self, object: Addr) -> Option<Addr> {
        let at = object + self.head.past(self.layout.python.offset) as u64;
        let at = self.memory.pointer(at).ok()?;
        self.classes.is_tensor(self.memory, at).then_some(at)
    }

    /// Whether there is a `TensorImpl` at `at`.
    pub fn is_tensor(&self, at: Addr) -> bool {
        self.classes.is_tensor(self.memory, at)
    }

    /// The tensor at `at`; `None` when there is none, or its numbers are out of bounds.
    pub fn tensor(&self, at: Addr) -> Option<TensorInfo> {
        let (class, CppKind::Tensor) = self.classes.of(self.memory, at)? else { return None };
        let layout = &self.layout.tensor;
        let bytes = self.memory.vec(at, layout.len()).ok()?;
        let dimensions = layout.dimensions().of(&bytes).filter(|n| *n <= MOST_DIMENSIONS)? as usize;
        let (shape, strides) = if dimensions <= INLINE_DIMENSIONS {
            let at = |start: usize| numbers(&bytes, start, dimensions);
            (at(layout.inline_sizes())?, at(layout.inline_strides())?)
        } else {
            let outside = Field::<Addr>::at(layout.inline_sizes()).of(&bytes)?;
            let outside = self.memory.vec(outside, 16 * dimensions).ok()?;
            (numbers(&outside, 0, dimensions)?, numbers(&outside, 8 * dimensions, dimensions)?)
        };
        // A symbolic size is a pointer with its topmost bits set.
        let known = |numbers: Vec<i64>| numbers.iter().all(|n| *n >= 0).then_some(numbers);
        let device = bytes.get(layout.device()..layout.device() + 3)?;
        let device = match *device {
            [kind, index, 1] => Some(TensorDevice { kind, index: (index < 0x80).then_some(index) }),
            [_, _, 0] => None,
            _ => return None,
        };
        let mut tensor = TensorInfo {
            at: at.0,
            storage: self.storage(layout.storage().of(&bytes)?),
            shape: known(shape),
            strides: known(strides),
            numel: layout.numel().of(&bytes)?,
            dtype: DType(layout.dtype().of(&bytes)?),
            device,
            offset: layout.offset().of(&bytes)?,
            version: self.version(layout.version_counter().of(&bytes)?),
            requires_grad: false,
            grad_fn: None,
            grad: None,
            parts: if class.starts_with("Sparse") { self.parts(at) } else { Vec::new() },
            class,
        };
        self.autograd(layout.autograd_meta().of(&bytes)?, &mut tensor);
        Some(tensor)
    }

    /// `AutogradMeta`, which tensors without gradients do not have.
    fn autograd(&self, meta: Addr, tensor: &mut TensorInfo) -> Option<()> {
        if !meta.is_plausible() {
            return None;
        }
        let bytes = self.memory.vec(meta, AUTOGRAD_LEN).ok()?;
        let pointer = |field: Field<Addr>| field.of(&bytes).filter(|p| p.is_plausible());
        tensor.grad_fn = pointer(self.autograd.grad_fn).map(|at| at.0);
        // An undefined tensor is an object too.
        tensor.grad = pointer(self.autograd.grad).filter(|at| self.is_tensor(*at)).map(|at| at.0);
        let wants = self.autograd.requires_grad.of(&bytes) == Some(1);
        tensor.requires_grad = wants || tensor.grad_fn.is_some();
        Some(())
    }

    fn storage(&self, at: Addr) -> Option<Storage> {
        if !at.is_plausible() {
            return None;
        }
        let layout = &self.layout.tensor;
        let bytes = self.memory.vec(at, layout.storage_bytes().end()).ok()?;
        let size = layout.storage_bytes().of(&bytes)?;
        Some(Storage {
            at: at.0,
            data: layout.storage_data().of(&bytes)?,
            bytes: u64::try_from(size).ok(),
        })
    }

    fn version(&self, counter: Addr) -> Option<u32> {
        if !counter.is_plausible() {
            return None;
        }
        self.memory.u32(self.layout.tensor.version().in_target(counter)).ok()
    }

    /// The tensors that a sparse one is made of, in the order of its fields.
    fn parts(&self, at: Addr) -> Vec<u64> {
        let start = at + self.layout.tensor.derived() as u64;
        let Ok(bytes) = self.memory.vec(start, DERIVED_LEN) else { return Vec::new() };
        let mut parts = Vec::new();
        for word in bytes.chunks_exact(8) {
            let part = Field::<Addr>::at(0).of(word).filter(|part| self.is_tensor(*part));
            match part {
                Some(part) => parts.push(part.0),
                // They stand side by side; what comes later belongs to something else.
                None if parts.is_empty() => {}
                None => break,
            }
        }
        parts
    }
}

fn numbers(bytes: &[u8], start: usize, count: usize) -> Option<Vec<i64>> {
    let bytes = bytes.get(start..start + 8 * count)?;
    bytes.chunks_exact(8).map(|number| Field::<i64>::at(0).of(number)).collect()
}
