//! The garbage collector's lists: three generations and that of `gc.freeze()`, rings of
//! `PyGC_Head`s (Include/internal/pycore_gc.h, 3.8 to 3.15). Found by shape, as patch releases
//! differ.

use super::{HeapError, HeapListing};
use crate::python::layouts::GcState;
use crate::python::layouts::interpreter::Interpreter;
use crate::python::stacks::MAX_INTERPRETERS;
use crate::target::{Addr, Field, MemoryError, PageCache, PageReader};

pub(super) const MAX_OBJECTS: usize = 1 << 32;
/// Head (next, prev), threshold, count.
const GENERATION: usize = 24;
const GENERATIONS: usize = 3;
const SEARCHED: usize = 64;
const STATE: usize = 512;
const MAX_COUNT: u32 = 1 << 30;
const HEADER: u64 = 16;
const HEAD_WORDS: usize = 4;
/// Counts as immortal.
const UNKNOWN: i32 = -1;
/// Flags in the low bits of both pointers.
const FLAGS: u64 = 3;
/// More than small jobs allocate between collections.
const MAX_NEW: usize = 5000;
/// Changes tolerated per list. The limit also ends a walk in a ring left from old lists.
const MAX_CHANGES: u32 = 16;

#[derive(Debug, Clone, Copy)]
pub(super) struct TrackedObject {
    pub(super) at: Addr,
    pub(super) class: Addr,
    /// Lower half of `ob_refcnt`; negative for immortal objects (3.12+), or if it is torn.
    pub(super) references: i32,
    /// It may be of another moment than the snapshot, or no object.
    pub(super) is_torn: bool,
}

/// `_gc_next`, `_gc_prev`, `ob_refcnt`, `ob_type` (Include/internal/pycore_gc.h, object.h).
struct ObjectHead {
    words: [u64; HEAD_WORDS],
    torn: [bool; HEAD_WORDS],
}

impl ObjectHead {
    fn read(reader: &mut PageReader<'_>, at: Addr) -> Result<ObjectHead, MemoryError> {
        let mut bytes = [0; 8 * HEAD_WORDS];
        let torn_before = reader.torn_reads();
        reader.read(at, &mut bytes)?;
        let word = |n: usize| Field::<u64>::at(8 * n).get(&bytes).unwrap_or_default();
        let words = std::array::from_fn(word);
        let mut torn = [false; HEAD_WORDS];
        if reader.torn_reads() > torn_before {
            for (n, torn) in torn.iter_mut().enumerate() {
                let torn_before = reader.torn_reads();
                reader.u64(at + 8 * n as u64)?;
                *torn = reader.torn_reads() > torn_before;
            }
        }
        Ok(ObjectHead { words, torn })
    }

    fn link(&self, direction: usize) -> Addr {
        Addr(self.words[direction] & !FLAGS)
    }

    fn object(&self, at: Addr, is_torn: bool) -> TrackedObject {
        let [_, _, references, class] = self.words;
        let is_torn = is_torn || self.torn[3];
        let references = if self.torn[2] { UNKNOWN } else { references as i32 };
        let at = at + HEADER;
        TrackedObject { at, class: Addr(class), references, is_torn }
    }
}

pub(super) fn tracked(
    memory: &PageCache,
    interpreter: &Interpreter,
    listing: HeapListing,
) -> Result<Vec<TrackedObject>, HeapError> {
    let layout = &interpreter.layout;
    let mut reader = memory.reader();
    let mut objects = Vec::new();
    if let GcState::OfRuntime(offset) = layout.heap.gc {
        let at = interpreter.runtime + offset as u64;
        read_state(&mut reader, interpreter, at, listing, &mut objects)?;
        return Ok(objects);
    }
    let head = layout.runtime.interpreters_head.in_target(interpreter.runtime);
    let mut at = reader.pointer(head).map_err(HeapError::unreadable("the interpreters", head))?;
    for _ in 0..MAX_INTERPRETERS {
        if at == Addr(0) {
            break;
        }
        if let GcState::OfInterpreter(offset) = layout.heap.gc {
            read_state(&mut reader, interpreter, at + offset as u64, listing, &mut objects)?;
        }
        let next = layout.interpreter.next.in_target(at);
        at = reader.pointer(next).map_err(HeapError::unreadable("the next interpreter", next))?;
    }
    Ok(objects)
}

