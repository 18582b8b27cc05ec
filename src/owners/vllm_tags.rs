//! Tags of vLLM's sleep-mode allocator, in a running process.
//!
//! `vllm.device_allocator.cumem.CuMemAllocator.instance.pointer_to_data` maps an address to
//! `AllocationData(handle, tag, cpu_backup_tensor)`, with `handle` as
//! `(device, size, address, address of the driver's handle)`, also while asleep. Two equal reads in
//! a row prove consistency.

use std::collections::BTreeMap;

use crate::model::{CudaIndex, SleepTags, TaggedMemory};
use crate::python::{InterpreterReader, ObjectHeap};
use crate::target::{Addr, PageCache, Process};

const MODULE: &str = "vllm.device_allocator.cumem";
const CLASS: &str = "CuMemAllocator";
const MAX_ALLOCATIONS: usize = 1 << 16;
/// vLLM has two.
const MAX_TAGS: usize = 64;
const MAX_DEVICES: u64 = 256;
const MAX_BYTES: u64 = 1 << 44;
const MAX_TAG: usize = 100;
const MAX_READS: u32 = 8;

#[derive(Debug, PartialEq, Eq)]
struct Allocation {
    address: u64,
    device: u32,
    bytes: u64,
    tag: String,
    has_copy: bool,
}

/// vLLM's memory by device and tag.
pub fn vllm_tags(process: &Process, python: &InterpreterReader) -> SleepTags {
    let read = || {
        let memory = PageCache::new(Box::new(process.memory()));
        let heap = python.unlisted_heap(&memory)?;
        let modules = heap.modules();
        if modules.is_empty() {
            return Some(Err("the modules of the program cannot be read".to_owned()));
        }
        let (_, module) = modules.into_iter().find(|(name, _)| name == MODULE)?;
        Some(allocations(&heap, module))
    };
    let Some(mut before) = read() else { return SleepTags::NotLoaded };
    for _ in 1..MAX_READS {
        let Some(again) = read() else { return SleepTags::NotLoaded };
        if again == before {
            return match again {
                Ok(allocations) => sums(allocations),
                Err(why) => SleepTags::Unknown(why),
            };
        }
        before = again;
    }
    SleepTags::Unknown("vLLM's allocator was changed at each attempt to read it".to_owned())
}

/// Empty if the module has no allocator.
fn allocations(heap: &ObjectHeap<'_>, module: Addr) -> Result<Vec<Allocation>, String> {
    let other = |what: &str| format!("{CLASS} of {MODULE} is not laid out as known: {what}");
    let class = heap.named_value(module, CLASS).and_then(|class| heap.class_at(class));
    let class = class.ok_or_else(|| other("there is no such class"))?;
    let instance = heap.class_attribute(&class, "instance");
    let instance = instance.ok_or_else(|| other("it has no 'instance'"))?;
    let type_of = heap.class_of(instance).ok_or_else(|| other("its 'instance' is unreadable"))?;
    if &*type_of.name == "NoneType" {
        return Ok(Vec::new());
    }
    let entries = heap.attribute(instance, "pointer_to_data");
    let entries = entries.and_then(|dict| heap.entries_if_dict(dict));
    let entries = entries.ok_or_else(|| other("'pointer_to_data' is no dictionary"))?;
    if entries.len() > MAX_ALLOCATIONS {
        return Err(other("'pointer_to_data' has too many entries"));
    }
    let of = |(key, value): (Addr, Addr)| allocation(heap, key, value);
    let all: Option<Vec<Allocation>> = entries.into_iter().map(of).collect();
    all.ok_or_else(|| other("an entry of 'pointer_to_data' is no allocation"))
}

fn allocation(heap: &ObjectHeap<'_>, key: Addr, value: Addr) -> Option<Allocation> {
    let address = heap.integer(key)?;
    let [handle, tag, copy] = heap.attributes_called(value, ["handle", "tag", "cpu_backup_tensor"]);
    let [device, bytes, at, _] = heap.items(handle?)[..] else { return None };
    let (device, bytes) = (heap.integer(device)?, heap.integer(bytes)?);
    let tag = heap.text(tag?).filter(|tag| tag.chars().count() <= MAX_TAG)?;
    // The address is stored twice.
    let fits = heap.integer(at)? == address && (1..=MAX_BYTES).contains(&bytes);
    let device = u32::try_from(device).ok().filter(|_| fits && device < MAX_DEVICES)?;
    let has_copy = &*heap.class_of(copy?)?.name != "NoneType";
    Some(Allocation { address, device, bytes, tag, has_copy })
}

fn sums(allocations: Vec<Allocation>) -> SleepTags {
    let mut tags: BTreeMap<(u32, String), (u64, u64)> = BTreeMap::new();
    for Allocation { device, bytes, tag, has_copy, .. } in allocations {
        let (all, on_host) = tags.entry((device, tag)).or_default();
        *all += bytes;
        *on_host += if has_copy { bytes } else { 0 };
    }
    if tags.len() > MAX_TAGS {
        return SleepTags::Unknown(format!("vLLM's allocator has {} tags", tags.len()));
    }
    let memory = |((device, tag), (bytes, on_host))| TaggedMemory {
        device: CudaIndex(device),
        tag,
        bytes,
        on_host,
    };
    SleepTags::Known(tags.into_iter().map(memory).collect())
}
