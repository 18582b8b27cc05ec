//! Reads and checks tensors and storages.

use super::classes::{CppClasses, CppKind};
use super::layout::{
    AUTOGRAD_LEN, AUTOGRAD_NAME, AutogradLayout, INLINE_DIMENSIONS, IS_VIEW, NAME_BUFFER,
    ObjectsLayout, VIEW_INFO_LENS, VIEW_INFOS, VIEW_INFOS_END, autograd,
};
use crate::abi::ObjectHeader;
use crate::model::{DType, Storage, TensorDevice, TensorInfo};
use crate::target::{Addr, Field, Memory};

const MAX_DIMENSIONS: u64 = 64;
/// Of a derived class, searched for component tensors.
const DERIVED_LEN: usize = 120;
/// `c10::Layout` (c10/core/Layout.h).
const SPARSE_CSC: u8 = 4;
const SPARSE_BSC: u8 = 6;
/// `ScalarType::Long`.
const INT64: DType = DType(4);
const MAX_NESTED: usize = 1 << 16;
/// `combined_refcount_`, `kHasPyObject`: never set before 2.10.
const COMBINED_REFCOUNT: u64 = 8;
pub(super) const HAS_PY_OBJECT: u64 = 1 << 63;
/// c10/core/DeviceType.h.
const CPU: u8 = 0;
const MAX_DTYPES: u16 = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct LayoutFit {
    pub(super) fitting: usize,
    pub(super) of: usize,
}

impl LayoutFit {
    pub(super) fn is_all(self) -> bool {
        self.fitting == self.of
    }

    /// Whether enough fit to call the rest damaged.
    pub(super) fn is_most(self) -> bool {
        4 * self.fitting >= 3 * self.of
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FoundLayout {
    head: ObjectHeader,
    layout: ObjectsLayout,
    autograd: AutogradLayout,
    has_sizes: bool,
}

/// Reads a stopped process's tensors.
pub struct TensorDecoder<'a> {
    pub(super) memory: &'a dyn Memory,
    pub(super) head: ObjectHeader,
    pub(super) layout: ObjectsLayout,
    autograd: AutogradLayout,
    pub(super) classes: CppClasses,
    /// malloc stores sizes (glibc).
    pub(super) has_sizes: bool,
}

impl<'a> TensorDecoder<'a> {
    pub(super) fn new(
        memory: &'a dyn Memory,
        head: ObjectHeader,
        layout: ObjectsLayout,
        classes: CppClasses,
    ) -> TensorDecoder<'a> {
        let autograd = autograd(&layout, true);
        TensorDecoder { memory, head, layout, autograd, classes, has_sizes: true }
    }

