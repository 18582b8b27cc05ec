//! mimalloc's layouts in CPython, printed by `scripts/print-cpython-layout.sh`.

use crate::target::{Addr, Field};

/// `mi_heap_t`, `mi_page_t` (also a `mi_slice_t`), `mi_segment_t` (Objects/mimalloc/types.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MimallocLayout {
    /// A thread's heaps are consecutive, before their `tld`.
    pub(super) heap_len: usize,
    pub(super) heap_tld: Field<Addr>,
    pub(super) heap_thread: Field<u64>,
    pub(super) heap_pages: Field<u64>,
    pub(super) heap_tag: Field<u8>,
    /// Each begins with its first page.
    pub(super) heap_queues: usize,
    pub(super) queues: usize,
    pub(super) queue_len: usize,
    /// Where ending threads leave their segments.
    pub(super) tld_abandoned: Field<Addr>,
    pub(super) abandoned: AbandonedSegments,
    pub(super) page_len: usize,
    pub(super) page_slices: Field<u32>,
    pub(super) page_tag: Field<u8>,
    pub(super) page_tag_bit: u8,
    pub(super) page_capacity: Field<u16>,
    /// Including blocks that other threads freed.
    pub(super) page_used: Field<u32>,
    pub(super) page_used_mask: u32,
    pub(super) page_free: Field<u64>,
    pub(super) page_local_free: Field<u64>,
    pub(super) page_thread_free: Field<u64>,
    pub(super) page_next: Field<Addr>,
    pub(super) blocks: PageBlocks,
    /// Abandoned pages: none or all, except while a thread ends or adopts them.
    pub(super) segment_abandoned: Field<u64>,
    pub(super) segment_entries: Field<u64>,
    pub(super) segment_slices: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AbandonedSegments {
    /// In lists of an interpreter's `mi_abandoned_pool_t`.
    Listed { lists: [Field<u64>; 2], next: Field<u64> },
    /// `mi_subproc_t` counts them and is their `owner`; `thread` is 0.
    Counted { count: Field<u64>, owner: Field<Addr>, thread: Field<u64> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageBlocks {
    /// From `xblock_size`.
    Computed { size: Field<u32> },
    /// `block_size`, `page_start`.
    Recorded { size: Field<u64>, start: Field<Addr> },
}

impl PageBlocks {
    pub(super) fn size(&self, copy: &[u8]) -> u64 {
        match self {
            PageBlocks::Computed { size } => size.get(copy).map(u64::from),
            PageBlocks::Recorded { size, .. } => size.get(copy),
        }
        .unwrap_or_default()
    }
}

pub(super) const GENERATIONS: [&MimallocLayout; 2] = [&V2_1, &V2_5];

/// mimalloc 2.1 (CPython 3.13, up to 3.14.4), from the headers of 3.14.4.
#[rustfmt::skip]
const V2_1: MimallocLayout = MimallocLayout {
    heap_len: 3064, heap_tld: Field::at(0), heap_thread: Field::at(2848), heap_pages: Field::at(3024), heap_tag: Field::at(3057), heap_queues: 1040, queues: 75, queue_len: 24,
    tld_abandoned: Field::at(944), abandoned: AbandonedSegments::Listed { lists: [Field::at(64), Field::at(0)], next: Field::at(176), },
    page_len: 96, page_slices: Field::at(0), page_tag: Field::at(8), page_tag_bit: 3, page_capacity: Field::at(10), page_used: Field::at(24), page_used_mask: 0xffffffff,
    page_free: Field::at(16), page_local_free: Field::at(32), page_thread_free: Field::at(40), page_next: Field::at(56),
    blocks: PageBlocks::Computed { size: Field::at(28), }, segment_abandoned: Field::at(192), segment_entries: Field::at(248), segment_slices: 264,
};

/// mimalloc 2.5, only from the headers of 3.14.10, so all its counts must be consistent.
#[rustfmt::skip]
const V2_5: MimallocLayout = MimallocLayout {
    heap_len: 3088, heap_tld: Field::at(0), heap_thread: Field::at(16), heap_pages: Field::at(192), heap_tag: Field::at(249), heap_queues: 1288, queues: 75, queue_len: 24,
    tld_abandoned: Field::at(936), abandoned: AbandonedSegments::Counted { count: Field::at(0), owner: Field::at(40), thread: Field::at(280), },
    page_len: 112, page_slices: Field::at(0), page_tag: Field::at(35), page_tag_bit: 0, page_capacity: Field::at(10), page_used: Field::at(32), page_used_mask: 0xffff,
    page_free: Field::at(16), page_local_free: Field::at(24), page_thread_free: Field::at(56), page_next: Field::at(72),
    blocks: PageBlocks::Recorded { size: Field::at(40), start: Field::at(48), }, segment_abandoned: Field::at(200), segment_entries: Field::at(272), segment_slices: 288,
};
