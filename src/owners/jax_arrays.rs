//! Live arrays of JAX: those of jaxlib's `ArrayImpl` in Python's heap, with what they hold on each
//! device.
//!
//! The C++ part (`PyArray_Storage` of xla/python/py_array.h) has, one after the other, the array's
//! `ShapedArray`, a flag (not since jaxlib 0.11), its dtype, the vector of its shape, and its
//! sharding; then whether it is committed, a copy on the host, the client, perhaps a traceback
//! (since 0.11 only the copy), the array of IFRT, null once deleted, a view of it on one device,
//! and the arrays that are parts of it. It counts only if all of these are there (jaxlib 0.5 to
//! 0.11).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::cpp_references::CppReferences;
use super::error::OwnerError;
use super::names::ObjectNames;
use super::paths::{self, PathSources};
use super::walk::RelevantObjects;
use super::{SnapshotRequest, jax_devices, referrers};
use crate::model::{
    DType, IncompleteSnapshot, JAX_ARRAY, OwnershipSnapshot, ReachedLimit, Storage, TensorCategory,
    TensorDevice, TensorInfo, TensorRow,
};
use crate::python::{HeapListing, InterpreterReader, ObjectHeap};
use crate::target::{Addr, Memory, PageCache, Process};

const ARRAY: &str = "ArrayImpl";
const LIBRARY: &str = "jaxlib";
/// Words of the object that are searched.
const WORDS: usize = 28;
/// The first word behind head, dictionary and weak references.
const FIRST_WORD: usize = 4;
/// Dimensions, and devices.
const MAX_ITEMS: u64 = 1 << 10;
/// Of `PyArray_Descr`: the class of its scalars.
const SCALAR: u64 = 16;

/// Takes a snapshot of JAX's arrays; the process runs on.
///
/// # Errors
///
/// [`OwnerError::Jax`] if no array is laid out as known. Lists of objects may change while they are
/// read ([`OwnerError::is_transient`]).
pub fn read_jax_arrays(
    process: &Process,
    python: &InterpreterReader,
    request: &SnapshotRequest<'_>,
) -> Result<OwnershipSnapshot, OwnerError> {
    let memory = PageCache::within(Box::new(process.memory()), request.budget);
    let heap = python.heap_listed(&memory, HeapListing::Whole)?;
    let arrays = find(&heap);
    let found = RelevantObjects { tensors: arrays.clone(), ..RelevantObjects::default() };
    let mut named = ObjectNames::default();
    let (locals, cpp) = (heap.locals(), CppReferences::none());
    let sources = PathSources { heap: &heap, found: &found, locals: &locals, cpp: &cpp };
    paths::of_variables(sources, &mut named, &|_| true);
    let (rows, misfits) = rows(&heap, &memory, &arrays, &named);
    if rows.is_empty() && misfits > 0 {
        return Err(OwnerError::Jax);
    }
    let asked = request.asked.map(|name| referrers::asked(name, &rows)).unwrap_or_default();
    let objects = asked.iter().filter_map(|row| rows[*row].object.map(Addr));
    let referrers = match request.asked {
        Some(_) => referrers::find(sources, &objects.collect::<Vec<_>>()),
        None => Vec::new(),
    };
    let limit = ReachedLimit::Time(request.options.max_time);
    let incomplete = memory.exceeded().map(|_| {
        let missing = vec![IncompleteSnapshot::TENSORS, IncompleteSnapshot::VARIABLES];
        IncompleteSnapshot { limit, missing }
    });
    Ok(OwnershipSnapshot {
        tensors: rows,
        referrers,
        objects: heap.objects().len() as u64,
        unreadable: heap.unreadable(),
        misfits,
        incomplete,
        ..OwnershipSnapshot::default()
    })
}

/// Of the objects that the collector tracks.
fn find(heap: &ObjectHeap<'_>) -> Vec<Addr> {
    let mut classes: FxHashMap<Addr, bool> = FxHashMap::default();
    let arrays = heap.objects().iter().filter(|object| {
        *classes.entry(object.class.at).or_insert_with(|| {
            let of_library = || heap.module_of(&object.class);
            last(&object.class.name) == ARRAY
                && (object.class.name.starts_with(LIBRARY)
                    || of_library().is_some_and(|module| module.starts_with(LIBRARY)))
        })
    });
    arrays.map(|object| object.at).collect()
}

/// And how many arrays are laid out otherwise.
fn rows(
    heap: &ObjectHeap<'_>,
    memory: &PageCache,
    arrays: &[Addr],
    named: &ObjectNames,
) -> (Vec<TensorRow>, u64) {
    let reader = ArrayReader { heap, memory };
    let read: Vec<Option<Option<JaxArray>>> = arrays.iter().map(|at| reader.array(*at)).collect();
    let misfits = read.iter().filter(|array| array.is_none()).count() as u64;
    // Others were deleted.
    let live: Vec<JaxArray> = read.into_iter().flatten().flatten().collect();
    let whole: FxHashMap<Addr, u64> = live
        .iter()
        .flat_map(|array| array.parts.iter().map(|part| (*part, array.buffers)))
        .collect();
    let (mut rows, mut shardings) = (Vec::new(), BTreeMap::new());
    for array in &live {
        let spread = shardings
            .entry(array.sharding)
            .or_insert_with(|| jax_devices::spread(heap, memory, array.sharding));
        let memory_of = whole.get(&array.at).copied().unwrap_or(array.buffers);
        rows.extend(array.rows(spread, memory_of, named));
    }
    (rows, misfits)
}

/// `jaxlib._jax.ArrayImpl` without its module.
pub(super) fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