fn read_state(
    reader: &mut PageReader<'_>,
    interpreter: &Interpreter,
    at: Addr,
    listing: HeapListing,
    objects: &mut Vec<TrackedObject>,
) -> Result<(), HeapError> {
    let mut state = [0; STATE];
    reader.read(at, &mut state).map_err(HeapError::unreadable("the collector's state", at))?;
    let collecting = interpreter.layout.heap.collecting;
    match collecting.get(&state) {
        Some(0) => {}
        Some(1) if listing != HeapListing::Whole => {}
        Some(1) => return Err(HeapError::Collecting),
        _ => return Err(HeapError::NoLists { version: interpreter.version.clone() }),
    }
    let lists = find(reader, &state, at)
        .ok_or_else(|| HeapError::NoLists { version: interpreter.version.clone() })?;
    if listing == HeapListing::Newest {
        // New objects join the youngest list, which a collection merges into the next, at its end.
        for (head, most) in lists.iter().zip([MAX_NEW, MAX_NEW, MAX_NEW / 10]) {
            follow(reader, *head, PREVIOUS, most, objects);
        }
        return Ok(());
    }
    let mut was_left = false;
    for head in lists {
        match listing {
            HeapListing::Whole | HeapListing::Newest => walk(reader, head, objects)?,
            HeapListing::Rough => {
                if !follow(reader, head, NEXT, MAX_OBJECTS, objects) {
                    follow(reader, head, PREVIOUS, MAX_OBJECTS, objects);
                    was_left = true;
                }
            }
        }
    }
    if was_left {
        // A link into another list shows objects twice.
        objects.sort_unstable_by_key(|object| object.at);
        objects.dedup_by_key(|object| object.at);
    }
    Ok(())
}

fn find(reader: &mut PageReader<'_>, state: &[u8], at: Addr) -> Option<[Addr; GENERATIONS + 1]> {
    (8..SEARCHED).step_by(8).find_map(|first| {
        let generation = |n: usize| first + n * GENERATION;
        if !(0..GENERATIONS).all(|n| is_list(reader, state, at, generation(n))) {
            return None;
        }
        // Up to 3.13 a pointer comes in between.
        let after = generation(GENERATIONS);
        let permanent = [after, after + 8].into_iter().find(|&p| is_list(reader, state, at, p))?;
        let heads = [generation(0), generation(1), generation(2), permanent];
        Some(heads.map(|offset| at + offset as u64))
    })
}

fn is_list(reader: &mut PageReader<'_>, state: &[u8], at: Addr, offset: usize) -> bool {
    let head = at + offset as u64;
    let pointer = |n: usize| Field::<u64>::at(offset + 8 * n).get(state).map(|p| Addr(p & !FLAGS));
    let number = |n: usize| Field::<u32>::at(offset + 16 + 4 * n).get(state);
    let (Some(next), Some(previous)) = (pointer(0), pointer(1)) else { return false };
    if !next.is_plausible() || !previous.is_plausible() {
        return false;
    }
    let small = |n: usize| number(n).is_some_and(|number| number < MAX_COUNT);
    let mut leads_back =
        |from: Addr| reader.u64(from).is_ok_and(|back| Addr(back & !FLAGS) == head);
    small(0) && small(1) && leads_back(next + 8) && leads_back(previous)
}

const NEXT: (usize, usize) = (0, 1);
const PREVIOUS: (usize, usize) = (1, 0);

