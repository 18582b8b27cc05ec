//! PyTorch's allocator of page-locked memory, found by shape: a hash table from addresses to blocks
//! that have the same address (aten/src/ATen/core/CachingHostAllocator.h).

use super::code_statics::references;
use super::containers::FlatTable;
use crate::model::PageLockedBlock;
use crate::target::{Addr, Field, LoadedObject, Memory, Process};

/// `at::getHostAllocator(DeviceType)` reads an array (2.8 or newer).
const BY_DEVICE: &str = "_ZN2at16getHostAllocatorEN3c1010DeviceTypeE";
/// Before: `at::cuda::getCachingHostAllocator()` returns a static variable.
const OF_CUDA: &str = "_ZN2at4cuda23getCachingHostAllocatorEv";
const CODE: usize = 0x40;
const CUDA: u64 = 1;
/// Of the interface, which points to its implementation.
const INTERFACE: usize = 0x80;
const IMPLEMENTATION: usize = 0x2000;
/// Distance, address, block.
const ENTRY: usize = 0x18;
const MAX_SLOTS: u64 = 1 << 20;
/// In a block: mutex, size, address, whether it is allocated.
const BLOCK: usize = 0x80;

/// Its blocks; `None` if it was not found.
pub fn page_locked(process: &Process) -> Option<Vec<PageLockedBlock>> {
    let memory = process.memory();
    let memory: &dyn Memory = &memory;
    let mappings = process.mappings().ok()?;
    let code = |stem: &'static str, name: &str| {
        let wanted = move |file: &str| file.starts_with(stem) && file.contains(".so");
        let object = LoadedObject::find(memory, &mappings, wanted)?.ok()?;
        let at = object.exported(memory, name).ok()??;
        Some(references(at, &memory.vec(at, CODE).ok()?))
    };
    let by_device = code("libtorch_cpu", BY_DEVICE).unwrap_or_default();
    let by_device = by_device.into_iter().filter_map(|array| memory.pointer(array + 8 * CUDA).ok());
    let of_cuda = code("libtorch_cuda", OF_CUDA).unwrap_or_default();
    let mut candidates = by_device.chain(of_cuda).filter(|at| at.is_plausible());
    candidates.find_map(|allocator| blocks_of(memory, allocator))
}

fn blocks_of(memory: &dyn Memory, allocator: Addr) -> Option<Vec<PageLockedBlock>> {
    let interface = memory.vec_up_to(allocator, INTERFACE);
    let implementations = words(&interface).into_iter().map(Addr).filter(|at| at.is_plausible());
    implementations.filter(|at| at.0.is_multiple_of(16)).find_map(|implementation| {
        let copy = memory.vec_up_to(implementation, IMPLEMENTATION);
        (0..copy.len().saturating_sub(FlatTable::SIZE)).step_by(8).find_map(|at| {
            let table = FlatTable::decode(&copy[at..])?;
            let is_table = table.count > 0 && table.slots <= MAX_SLOTS;
            is_table.then(|| entries(memory, table)).flatten()
        })
    })
}

/// `None` if it is another table.
fn entries(memory: &dyn Memory, table: FlatTable) -> Option<Vec<PageLockedBlock>> {
    let entries = memory.vec(table.entries, ENTRY * table.slots as usize).ok()?;
    let used = entries.chunks_exact(ENTRY).filter(|entry| FlatTable::is_used(entry[0]));
    let mut blocks = Vec::new();
    for entry in used {
        let [address, block] = [8, 16].map(|at| Field::<u64>::at(at).get(entry));
        let (address, block) = (address?, Addr(block?));
        if !block.is_plausible() || !Addr(address).is_plausible() {
            return None;
        }
        let copy = memory.vec(block, BLOCK).ok()?;
        let at = words(&copy).iter().position(|word| *word == address).filter(|at| *at > 0)?;
        let size = Field::<u64>::at(8 * (at - 1)).get(&copy)?;
        let is_used = Field::<u8>::at(8 * (at + 1)).get(&copy)?;
        if size == 0 || size >= 1 << 44 || is_used > 1 {
            return None;
        }
        blocks.push(PageLockedBlock { address, size, is_used: is_used == 1 });
    }
    (blocks.len() as u64 == table.count).then_some(blocks)
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes).collect()
}