struct JaxArray {
    at: Addr,
    dtype: Option<DType>,
    shape: Vec<i64>,
    sharding: Addr,
    /// Of IFRT: its memory's identity.
    buffers: u64,
    /// Arrays on the same memory: its part on each device.
    parts: Vec<Addr>,
}

struct ArrayReader<'h, 'a> {
    heap: &'h ObjectHeap<'a>,
    memory: &'h dyn Memory,
}

impl ArrayReader<'_, '_> {
    /// `Some(None)`: deleted; `None`: laid out otherwise.
    fn array(&self, at: Addr) -> Option<Option<JaxArray>> {
        let words = self.words(at, WORDS)?;
        let first = (FIRST_WORD..WORDS - 16)
            .find(|index| self.has_class(words[*index], |name| name == "ShapedArray"))?;
        let word = |by: usize| words[first + by];
        let is_dtype = |name: &str| name.starts_with("numpy.dtype") || name.ends_with("DType");
        let is_sharding = |name: &str| last(name).ends_with("Sharding");
        // Names of classes of C have their module, others not.
        let dtype = [1, 2].into_iter().find(|by| self.has_full_class(word(*by), is_dtype))?;
        let sharding = word(dtype + 4);
        if !self.has_full_class(sharding, is_sharding) {
            return None;
        }
        let shape = self.numbers([word(dtype + 1), word(dtype + 2), word(dtype + 3)])?;
        let shape: Option<Vec<i64>> = shape.into_iter().map(|it| i64::try_from(it).ok()).collect();
        let shape = shape?;
        // What follows IFRT's array is a view of it on one device, or None.
        let is_view =
            |by: &usize| self.has_class(word(*by), |name| matches!(name, "NoneType" | ARRAY));
        let has_list = dtype == 1;
        let views = if has_list { &[8][..] } else { &[11, 13] };
        let view = views.iter().copied().find(is_view)?;
        let buffers = word(view - 1);
        if buffers == 0 {
            return Some(None);
        }
        let mut parts: Vec<u64> = match has_list {
            true => self.heap.items(Addr(word(view + 1))).into_iter().map(|at| at.0).collect(),
            false => self.numbers([word(view + 1), word(view + 2), word(view + 3)])?,
        };
        parts.push(word(view));
        parts.retain(|part| self.has_class(*part, |name| name == ARRAY));
        let parts = parts.into_iter().map(Addr).collect();
        let scalar = self.memory.pointer(Addr(word(dtype)) + SCALAR).ok()?;
        let dtype = self.heap.class_at(scalar).and_then(|class| DType::named(last(&class.name)));
        Some(Some(JaxArray { at, dtype, shape, sharding: Addr(sharding), buffers, parts }))
    }

    fn words(&self, at: Addr, count: usize) -> Option<Vec<u64>> {
        let bytes = self.memory.vec(at, count * 8).ok()?;
        Some(jax_devices::words(&bytes))
    }

    fn has_full_class(&self, word: u64, is_it: impl Fn(&str) -> bool) -> bool {
        let at = Addr(word);
        at.is_plausible() && self.heap.class_of(at).is_some_and(|class| is_it(&class.name))
    }

    fn has_class(&self, word: u64, is_it: impl Fn(&str) -> bool) -> bool {
        self.has_full_class(word, |name| is_it(last(name)))
    }

    /// Of a vector, by its three pointers.
    fn numbers(&self, [begin, end, capacity]: [u64; 3]) -> Option<Vec<u64>> {
        let bytes = end.checked_sub(begin).filter(|_| end <= capacity)?;
        if bytes % 8 != 0 || bytes > 8 * MAX_ITEMS {
            return None;
        }
        match bytes {
            0 => Some(Vec::new()),
            _ => self.words(Addr(begin), (bytes / 8) as usize),
        }
    }
}

impl JaxArray {
    /// One for each device. `memory`: what it shares with the array that it is a part of.
    fn rows(
        &self,
        spread: &jax_devices::Spread,
        memory: u64,
        named: &ObjectNames,
    ) -> Vec<TensorRow> {
        let numel = self.shape.iter().try_fold(1i64, |all, size| all.checked_mul(*size));
        let whole =
            numel.and_then(|numel| u64::try_from(numel).ok()?.checked_mul(self.dtype?.bytes()?));
        let part = whole.map(|bytes| bytes.div_ceil(spread.parts.max(1)));
        // The host is one device, however many JAX sees in it.
        let mut devices: BTreeMap<Option<TensorDevice>, u64> = BTreeMap::new();
        for device in &spread.devices {
            *devices.entry(Some(*device)).or_default() += 1;
        }
        if devices.is_empty() {
            devices.insert(None, 1);
        }
        let row = |(device, parts): (_, u64)| TensorRow {
            tensor: TensorInfo {
                at: self.at.0,
                class: JAX_ARRAY.into(),
                storage: Some(Storage {
                    at: memory,
                    data: memory,
                    bytes: part.map(|part| part.saturating_mul(parts)),
                }),
                shape: Some(self.shape.clone()),
                strides: None,
                nested: None,
                numel,
                dtype: self.dtype.unwrap_or(DType::UNKNOWN),
                device,
                offset: 0,
                version: None,
                requires_grad: false,
                grad_fn: None,
                grad: None,
                parts: Vec::new(),
                part_names: &[],
            },
            object: Some(self.at.0),
            python_class: Some(Arc::from(ARRAY)),
            category: TensorCategory::Other,
            names: named.names(self.at),
            saved: Vec::new(),
            made_by: None,
            only_in_cpp: false,
            garbage: false,
        };
        devices.into_iter().map(row).collect()
    }
}
