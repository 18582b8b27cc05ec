//! A caching allocator in a memory image, in the layout of any PyTorch version.
//!
//! The layouts were measured in the official wheels, by disassembly and, equally, by shape.

use std::collections::BTreeMap;

use memspy::model::{Block, BlockState, PoolId, Segment};
use memspy::target::{Addr, MemoryImage};

/// A layout of `DeviceCachingAllocator` and its parts; offsets in bytes.
pub struct Layout {
    pub versions: &'static str,
    pub vector: usize,
    pub object: usize,
    pub gap: usize,
    pub large: usize,
    pub small: usize,
    pub sets: usize,
    pub active: usize,
    pub graph_pools: usize,
    pub block_size: usize,
}

#[rustfmt::skip]
pub const LAYOUTS: [Layout; 10] = [
    Layout { versions: "2.1", vector: 0x50, object: 0x608, gap: 0, large: 0x3e0, small: 0x450, sets: 2, active: 0x4c0, graph_pools: 0x590, block_size: 0x30 },
    Layout { versions: "2.2", vector: 0x3ee0, object: 0x628, gap: 0, large: 0x3e0, small: 0x450, sets: 2, active: 0x4c0, graph_pools: 0x590, block_size: 0x30 },
    Layout { versions: "2.3-2.4", vector: 0x57f0, object: 0x638, gap: 0, large: 0x3f8, small: 0x470, sets: 2, active: 0x4e8, graph_pools: 0x5c8, block_size: 0x30 },
    Layout { versions: "2.5-2.7", vector: 0x5838, object: 0x698, gap: 0, large: 0x3f8, small: 0x470, sets: 2, active: 0x4e8, graph_pools: 0x5f0, block_size: 0x30 },
    Layout { versions: "2.8", vector: 0x5838, object: 0x6b8, gap: 0, large: 0x3f8, small: 0x470, sets: 2, active: 0x4e8, graph_pools: 0x610, block_size: 0x30 },
    Layout { versions: "2.9", vector: 0x5838, object: 0x6c8, gap: 0, large: 0x3f8, small: 0x470, sets: 2, active: 0x4e8, graph_pools: 0x618, block_size: 0x30 },
    Layout { versions: "2.10", vector: 0x5838, object: 0xb38, gap: 0, large: 0x400, small: 0x478, sets: 2, active: 0x4f0, graph_pools: 0xa90, block_size: 0x30 },
    Layout { versions: "2.11", vector: 0x5838, object: 0xb58, gap: 0, large: 0x400, small: 0x478, sets: 2, active: 0x4f0, graph_pools: 0xab0, block_size: 0x38 },
    Layout { versions: "2.12", vector: 0x5838, object: 0xb78, gap: 0, large: 0x408, small: 0x480, sets: 2, active: 0x4f8, graph_pools: 0xab8, block_size: 0x38 },
    Layout { versions: "2.13-2.15", vector: 0x5838, object: 0xc08, gap: 0x20, large: 0x428, small: 0x4d0, sets: 3, active: 0x578, graph_pools: 0xb40, block_size: 0x38 },
];

/// The variable `allocator`.
pub const VARIABLE: Addr = Addr(0x5555_0000_0000);
/// The heap's beginning.
pub const HEAP: u64 = 0x7f00_0000_0000;
const STATS: usize = 0x28;
const LOAD: u64 = 0x3f00_0000_0000_0300;

