//! Items of NumPy arrays with `dtype=object`.

use super::{ObjectHeap, ReferenceKind};
use crate::target::{Addr, Field};

/// `PyArrayObject` (numpy/ndarraytypes.h, NumPy 1 and 2).
const DATA: Field<Addr> = Field::at(16);
const DIMENSIONS: Field<i32> = Field::at(24);
const SHAPE: Field<Addr> = Field::at(32);
const DESCR: Field<Addr> = Field::at(56);
const FLAGS: Field<u32> = Field::at(64);
/// `PyArray_Descr.type_num`, `NPY_OBJECT`.
const TYPE_NUMBER: Field<i32> = Field::at(28);
const OBJECT: i32 = 17;
/// Consecutive items (`NPY_ARRAY_*_CONTIGUOUS`); other arrays have theirs in `base`.
const CONTIGUOUS: u32 = 1 | 2;
const MAX_DIMENSIONS: i32 = 64;
const MAX_ITEMS: u64 = 65_536;
const LEN: usize = 72;

impl ObjectHeap<'_> {
    pub(super) fn items_of_array(&self, at: Addr, take: &mut dyn FnMut(ReferenceKind, Addr)) {
        let (memory, head) = (self.memory(), &self.layout.object);
        let read = || {
            let array = memory.vec(at, LEN + head.shift(DATA).offset - DATA.offset).ok()?;
            let descr = head.shift(DESCR).get(&array)?;
            let number = memory.u32(head.shift(TYPE_NUMBER).in_target(descr)).ok()? as i32;
            let dimensions = head.shift(DIMENSIONS).get(&array)?;
            let is_contiguous = head.shift(FLAGS).get(&array)? & CONTIGUOUS != 0;
            if number != OBJECT || !is_contiguous || !(0..=MAX_DIMENSIONS).contains(&dimensions) {
                return None;
            }
            let shape = match dimensions {
                0 => Vec::new(),
                some => memory.vec(head.shift(SHAPE).get(&array)?, 8 * some as usize).ok()?,
            };
            let sizes = shape.chunks_exact(8).map(|size| Field::<u64>::at(0).get(size));
            let count = sizes.into_iter().try_fold(1u64, |all, size| all.checked_mul(size?))?;
            let data = head.shift(DATA).get(&array)?;
            let items = memory.vec(data, 8 * count.min(MAX_ITEMS) as usize).ok()?;
            Some((dimensions, items))
        };
        let Some((dimensions, items)) = read() else { return };
        let items = items.chunks_exact(8).map(|item| Field::<Addr>::at(0).get(item));
        for (index, item) in items.enumerate() {
            let way = match dimensions {
                0 => ReferenceKind::Call("item"),
                1 => ReferenceKind::Item(index),
                _ => ReferenceKind::Field("flat[*]"),
            };
            if let Some(item) = item.filter(|item| item.is_plausible() && item.0 % 8 == 0) {
                take(way, item);
            }
        }
    }
}
