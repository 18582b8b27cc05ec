//! Discovery of, and walks over, allocators of every known layout, without a PyTorch: right when
//! sound, refused when damaged, never a panic or a hang.

#![allow(unreachable_pub, missing_docs)]

mod image;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use image::{Builder, HEAP, LAYOUTS, Layout, VARIABLE};
use memspy::model::{
    AllocatorBackend, Block, BlockState, CudaIndex, Metric, Nanos, Pool, PoolId, Segment,
    SnapshotConsistency,
};
use memspy::target::{Addr, AddressRange, Memory, MemoryError, MemoryImage};
use memspy::torch::{AllocatorError, AllocatorReader};

const MIB: u64 = 1 << 20;
/// The first device's allocator in [`Builder`]'s image: after a vector of one pointer.
const DEVICE: Addr = Addr(HEAP + 0x30);

/// A segment at `address` of blocks (size, requested, state): `a`llocated, `p`ending, `i`nactive.
fn segment(address: u64, small: bool, pool: PoolId, blocks: &[(u64, u64, char)]) -> Segment {
    let mut end = address;
    let blocks: Vec<Block> = blocks
        .iter()
        .map(|(size, requested, state)| {
            let state = match state {
                'a' => BlockState::Allocated,
                'p' => BlockState::PendingFree,
                _ => BlockState::Inactive,
            };
            end += size;
            Block { address: end - size, size: *size, requested: *requested, state }
        })
        .collect();
    let size = end - address;
    let (expandable, granule, retired) = (false, 0, false);
    Segment { address, size, stream: 0x77, small, expandable, granule, retired, pool, blocks }
}

/// Some of everything.
fn segments() -> Vec<Segment> {
    let default = PoolId::default();
    let base = 0x7000_0000_0000u64;
    let mut segments = vec![
        segment(
            base,
            true,
            default,
            &[(512, 100, 'a'), (1024, 0, 'i'), (512, 512, 'p'), (2 * MIB - 2048, 0, 'i')],
        ),
        segment(base + 4 * MIB, false, default, &[(20 * MIB, 19 * MIB + 3, 'a')]),
        segment(base + 32 * MIB, false, default, &[(20 * MIB, 0, 'i')]),
        segment(
            base + 64 * MIB,
            false,
            PoolId(0, 1),
            &[(9 * MIB, 9 * MIB, 'a'), (11 * MIB, 0, 'i')],
        ),
        segment(base + 96 * MIB, true, PoolId(3, 0), &[(2 * MIB, 0, 'i')]),
        segment(base + 128 * MIB, false, default, &[(6 * MIB, 6 * MIB, 'a'), (14 * MIB, 0, 'i')]),
    ];
    segments[5].expandable = true;
    segments[5].granule = 20 * MIB;
    for n in 0..40 {
        let blocks = [(MIB, MIB - n, 'a'), (MIB, 0, if n % 3 == 0 { 'i' } else { 'p' })];
        segments.push(segment(base + (200 + 4 * n) * MIB, true, default, &blocks));
    }
    segments
}

fn attach(memory: impl Memory + 'static) -> Result<AllocatorReader, AllocatorError> {
    AllocatorReader::with_memory(Box::new(memory), VARIABLE, None)
}

fn reads_back(layout: &Layout, devices: &[Vec<Segment>]) {
    let mut reader = attach(Builder::build(layout, devices)).unwrap();
    assert_eq!(*reader.backend(), AllocatorBackend::Native, "{}", layout.versions);
    let mut counters = Vec::new();
    reader.counters(&mut counters).unwrap();
    for ((index, counters), segments) in counters.iter().zip(devices) {
        let reserved: u64 = segments.iter().map(|s| s.size).sum();
        assert_eq!(counters.reserved() as u64, reserved, "{}", layout.versions);
        let map = reader.blocks(*index, &|| Nanos(1)).unwrap();
        assert_eq!(map.consistency, SnapshotConsistency::Consistent, "{}", layout.versions);
        assert_eq!(map.allocated() as i64, counters.allocated());
        assert_eq!(&map.segments, segments, "{}", layout.versions);
        assert_eq!((counters.num_alloc_retries, counters.num_ooms), (3, 2));
        assert_eq!(counters.max_split_size, Some(-1), "{}", layout.versions);
        let since_2_3 = !["2.1", "2.2"].contains(&layout.versions);
        assert_eq!(counters.num_device_alloc, since_2_3.then_some(41), "{}", layout.versions);
    }
}