/// `true` if it reached the list's end.
fn follow(
    reader: &mut PageReader<'_>,
    head: Addr,
    (on, back): (usize, usize),
    most: usize,
    objects: &mut Vec<TrackedObject>,
) -> bool {
    let (mut before, mut changes) = (head, 0);
    let torn_before = reader.torn_reads();
    let Ok(first) = reader.u64(head + 8 * on as u64) else { return false };
    let mut is_torn = reader.torn_reads() > torn_before;
    let mut at = Addr(first & !FLAGS);
    let first = objects.len();
    // Objects move between lists, so the head may never come again. Brent's algorithm: in a ring
    // the walk meets the object passed at the last power of two.
    let mut passed = head;
    while at != head && at != passed && at.is_plausible() && objects.len() - first < most {
        if (objects.len() - first).is_power_of_two() {
            passed = at;
        }
        let Ok(object) = ObjectHead::read(reader, at) else { return false };
        let is_other = object.link(back) != before;
        changes += u32::from(is_other);
        if changes > MAX_CHANGES {
            return false;
        }
        objects.push(object.object(at, is_torn || is_other));
        is_torn = object.torn[on];
        (before, at) = (at, object.link(on));
    }
    at == head
}

fn walk(
    reader: &mut PageReader<'_>,
    head: Addr,
    objects: &mut Vec<TrackedObject>,
) -> Result<(), HeapError> {
    let changing = |error: MemoryError| match error {
        MemoryError::Fault { .. } => HeapError::Changing,
        source => HeapError::Unreadable { what: "the list of objects", at: head, source },
    };
    let mut before = head;
    let mut at = Addr(reader.u64(head).map_err(changing)? & !FLAGS);
    while at != head {
        if !at.is_plausible() || objects.len() >= MAX_OBJECTS {
            return Err(HeapError::Changing);
        }
        let object = match ObjectHead::read(reader, at) {
            // Read the rest from the other end.
            Err(error) if error.is_limit() => {
                follow(reader, head, PREVIOUS, MAX_OBJECTS, objects);
                return Ok(());
            }
            read => read.map_err(changing)?,
        };
        if object.link(1) != before {
            return Err(HeapError::Changing);
        }
        objects.push(object.object(at, false));
        (before, at) = (at, object.link(0));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::MemoryImage;

    fn headers(lists: &[(u64, u64, u64)]) -> PageCache {
        let mut bytes = vec![0; 0x20_000];
        for &(at, next, previous) in lists {
            let words = [next, previous, 1, 0x9000].map(u64::to_le_bytes).concat();
            bytes[at as usize - 0x10_000..][..words.len()].copy_from_slice(&words);
        }
        let mut image = MemoryImage::default();
        image.insert(Addr(0x10_000), &bytes);
        PageCache::new(Box::new(image))
    }

    #[test]
    fn rough_walks_end_when_lists_merge() {
        let memory = headers(&[
            (0x10_000, 0x11_000, 0x13_000),
            (0x11_000, 0x12_000, 0x10_000),
            (0x13_000, 0x10_000, 0x12_000),
            (0x12_000, 0x20_000, 0x22_000),
            (0x20_000, 0x21_000, 0x12_000),
            (0x21_000, 0x22_000, 0x20_000),
            (0x22_000, 0x12_000, 0x21_000),
        ]);
        let mut objects = Vec::new();
        assert!(!follow(&mut memory.reader(), Addr(0x10_000), NEXT, 1000, &mut objects));
        let found: Vec<u64> = objects.iter().map(|object| object.at.0 - HEADER).collect();
        assert!(
            found.starts_with(&[0x11_000, 0x12_000, 0x20_000, 0x21_000, 0x22_000]),
            "{found:x?}"
        );
        assert!(found.len() <= 15, "{}", found.len());
    }

    #[test]
    fn rough_walks_complete_an_intact_list() {
        let ring: Vec<u64> = (0..100).map(|n| 0x10_000 + n * 0x40).collect();
        let places: Vec<_> =
            (0..100).map(|n| (ring[n], ring[(n + 1) % 100], ring[(n + 99) % 100])).collect();
        for direction in [NEXT, PREVIOUS] {
            let mut objects = Vec::new();
            assert!(follow(
                &mut headers(&places).reader(),
                Addr(ring[0]),
                direction,
                1000,
                &mut objects
            ));
            assert_eq!(objects.len(), 99);
        }
    }
}