    pub(super) fn laid_out(memory: &'a dyn Memory, found: FoundLayout) -> TensorDecoder<'a> {
        let FoundLayout { head, layout, autograd, has_sizes } = found;
        TensorDecoder { memory, head, layout, autograd, classes: CppClasses::default(), has_sizes }
    }

    pub(super) fn found_layout(&self) -> FoundLayout {
        let TensorDecoder { head, layout, autograd, has_sizes, .. } = *self;
        FoundLayout { head, layout, autograd, has_sizes }
    }

    /// Finds the C++ ABI and how many `samples` fit; `None` if hardly any.
    pub(super) fn verified_by(
        mut self,
        samples: &[Addr],
    ) -> Option<(TensorDecoder<'a>, LayoutFit)> {
        let impls: Vec<Addr> = samples.iter().filter_map(|object| self.impl_of(*object)).collect();
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
        self.has_sizes = self.sizes_fit(&impls);
        let is_plausible = |at: &&Addr| self.tensor(**at).is_some_and(|tensor| self.fits(&tensor));
        let fitting = impls.iter().filter(is_plausible).count();
        Some((self, LayoutFit { fitting, of: impls.len() }))
    }

    fn sizes_fit(&self, impls: &[Addr]) -> bool {
        let asked = self.layout.tensor.derived() as u64;
        let fits = |at: &&Addr| {
            let len = self.memory.u64(**at - 8).map_or(0, |word| (word & !7).saturating_sub(8));
            (asked..=asked + 24).contains(&len)
        };
        let is_plain = |at: &&Addr| matches!(self.classes.class_at(self.memory, **at), Some((name, _)) if &*name == "TensorImpl");
        let plain = impls.iter().filter(is_plain).count();
        2 * impls.iter().filter(is_plain).filter(fits).count() >= plain
    }

    /// Whether its numbers agree. If not, the layout is wrong or the memory damaged.
    pub fn fits(&self, tensor: &TensorInfo) -> bool {
        let product = tensor.shape.as_ref().is_none_or(|shape| {
            shape.iter().try_fold(1i64, |product, size| product.checked_mul(*size)) == tensor.numel
        });
        let grad = |grad: u64| self.classes.class_at(self.memory, Addr(grad)).is_some();
        // Sparse and wrapper tensors count elements differently. The CPU's only index is 0.
        let somewhere = |device: TensorDevice| device.kind != CPU || device.index.unwrap_or(0) == 0;
        let is_whole = product && tensor.device.is_some_and(somewhere);
        let plain = &*tensor.class != "TensorImpl" || is_whole;
        plain && tensor.dtype.0 < MAX_DTYPES && tensor.grad_fn.is_none_or(grad)
    }

    /// Its `TensorImpl`; `None` if under construction, or no tensor.
    pub fn impl_of(&self, object: Addr) -> Option<Addr> {
        let at = object + self.head.shift(self.layout.python.offset) as u64;
        let at = self.memory.pointer(at).ok()?;
        self.classes.is_tensor(self.memory, at).then_some(at)
    }

    /// Whether C++ keeps the tensor, and so its Python object. Known since PyTorch 2.10
    /// (c10/util/intrusive_ptr.h), else `false`.
    pub fn is_kept_by_cpp(&self, object: Addr) -> bool {
        let word = self.impl_of(object).and_then(|at| self.memory.u64(at + COMBINED_REFCOUNT).ok());
        // One reference is the Python object's, all others C++'s.
        word.is_some_and(|word| word & HAS_PY_OBJECT != 0 && word as u32 > 1)
    }

    /// Hook dictionaries: `backward_hooks`, `post_accumulate_grad_hooks`
    /// (torch/csrc/autograd/python_variable.h).
    pub fn hooks_of(&self, object: Addr) -> Vec<(&'static str, Addr)> {
        let first = object + self.head.shift(self.layout.python.offset) as u64 + 8;
        let Ok(fields) = self.memory.vec(first, 16) else { return Vec::new() };
        let names = ["_backward_hooks", "_post_accumulate_grad_hooks"];
        let hooks = fields.chunks_exact(8).map(|field| Field::<Addr>::at(0).get(field));
        let set =
            |(name, hooks): (_, Option<Addr>)| Some((name, hooks.filter(|at| at.is_plausible())?));
        names.into_iter().zip(hooks).filter_map(set).collect()
    }

    /// The node that computed the tensor.
    pub fn node_of(&self, at: Addr) -> Option<Addr> {
        let meta = self.memory.pointer(self.layout.tensor.autograd_meta().in_target(at)).ok()?;
        let node = self.memory.pointer(
            self.autograd.grad_fn.in_target(Some(meta).filter(|meta| meta.is_plausible())?),
        );
        node.ok().filter(|node| node.is_plausible())
    }

    /// Tensors that a view keeps: those that it is a view of for backward and for forward mode.
    pub fn bases_of(&self, at: Addr) -> Vec<Addr> {
        self.bases(at).unwrap_or_default()
    }

    fn bases(&self, at: Addr) -> Option<Vec<Addr>> {
        let meta = self.memory.pointer(self.layout.tensor.autograd_meta().in_target(at)).ok()?;
        let flags = self.autograd.requires_grad.in_target(Some(meta).filter(|m| m.is_plausible())?);
        if self.memory.bytes::<1>(flags + IS_VIEW as u64).ok()? != [1] {
            return None;
        }
        let info = self.memory.vec(flags, VIEW_INFOS_END).ok()?;
        let base = |at: usize| Field::<Addr>::at(at).get(&info).filter(|it| self.is_tensor(*it));
        // Without its flag, it is what was in this memory before.
        let is_set = |at: usize| info.get(at) == Some(&1);
        let places = VIEW_INFOS.into_iter().flat_map(|at| VIEW_INFO_LENS.map(|len| (at, len)));
        let is_it = |(at, len): &(usize, usize)| base(*at).is_some() && is_set(at + len);
        let (at, len) = places.into_iter().find(is_it)?;
        let forward = at + len + 8;
        let forward = is_set(forward + len).then(|| base(forward)).flatten();
        let backward = base(at);
        Some(backward.into_iter().chain(forward).collect())
    }

    /// Whether `at` has a `TensorImpl`.
    pub fn is_tensor(&self, at: Addr) -> bool {
        self.classes.is_tensor(self.memory, at)
    }

    /// `None` if no tensor, or its numbers are out of bounds.
    pub fn tensor(&self, at: Addr) -> Option<TensorInfo> {
        let (class, CppKind::Tensor) = self.classes.class_at(self.memory, at)? else { return None };
        let layout = &self.layout.tensor;
        let bytes = self.memory.vec(at, layout.len()).ok()?;
        let dimensions = layout.dimensions().get(&bytes).filter(|n| *n <= MAX_DIMENSIONS)? as usize;
        let (shape, strides) = if dimensions <= INLINE_DIMENSIONS {
            let at = |start: usize| numbers(&bytes, start, dimensions);
            (at(layout.inline_sizes())?, at(layout.inline_strides())?)
        } else {
            let outside = Field::<Addr>::at(layout.inline_sizes()).get(&bytes)?;
            let outside = self.memory.vec(outside, 16 * dimensions).ok()?;
            (numbers(&outside, 0, dimensions)?, numbers(&outside, 8 * dimensions, dimensions)?)
        };
        // A symbolic size has its topmost bits set, or is stored separately.
        let extra = layout.extra_meta().get(&bytes).filter(|extra| extra.is_plausible());
        let apart = extra.is_some_and(|extra| self.memory.u64(extra).is_ok_and(|sizes| sizes != 0));
        let known =
            |numbers: Vec<i64>| (!apart && numbers.iter().all(|n| *n >= 0)).then_some(numbers);
        let device = match layout.device(&bytes)? {
            [kind, index, 1] => Some(TensorDevice { kind, index: (index < 0x80).then_some(index) }),
            [_, _, 0] => None,
            _ => return None,
        };
        let (mut shape, mut strides) = (known(shape), known(strides));
        // Not maintained with symbolic sizes.
        let is_known = shape.is_some() && strides.is_some();
        let part_names = self.part_names(at, &class);
        let parts = if part_names.is_empty() { Vec::new() } else { self.parts(at) };
        let mut numel = layout.numel().get(&bytes).filter(|_| is_known);
        let mut nested = None;
        if &*class == "NestedTensorImpl" {
            (shape, strides) = (None, None);
            nested = parts.first().and_then(|sizes| self.rows(Addr(*sizes)));
            numel = nested.as_ref().and_then(|rows| {
                let of_row = |row: &Vec<i64>| row.iter().try_fold(1i64, |n, m| n.checked_mul(*m));
                rows.iter().try_fold(0i64, |sum, row| sum.checked_add(of_row(row)?))
            });
        }
        let mut tensor = TensorInfo {
            at: at.0,
            storage: self.storage(layout.storage().get(&bytes)?),
            shape,
            strides,
            nested,
            numel,
            dtype: DType(layout.dtype().get(&bytes)?),
            device,
            offset: layout.offset().get(&bytes)?,
            version: self.version(layout.version_counter().get(&bytes)?),
            requires_grad: false,
            grad_fn: None,
            grad: None,
            parts,
            part_names,
            class,
        };
        self.autograd(layout.autograd_meta().get(&bytes)?, &mut tensor);
        Some(tensor)
    }

    fn autograd(&self, meta: Addr, tensor: &mut TensorInfo) -> Option<()> {
        if !meta.is_plausible() {
            return None;
        }
        let bytes = self.memory.vec(meta, AUTOGRAD_LEN).ok()?;
        let pointer = |field: Field<Addr>| field.get(&bytes).filter(|p| p.is_plausible());
        tensor.grad_fn = pointer(self.autograd.grad_fn).map(|at| at.0);
        // An undefined tensor is an object, too.
        tensor.grad = pointer(self.autograd.grad).filter(|at| self.is_tensor(*at)).map(|at| at.0);
        let wants = self.autograd.requires_grad.get(&bytes) == Some(1);
        tensor.requires_grad = wants || tensor.grad_fn.is_some();
        Some(())
    }

    fn storage(&self, at: Addr) -> Option<Storage> {
        if !at.is_plausible() {
            return None;
        }
        let layout = &self.layout.tensor;
        let bytes = self.memory.vec(at, layout.storage_bytes().end()).ok()?;
        let size = layout.storage_bytes().get(&bytes)?;
        Some(Storage {
            at: at.0,
            data: layout.storage_data().get(&bytes)?,
            bytes: u64::try_from(size).ok(),
        })
    }

    fn version(&self, counter: Addr) -> Option<u32> {
        if !counter.is_plausible() {
            return None;
        }
        self.memory.u32(self.layout.tensor.version().in_target(counter)).ok()
    }

    fn rows(&self, at: Addr) -> Option<Vec<Vec<i64>>> {
        let matrix = self.tensor(at)?;
        let [height, width] = matrix.shape.as_deref()? else { return None };
        let (height, width) = (usize::try_from(*height).ok()?, usize::try_from(*width).ok()?);
        let is_plain =
            matrix.dtype == INT64 && matrix.device.is_some_and(|device| device.kind == 0);
        let count = height.checked_mul(width).filter(|n| (1..=MAX_NESTED).contains(n))?;
        if !is_plain || matrix.strides.as_deref()? != [width as i64, 1] || matrix.offset != 0 {
            return None;
        }
        let bytes = self.memory.vec(Addr(matrix.storage?.data), 8 * count).ok()?;
        let all = numbers(&bytes, 0, count)?;
        Some(all.chunks_exact(width).map(<[i64]>::to_vec).collect())
    }

    fn part_names(&self, at: Addr, class: &str) -> &'static [&'static str] {
        match class {
            "SparseTensorImpl" => &["._indices()", "._values()"],
            "SparseCsrTensorImpl" => {
                let layout = at + (self.layout.tensor.derived() + 3 * 8) as u64;
                match self.memory.bytes::<1>(layout) {
                    Ok([SPARSE_CSC | SPARSE_BSC]) => {
                        &[".ccol_indices()", ".row_indices()", ".values()"]
                    }
                    _ => &[".crow_indices()", ".col_indices()", ".values()"],
                }
            }
            "NestedTensorImpl" => &[
                "._nested_tensor_size()",
                "._nested_tensor_strides()",
                "._nested_tensor_storage_offsets()",
            ],
            "BatchedTensorImpl" | "TensorWrapper" | "FunctionalTensorWrapper" => &[".<wrapped>"],
            _ => &[],
        }
    }

    fn parts(&self, at: Addr) -> Vec<u64> {
        let start = at + self.layout.tensor.derived() as u64;
        let Ok(bytes) = self.memory.vec(start, DERIVED_LEN) else { return Vec::new() };
        let mut parts = Vec::new();
        for word in bytes.chunks_exact(8) {
            let part = Field::<Addr>::at(0).get(word).filter(|part| self.is_tensor(*part));
            match part {
                Some(part) => parts.push(part.0),
                // Parts are adjacent.
                None if parts.is_empty() => {}
                None => break,
            }
        }
        parts
    }
}

fn numbers(bytes: &[u8], start: usize, count: usize) -> Option<Vec<i64>> {
    let bytes = bytes.get(start..start + 8 * count)?;
    bytes.chunks_exact(8).map(|number| Field::<i64>::at(0).get(number)).collect()
}