#[test]
fn every_layout_is_found() {
    for layout in &LAYOUTS {
        reads_back(layout, &[segments()]);
        reads_back(layout, &[segments(), Vec::new(), segments()]);
    }
}

#[test]
fn a_device_without_allocated_blocks_is_found() {
    let cached = segment(0x7000_0000_0000, true, PoolId::default(), &[(2 * MIB, 0, 'i')]);
    for layout in &LAYOUTS {
        reads_back(layout, &[Vec::new()]);
        reads_back(layout, &[vec![cached.clone()]]);
    }
}

#[test]
fn without_devices_cuda_is_not_initialised() {
    let mut reader = attach(Builder::build(&LAYOUTS[0], &[])).unwrap();
    assert_eq!(*reader.backend(), AllocatorBackend::NotInitialized);
    assert!(matches!(reader.counters(&mut Vec::new()), Err(AllocatorError::NotInitialized)));
}

#[test]
fn an_unknown_layout_is_refused_with_what_is_wrong() {
    let mut image = Builder::build(&LAYOUTS[7], &[segments()]);
    let reader = attach(image.clone()).unwrap();
    drop(reader);
    // Statistics that do not add up.
    image.insert(DEVICE + 0x28, &77u64.to_le_bytes());
    let error = attach(image).err().expect("refused");
    assert!(matches!(error, AllocatorError::UnknownLayout { .. }), "{error}");
    assert!(error.to_string().contains("statistics"), "{error}");
}

#[test]
fn blocks_that_contradict_the_counters_are_refused() {
    let image = Builder::build(&LAYOUTS[9], &[segments()]);
    let mut reader = attach(image.clone()).unwrap();
    reader.blocks(CudaIndex(0), &|| Nanos(0)).unwrap();
    // One byte more in every counter of reserved bytes.
    let reserved = DEVICE + 0x28 + 5 * 0x60;
    let mut wrong = image;
    for pool in [0, 2] {
        let at = reserved + 0x20 * pool;
        let value = (&wrong as &dyn Memory).u64(at).unwrap();
        wrong.insert(at, &(value + 1).to_le_bytes());
    }
    let mut reader = attach(wrong).unwrap();
    let error = reader.blocks(CudaIndex(0), &|| Nanos(0)).unwrap_err();
    assert!(error.to_string().contains("reserved_bytes.all"), "{error}");
    reader.counters(&mut Vec::new()).unwrap();
}

/// A target that, once at work, changes a total between any two reads.
struct Busy {
    image: MemoryImage,
    total: Addr,
    reads: AtomicU64,
    works: Arc<AtomicBool>,
}

impl Memory for Busy {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        self.image.read_spans(spans, out)?;
        if !self.works.load(Relaxed) {
            return Ok(());
        }
        let mut at = 0;
        for span in spans {
            if span.addr <= self.total && self.total.0 + 8 <= span.addr.0 + span.len as u64 {
                let read = self.reads.fetch_add(1, Relaxed);
                for pool in 0..2 {
                    let place = at + (self.total.0 - span.addr.0) as usize + 0x20 * pool;
                    out[place..place + 8].copy_from_slice(&read.to_le_bytes());
                }
                out[at + (self.total.0 - span.addr.0) as usize + 0x40..][..8].fill(0);
            }
            at += span.len;
        }
        Ok(())
    }
}