/// An allocator under construction.
pub struct Builder<'a> {
    layout: &'a Layout,
    image: MemoryImage,
    top: u64,
    objects: BTreeMap<u64, Vec<u8>>,
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl<'a> Builder<'a> {
    /// An allocator with these segments by device. An unmapped block follows an expandable segment.
    pub fn build(layout: &'a Layout, devices: &[Vec<Segment>]) -> MemoryImage {
        let (image, top, objects) = (MemoryImage::default(), HEAP, BTreeMap::new());
        let mut builder = Builder { layout, image, top, objects };
        let vector = builder.new_object(8 * devices.len().max(1));
        for (index, segments) in devices.iter().enumerate() {
            let device = builder.device(index as u8, segments);
            builder.set(vector, 8 * index, device);
        }
        let mut native = vec![0; 0x8000];
        let (vtable, type_info, name) = (0x5555_0010_0000, 0x5555_0011_0000, 0x5555_0012_0000);
        put(&mut native, 0, vtable);
        if !devices.is_empty() {
            let end = vector + 8 * devices.len() as u64;
            for (word, value) in [vector, end, end].into_iter().enumerate() {
                put(&mut native, layout.vector + 8 * word, value);
            }
        }
        let mut image = std::mem::take(&mut builder.image);
        image.insert(VARIABLE, &0x5555_0001_0000u64.to_le_bytes());
        image.insert(Addr(0x5555_0001_0000), &native);
        image.insert(Addr(vtable - 8), &type_info_words(type_info));
        image.insert(Addr(type_info + 8), &u64::to_le_bytes(name));
        let mut text = b"N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE".to_vec();
        text.resize(256, 0);
        image.insert(Addr(name), &text);
        let mut heap = vec![0; (builder.top - HEAP) as usize + 0x1000];
        for (addr, bytes) in &builder.objects {
            let at = (addr - HEAP) as usize;
            put(&mut heap, at - 8, (bytes.len() as u64 + 8) | 1);
            heap[at..at + bytes.len()].copy_from_slice(bytes);
        }
        image.insert(Addr(HEAP), &heap);
        image
    }

    /// A heap object as in glibc: its size precedes it.
    fn new_object(&mut self, len: usize) -> u64 {
        let addr = self.top + 0x10;
        let len = len.next_multiple_of(16) + 8;
        self.objects.insert(addr, vec![0; len]);
        self.top = addr + len as u64 - 8;
        addr
    }

    fn set(&mut self, object: u64, at: usize, value: u64) {
        put(self.objects.get_mut(&object).unwrap(), at, value);
    }

    fn device(&mut self, index: u8, segments: &[Segment]) -> u64 {
        let layout = self.layout;
        let device = self.new_object(layout.object - 8);
        self.set(device, 0x10, 1); // PTHREAD_MUTEX_RECURSIVE
        self.counters(device, segments);
        let mut privates: BTreeMap<PoolId, u64> = BTreeMap::new();
        for segment in segments.iter().filter(|s| s.pool != PoolId::default()) {
            privates.entry(segment.pool).or_insert_with(|| self.new_object(0x1c0));
        }
        let (mut active, mut cached) = (Vec::new(), BTreeMap::<u64, Vec<u64>>::new());
        let stride = (layout.small - layout.large) as u64;
        let own = [(device + layout.large as u64, 0), (device + layout.small as u64, 0)];
        let mut pools = own.to_vec();
        for owner in privates.values() {
            pools.extend([(owner + 0x18, *owner), (owner + 0x18 + stride, *owner)]);
        }
        for segment in segments {
            let pool = match privates.get(&segment.pool) {
                Some(owner) => owner + 0x18 + if segment.small { stride } else { 0 },
                None => own[usize::from(segment.small)].0,
            };
            self.segment(index, segment, pool, &mut active, &mut cached);
        }
        for (place, (pool, owner)) in pools.iter().enumerate() {
            let (object, at) = match owner {
                0 => (device, (pool - device) as usize),
                owner => (*owner, (pool - owner) as usize),
            };
            for set in 0..layout.sets {
                let blocks =
                    if set == 0 { cached.remove(pool) } else { cached.remove(&(pool + 1)) };
                let blocks = if set < 2 { blocks.unwrap_or_default() } else { Vec::new() };
                self.tree(object, at + 0x30 * set, &blocks);
            }
            self.set(object, at + 0x30 * layout.sets, (place % 2) as u64);
            self.set(object, at + 0x30 * layout.sets + 8, *owner);
        }
        let active: Vec<Vec<u64>> = active.iter().map(|block| vec![*block]).collect();
        self.table(device, layout.active, &active);
        let privates: Vec<Vec<u64>> =
            privates.iter().map(|(id, owner)| vec![id.0, id.1, *owner]).collect();
        self.table(device, layout.graph_pools, &privates);
        device
    }

    fn segment(
        &mut self,
        index: u8,
        segment: &Segment,
        pool: u64,
        active: &mut Vec<u64>,
        cached: &mut BTreeMap<u64, Vec<u64>>,
    ) {
        let size = self.layout.block_size;
        let mut prev = 0;
        let unmapped = Block {
            address: segment.address + segment.size,
            size: 1 << 40,
            requested: 0,
            state: BlockState::Inactive,
        };
        let tail = segment.expandable.then_some((&unmapped, false));
        for (block, mapped) in segment.blocks.iter().map(|b| (b, true)).chain(tail) {
            let object = self.new_object(0xd0);
            let allocated = u64::from(block.state == BlockState::Allocated);
            // An inactive block keeps the requested size of an earlier use.
            let requested = if block.state == BlockState::Inactive { 777 } else { block.requested };
            self.set(object, 0, u64::from(index));
            self.set(object, 8, segment.stream);
            self.set(object, size, block.size);
            self.set(object, size + 0x08, requested);
            self.set(object, size + 0x10, pool);
            self.set(object, size + 0x18, block.address);
            self.set(object, size + 0x20, allocated | u64::from(mapped) << 8);
            self.set(object, size + 0x28, prev);
            if prev != 0 {
                self.set(prev, size + 0x30, object);
            }
            prev = object;
            match block.state {
                BlockState::Inactive => {
                    cached.entry(pool + u64::from(!mapped)).or_default().push(object)
                }
                _ => active.push(object),
            }
        }
    }

    /// A `std::set` of `values` at `at` in `object`.
    fn tree(&mut self, object: u64, at: usize, values: &[u64]) {
        let header = object + at as u64 + 8;
        let nodes: Vec<u64> = values.iter().map(|_| self.new_object(0x28)).collect();
        let root = self.subtree(&nodes, values, header);
        let ends = (nodes.first().unwrap_or(&header), nodes.last().unwrap_or(&header));
        let words = [0, root, *ends.0, *ends.1, values.len() as u64];
        for (word, value) in words.into_iter().enumerate() {
            self.set(object, at + 8 + 8 * word, value);
        }
    }

    fn subtree(&mut self, nodes: &[u64], values: &[u64], parent: u64) -> u64 {
        let middle = nodes.len() / 2;
        let Some(&node) = nodes.get(middle) else { return 0 };
        let left = self.subtree(&nodes[..middle], &values[..middle], node);
        let right = self.subtree(&nodes[middle + 1..], &values[middle + 1..], node);
        for (word, value) in [1, parent, left, right, values[middle]].into_iter().enumerate() {
            self.set(node, 8 * word, value);
        }
        node
    }

    /// A `ska::flat_hash_map` of `entries` at `at` in `object`.
    fn table(&mut self, object: u64, at: usize, entries: &[Vec<u64>]) {
        let buckets = (2 * entries.len()).next_power_of_two().max(4);
        let entry = if entries.first().is_some_and(|e| e.len() > 1) { 0x20 } else { 0x10 };
        let slots = self.new_object(entry * (buckets + 4));
        for slot in 0..buckets + 3 {
            let used = slot % 2 == 0 && slot / 2 < entries.len();
            self.set(slots, entry * slot, if used { 0 } else { 0xff });
            if used {
                for (word, value) in entries[slot / 2].iter().enumerate() {
                    self.set(slots, entry * slot + 8 + 8 * word, *value);
                }
            }
        }
        let words = [slots, buckets as u64 - 1, LOAD, entries.len() as u64];
        for (word, value) in words.into_iter().enumerate() {
            self.set(object, at + 8 * word, value);
        }
    }

    fn counters(&mut self, device: u64, segments: &[Segment]) {
        let layout = self.layout;
        let array = |metric: usize| STATS + 0x60 * metric + if metric > 5 { layout.gap } else { 0 };
        if layout.gap > 0 {
            self.table(device, STATS + 6 * 0x60, &[]);
        }
        for pool in 0..3 {
            let mut sums = [0; 9];
            let of_pool = |s: &&Segment| pool == 0 || s.small == (pool == 1);
            for segment in segments.iter().filter(of_pool) {
                sums[1] += 1;
                for block in &segment.blocks {
                    let allocated = u64::from(block.state == BlockState::Allocated);
                    let active = u64::from(block.state != BlockState::Inactive);
                    sums[0] += allocated;
                    sums[2] += active;
                    sums[4] += allocated * block.size;
                    sums[5] += block.size;
                    sums[6] += active * block.size;
                    sums[8] += active * block.requested;
                }
            }
            for (metric, sum) in sums.into_iter().enumerate() {
                let at = array(metric) + 0x20 * pool;
                // The totals were reset a while ago.
                for (word, value) in [sum, sum + 5, sum / 2, sum / 4].into_iter().enumerate() {
                    self.set(device, at + 8 * word, value);
                }
            }
            // Sums of halves are not halves of sums.
            if pool == 2 {
                for metric in 0..9 {
                    for word in 2..4 {
                        let of = |pool: usize| array(metric) + 0x20 * pool + 8 * word;
                        let object = &self.objects[&device];
                        let read =
                            |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().unwrap());
                        let total = read(of(1)) + read(of(2));
                        self.set(device, of(0), total);
                    }
                }
            }
        }
        let tail = array(9) + 0x50;
        let words = (layout.large - tail) / 8;
        let limit = match words {
            1 => 0,
            4 | 5 => 3,
            _ => 4,
        };
        for word in 0..limit {
            self.set(device, tail + 8 * word, 40 + word as u64);
        }
        self.set(device, tail + 8 * limit, u64::MAX);
        self.set(device, array(9), 3); // num_alloc_retries
        self.set(device, array(9) + 8, 2); // num_ooms
    }
}

fn type_info_words(type_info: u64) -> [u8; 8] {
    type_info.to_le_bytes()
}
