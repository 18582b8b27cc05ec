//! Tracked objects of a CPython without a GIL: as Python/gc_free_threading.c (`gc_visit_heaps`)
//! finds them, in mimalloc heaps found by shape. A thread stopped during an allocation or free
//! makes the counts of one page differ by one; its block is no tracked object. Other
//! inconsistencies require another read.

mod block_area;
mod segments;

use block_area::BlockArea;
use rustc_hash::FxHashSet;

use super::blocks::{AbandonedSegments, GENERATIONS, MimallocLayout};
use super::lists::{MAX_OBJECTS, TrackedObject};
use super::{HeapError, HeapListing};
use crate::python::layouts::interpreter::Interpreter;
use crate::python::layouts::{GcState, PythonLayout, RefcountLayout};
use crate::python::stacks::{MAX_INTERPRETERS, MAX_THREADS};
use crate::target::{Addr, Field, MemoryError, PageCache, PageReader, Process};

const SEARCHED: usize = 2048;
/// Heaps per thread; those of tracked objects, with bytes before each object
/// (Include/internal/pycore_mimalloc.h).
const HEAPS: u8 = 4;
const OBJECTS: [(u8, u64); 2] = [(2, 0), (3, 16)];
/// `ob_gc_bits` (Include/internal/pycore_gc.h).
const TRACKED: u8 = 1 << 0;
const DEFERRED: u8 = 1 << 6;
/// `ob_ref_local`, `ob_ref_shared` (Include/refcount.h).
const IMMORTAL: u32 = u32::MAX;
const SHARED_SHIFT: i64 = 2;
/// PYTHONMALLOC=debug: size, and a letter between impossible bytes (Objects/obmalloc.c).
const DEBUG_HEADER: u64 = 16;
const DEBUG_MARK: u64 = 0xfdfd_fdfd_fdfd_fd00;
const HEAD: usize = 32;
/// Aligned to their size.
const SEGMENT: u64 = 32 << 20;
const SLICE: u64 = 64 << 10;
const MAX_SEGMENTS: usize = 1 << 20;
/// In `xthread_free`, `abandoned`.
const THREAD_FREE_FLAGS: u64 = 3;
/// Skipped blocks of small pages (`_mi_segment_page_start_from_slice`, Objects/mimalloc/segment.c).
const MIN_BLOCK_BYTES: u64 = 8;
const SMALL_BLOCK: u64 = 64;
const MIDDLE_BLOCK: u64 = 512;

pub(super) fn tracked(
    memory: &PageCache,
    interpreter: &Interpreter,
    process: Option<&Process>,
    listing: HeapListing,
) -> Result<Vec<TrackedObject>, HeapError> {
    let layout = &interpreter.layout;
    let (RefcountLayout::Split { .. }, GcState::OfInterpreter(gc)) =
        (layout.object.references, layout.heap.gc)
    else {
        return Err(no_heaps(interpreter));
    };
    let mut walk = MimallocWalk {
        interpreter,
        process,
        reader: memory.reader(),
        heaps: None,
        ended_segments: Vec::new(),
        pool: None,
        threads: 0,
        uneven: 0,
        segments: FxHashSet::default(),
        starting: false,
        listing,
        objects: Vec::new(),
    };
    match (walk.interpreters(gc), listing) {
        (Err(error), HeapListing::Whole) => Err(error),
        _ => Ok(walk.objects),
    }
}

fn no_heaps(interpreter: &Interpreter) -> HeapError {
    HeapError::NoLists { version: interpreter.version.clone() }
}

struct MimallocWalk<'a> {
    interpreter: &'a Interpreter,
    process: Option<&'a Process>,
    reader: PageReader<'a>,
    heaps: Option<(u64, &'static MimallocLayout)>,
    ended_segments: Vec<Addr>,
    /// Offset of the pool in an interpreter state, and that interpreter.
    pool: Option<(u64, Addr)>,
    /// Each thread changes one page at a time.
    threads: u32,
    uneven: u32,
    segments: FxHashSet<Addr>,
    starting: bool,
    listing: HeapListing,
    objects: Vec<TrackedObject>,
}