#[test]
fn a_map_of_a_target_that_never_rests_is_degraded() {
    for seen_at_rest in [true, false] {
        let works = Arc::new(AtomicBool::new(false));
        let image = Builder::build(&LAYOUTS[7], &[segments()]);
        let (total, reads) = (DEVICE + 0x28 + 0x10, AtomicU64::new(1));
        let mut reader = attach(Busy { image, total, reads, works: works.clone() }).unwrap();
        if seen_at_rest {
            reader.blocks(CudaIndex(0), &|| Nanos(0)).unwrap();
        }
        works.store(true, Relaxed);
        match reader.blocks(CudaIndex(0), &|| Nanos(0)) {
            Ok(map) if seen_at_rest => {
                assert!(matches!(map.consistency, SnapshotConsistency::Degraded { .. }));
                assert!(map.retries > 3);
                assert_eq!(map.segments, segments());
            }
            // The layout of blocks is searched for at rest only.
            Err(AllocatorError::Torn { .. }) if !seen_at_rest => {}
            other => panic!("{other:?}"),
        }
        // The counters alone need no rest.
        let mut counters = Vec::new();
        reader.counters(&mut counters).unwrap();
        assert!(counters[0].1.stat(Metric::Allocation, Pool::All).allocated > 0);
    }
}

/// Repeatable pseudorandom numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

/// Any result must at least be consistent.
fn survives(memory: impl Memory + 'static) {
    let start = Instant::now();
    if let Ok(mut reader) = attach(memory) {
        let mut counters = Vec::new();
        let _ = reader.counters(&mut counters);
        let _ = reader.refresh();
        if let Ok(map) = reader.blocks(CudaIndex(0), &|| Nanos(0))
            && map.consistency == SnapshotConsistency::Consistent
            && let Some((_, counters)) = counters.first()
        {
            assert_eq!(map.allocated() as i64, counters.allocated());
            assert_eq!(map.reserved() as i64, counters.reserved());
            for segment in &map.segments {
                assert_eq!(segment.blocks.iter().map(|b| b.size).sum::<u64>(), segment.size);
            }
        }
    }
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
}

#[test]
fn damage_is_survived() {
    let mut random = Random(20240229);
    for layout in [&LAYOUTS[1], &LAYOUTS[7], &LAYOUTS[9]] {
        let image = Builder::build(layout, &[segments()]);
        let heap = (&image as &dyn Memory).vec(Addr(HEAP), 0x8000).unwrap();
        let pointers: Vec<u64> = heap
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().unwrap()))
            .filter(|word| *word > HEAP && *word < HEAP + 0x8000)
            .collect();
        for _ in 0..300 {
            let mut damaged = image.clone();
            for _ in 0..=random.below(4) {
                let at = Addr(HEAP + 8 * random.below(0x1000));
                // Other pointers make cycles and crossed lists; small numbers and -1 wrong lengths.
                let word = match random.below(4) {
                    0 => random.below(1 << 12),
                    1 => u64::MAX >> random.below(64),
                    2 => u64::MAX,
                    _ => pointers[random.below(pointers.len() as u64) as usize],
                };
                damaged.insert(at, &word.to_le_bytes());
            }
            survives(damaged);
        }
    }
}

/// Memory with some failing reads.
struct Failing {
    image: MemoryImage,
    reads: AtomicU64,
    fails: u64,
}

impl Memory for Failing {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        let read = self.reads.fetch_add(1, Relaxed);
        match spans.get((read % 3) as usize) {
            Some(span) if read.is_multiple_of(self.fails) => {
                Err(MemoryError::Fault { span: *span, index: (read % 3) as usize })
            }
            _ => self.image.read_spans(spans, out),
        }
    }
}

#[test]
fn reads_that_fail_are_survived() {
    for fails in 2..60 {
        let image = Builder::build(&LAYOUTS[9], &[segments(), segments()]);
        survives(Failing { image, reads: AtomicU64::new(1), fails });
    }
}