fn changing(what: &'static str, at: Addr) -> impl FnOnce(MemoryError) -> HeapError {
    move |error| match error {
        MemoryError::Fault { .. } => HeapError::Changing,
        source => HeapError::Unreadable { what, at, source },
    }
}

impl MimallocWalk<'_> {
    fn interpreters(&mut self, gc: usize) -> Result<(), HeapError> {
        let interpreter = self.interpreter;
        let layout = &interpreter.layout;
        let mut interpreters = Vec::new();
        let head = layout.runtime.interpreters_head.in_target(interpreter.runtime);
        let mut at = self.pointer("the interpreters", head)?;
        for _ in 0..MAX_INTERPRETERS {
            if at == Addr(0) {
                break;
            }
            let collecting = layout.heap.collecting.in_target(at + gc as u64);
            let mut flag = [0; 4];
            self.reader
                .read(collecting, &mut flag)
                .map_err(HeapError::unreadable("the collector's state", collecting))?;
            match i32::from_le_bytes(flag) {
                0 => {}
                1 if self.listing == HeapListing::Rough => {}
                1 => return Err(HeapError::Collecting),
                _ => return Err(no_heaps(interpreter)),
            }
            self.interpreter(at)?;
            interpreters.push(at);
            at = self.pointer("the next interpreter", layout.interpreter.next.in_target(at))?;
        }
        if let Some((_, mimalloc)) = self.heaps
            && let Some((pool, of)) = self.pool
        {
            for interpreter in interpreters.into_iter().filter(|at| *at != of) {
                self.abandoned_once(mimalloc, interpreter + pool)?;
            }
        }
        if self.heaps.is_none() {
            return Err(no_heaps(interpreter));
        }
        if self.uneven > self.threads || self.starting {
            return Err(HeapError::Changing);
        }
        Ok(())
    }

    /// Rough mode ignores errors: other parts may be sound.
    fn part(&self, read: Result<(), HeapError>) -> Result<(), HeapError> {
        match (self.listing, read) {
            (HeapListing::Rough, Err(error)) if !error.is_limit() => Ok(()),
            (_, read) => read,
        }
    }

    fn pointer(&mut self, what: &'static str, at: Addr) -> Result<Addr, HeapError> {
        self.reader.pointer(at).map_err(HeapError::unreadable(what, at))
    }

    fn layout(&self) -> &PythonLayout {
        &self.interpreter.layout
    }

    fn interpreter(&mut self, interpreter: Addr) -> Result<(), HeapError> {
        let head = self.layout().interpreter.threads_head.in_target(interpreter);
        let mut thread = self.pointer("the threads", head)?;
        for _ in 0..MAX_THREADS {
            if thread == Addr(0) {
                break;
            }
            let read = self.thread(interpreter, thread);
            self.part(read)?;
            let next = self.layout().thread.next.in_target(thread);
            thread = self.pointer("the next thread", next)?;
        }
        Ok(())
    }

    fn thread(&mut self, interpreter: Addr, thread: Addr) -> Result<(), HeapError> {
        let id = self.layout().thread.python_id.in_target(thread);
        let id = self.reader.u64(id).map_err(HeapError::unreadable("a thread", thread))?;
        if id == 0 {
            return Ok(()); // It does not run yet and has allocated nothing.
        }
        let (heaps, mimalloc) = match self.heaps {
            Some((offset, mimalloc)) => (thread + offset, mimalloc),
            None => {
                let offsets = (0..SEARCHED as u64).step_by(8);
                let found = offsets
                    .flat_map(|offset| GENERATIONS.map(|mimalloc| (offset, mimalloc)))
                    .find(|(offset, mimalloc)| self.are_heaps(mimalloc, thread + *offset, id));
                let Some(found) = found else {
                    self.starting = true;
                    return Ok(());
                };
                self.heaps = Some(found);
                (thread + found.0, found.1)
            }
        };
        let tld = self.pointer("a thread's heap", mimalloc.heap_tld.in_target(heaps))?;
        if tld == Addr(0) {
            return Ok(()); // As above: they are created just after its id.
        }
        if !self.are_heaps(mimalloc, heaps, id) {
            return Err(HeapError::Changing);
        }
        self.threads += 1;
        for tag in 0..HEAPS {
            let before = OBJECTS.into_iter().find(|objects| objects.0 == tag).map(|o| o.1);
            let read =
                self.heap(mimalloc, heaps + u64::from(tag) * mimalloc.heap_len as u64, before);
            self.part(read)?;
        }
        let at = mimalloc.tld_abandoned.in_target(tld);
        let at = self.reader.pointer(at).map_err(changing("a thread's segments", at))?;
        if let (None, AbandonedSegments::Listed { .. }) = (self.pool, mimalloc.abandoned) {
            self.pool = at.0.checked_sub(interpreter.0).map(|offset| (offset, interpreter));
        }
        self.abandoned_once(mimalloc, at)
    }

    fn abandoned_once(&mut self, mimalloc: &MimallocLayout, at: Addr) -> Result<(), HeapError> {
        if !self.ended_segments.contains(&at) {
            self.ended_segments.push(at);
            self.abandoned(mimalloc, at)?;
        }
        Ok(())
    }

    fn are_heaps(&mut self, mimalloc: &MimallocLayout, heaps: Addr, id: u64) -> bool {
        let tld = heaps + u64::from(HEAPS) * mimalloc.heap_len as u64;
        (0..u64::from(HEAPS)).all(|n| {
            let heap = heaps + n * mimalloc.heap_len as u64;
            let mut tag = [0; 1];
            self.reader.pointer(mimalloc.heap_tld.in_target(heap)) == Ok(tld)
                && self.reader.u64(mimalloc.heap_thread.in_target(heap)) == Ok(id)
                && self.reader.read(mimalloc.heap_tag.in_target(heap), &mut tag).is_ok()
                && u64::from(tag[0]) == n
        })
    }

    fn heap(
        &mut self,
        mimalloc: &MimallocLayout,
        heap: Addr,
        before: Option<u64>,
    ) -> Result<(), HeapError> {
        const WHAT: &str = "a heap";
        let pages = mimalloc.heap_pages.in_target(heap);
        let pages = self.reader.u64(pages).map_err(changing(WHAT, heap))?;
        let mut queues = vec![0; mimalloc.queues * mimalloc.queue_len];
        let start = heap + mimalloc.heap_queues as u64;
        self.reader.read(start, &mut queues).map_err(changing(WHAT, heap))?;
        let mut seen = 0;
        for queue in queues.chunks_exact(mimalloc.queue_len) {
            let mut page = Field::<Addr>::at(0).get(queue).unwrap_or_default();
            while page != Addr(0) {
                seen += 1;
                if seen > pages || !page.is_plausible() {
                    return Err(HeapError::Changing);
                }
                let checked = self.check_segment(mimalloc, page);
                self.part(checked)?;
                let copy = self.copy_of_page(mimalloc, page)?;
                if let Some(before) = before {
                    let read = self.page(mimalloc, page, &copy, before);
                    self.part(read)?;
                }
                page = mimalloc.page_next.get(&copy).unwrap_or_default();
            }
        }
        if seen == pages { Ok(()) } else { Err(HeapError::Changing) }
    }

    /// Abandoned pages of a segment that its thread still partly owns are in no list.
    fn check_segment(&mut self, mimalloc: &MimallocLayout, page: Addr) -> Result<(), HeapError> {
        let segment = Addr(page.0 & !(SEGMENT - 1));
        if self.segments.insert(segment) {
            let abandoned = mimalloc.segment_abandoned.in_target(segment);
            let abandoned = self.reader.u64(abandoned).map_err(changing("a segment", segment))?;
            if abandoned != 0 {
                return Err(HeapError::Changing);
            }
        }
        Ok(())
    }

    fn copy_of_page(
        &mut self,
        mimalloc: &MimallocLayout,
        page: Addr,
    ) -> Result<Vec<u8>, HeapError> {
        let mut copy = vec![0; mimalloc.page_len];
        self.reader.read(page, &mut copy).map_err(changing("a page of a heap", page))?;
        Ok(copy)
    }

    fn page(
        &mut self,
        mimalloc: &MimallocLayout,
        page: Addr,
        copy: &[u8],
        before: u64,
    ) -> Result<(), HeapError> {
        let capacity = u64::from(mimalloc.page_capacity.get(copy).unwrap_or_default());
        let used = mimalloc.page_used.get(copy).unwrap_or_default() & mimalloc.page_used_mask;
        let used = u64::from(used);
        if used == 0 {
            return Ok(());
        }
        let area = BlockArea::new(mimalloc, page, copy, capacity).ok_or(HeapError::Changing)?;
        let mut is_free = vec![false; capacity as usize];
        let list = |field: Field<u64>| field.get(copy).unwrap_or_default();
        let free = self.free_blocks(list(mimalloc.page_free), &area, &mut is_free)?;
        let local = self.free_blocks(list(mimalloc.page_local_free), &area, &mut is_free)?;
        match (free + local + used).abs_diff(capacity) {
            0 => {}
            1 => self.uneven += 1,
            _ => return Err(HeapError::Changing),
        }
        let by_others = list(mimalloc.page_thread_free) & !THREAD_FREE_FLAGS;
        self.free_blocks(by_others, &area, &mut is_free)?;
        for (number, is_free) in (0..).zip(is_free) {
            if !is_free {
                self.object(area.start + number * area.block, before)?;
            }
        }
        Ok(())
    }

    fn free_blocks(
        &mut self,
        first: u64,
        area: &BlockArea,
        is_free: &mut [bool],
    ) -> Result<u64, HeapError> {
        let (mut at, mut count) = (first, 0);
        while at != 0 {
            let number = area.number(at).ok_or(HeapError::Changing)?;
            let mark = is_free.get_mut(number as usize).ok_or(HeapError::Changing)?;
            if std::mem::replace(mark, true) {
                return Err(HeapError::Changing);
            }
            count += 1;
            at = self.reader.u64(Addr(at)).map_err(changing("a free block", Addr(at)))?;
        }
        Ok(count)
    }

    fn object(&mut self, block: Addr, before: u64) -> Result<(), HeapError> {
        let RefcountLayout::Split { local, shared, flags } = self.layout().object.references else {
            return Ok(());
        };
        let class = self.layout().object.type_of;
        let mark = self.reader.u64(block + 8).map_err(changing("an object", block))?;
        let debug = if mark & !0xff == DEBUG_MARK { DEBUG_HEADER } else { 0 };
        let at = block + before + debug;
        let mut head = [0; HEAD];
        self.reader.read(at, &mut head).map_err(changing("an object", at))?;
        let flags = flags.get(&head).unwrap_or_default();
        if flags & TRACKED == 0 {
            return Ok(());
        }
        if self.objects.len() >= MAX_OBJECTS {
            return Err(HeapError::Changing);
        }
        let (local, shared) = (local.get(&head).unwrap_or_default(), shared.get(&head));
        let counted = i64::from(local) + (shared.unwrap_or_default() >> SHARED_SHIFT);
        let references = if local == IMMORTAL {
            -1
        } else if flags & DEFERRED != 0 {
            // Its count omits deferred references, so no known reference can be the last.
            i32::MAX
        } else {
            counted.clamp(0, i64::from(i32::MAX)) as i32
        };
        let class = class.get(&head).unwrap_or_default();
        // Free blocks are listed elsewhere: what was torn before may concern this one.
        let is_torn = self.reader.torn_reads() > 0;
        self.objects.push(TrackedObject { at, class, references, is_torn });
        Ok(())
    }
}
