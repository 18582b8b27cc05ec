//! Stacks of events: `torch::CapturedTraceback` (torch/csrc/profiler/combined_traceback.h, torch
//! 2.1 to 2.15).

use rustc_hash::FxHashMap;

use crate::target::{Addr, AddressRange, Field, Memory};
use crate::torch::class_names::class_of_vtable;
use crate::torch::layout::BlockLayout;

/// vtable, `frames_`, `cpp_frames_`, `script_frames_` (a vector each), `python_`.
const OBJECT: usize = 0x58;
/// Code object, instruction offset.
const PY_FRAME: u64 = 16;
/// Of a `jit::StackEntry`, at least; only its presence is reported.
const MIN_SCRIPT_FRAME: u64 = 0x20;
const MAX_FRAMES: u64 = 1 << 14;
const BATCH: usize = 1024;

/// A recorded Python frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordedFrame {
    /// The code object.
    pub code: Addr,
    /// `PyFrame_GetLasti`: byte offset in its bytecode.
    pub instruction: i32,
}

/// A recorded stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RecordedStack {
    /// Innermost first.
    pub frames: Vec<RecordedFrame>,
    /// C++ frames.
    pub native: u32,
    /// It has TorchScript frames.
    pub has_script: bool,
}

#[derive(Debug, Default)]
pub(super) struct TracebackReader {
    pub(super) stacks: Vec<RecordedStack>,
    pub(super) unreadable: u64,
    numbers: FxHashMap<RecordedStack, u32>,
    classes: FxHashMap<u64, bool>,
}

impl TracebackReader {
    /// Then `numbers` maps each object to its stack.
    pub(super) fn read(
        &mut self,
        memory: &dyn Memory,
        wanted: &[Addr],
        numbers: &mut FxHashMap<Addr, u32>,
    ) {
        let mut new: Vec<Addr> =
            wanted.iter().copied().filter(|at| at.0 != 0 && !numbers.contains_key(at)).collect();
        new.sort_unstable();
        new.dedup();
        for batch in new.chunks(BATCH) {
            let spans: Vec<AddressRange> =
                batch.iter().map(|at| AddressRange { addr: *at, len: OBJECT }).collect();
            let objects = read_each(memory, &spans);
            let heads: Vec<Option<TracebackHead>> =
                objects.iter().map(|object| self.head(memory, object.as_deref()?)).collect();
            let spans: Vec<AddressRange> =
                heads.iter().map(|head| head.as_ref().map_or(EMPTY, |head| head.frames)).collect();
            let frames = read_each(memory, &spans);
            for ((at, head), frames) in batch.iter().zip(heads).zip(frames) {
                let stack = head.and_then(|head| head.stack(frames.as_deref()?));
                match stack {
                    Some(stack) => {
                        let next = self.stacks.len() as u32;
                        let number = *self.numbers.entry(stack).or_insert_with_key(|stack| {
                            self.stacks.push(stack.clone());
                            next
                        });
                        numbers.insert(*at, number);
                    }
                    None => self.unreadable += 1,
                }
            }
        }
    }

    fn is_traceback(&mut self, memory: &dyn Memory, vtable: u64) -> bool {
        *self.classes.entry(vtable).or_insert_with(|| {
            class_of_vtable(memory, vtable).as_deref() == Some("CapturedTraceback")
        })
    }

    fn head(&mut self, memory: &dyn Memory, object: &[u8]) -> Option<TracebackHead> {
        let word = |at: usize| Field::<u64>::at(at).get(object);
        if !self.is_traceback(memory, word(0)?) {
            return None;
        }
        let vector = |at: usize, size: u64| {
            let (begin, end) = (word(at)?, word(at + 8)?);
            let bytes = end.checked_sub(begin)?;
            let sound = bytes == 0 || (Addr(begin).is_plausible() && bytes / size <= MAX_FRAMES);
            sound.then_some((Addr(begin), bytes))
        };
        let (frames, bytes) = vector(0x08, PY_FRAME)?;
        let (_, native) = vector(0x20, 8)?;
        let (_, script) = vector(0x38, MIN_SCRIPT_FRAME)?;
        bytes.is_multiple_of(PY_FRAME).then_some(TracebackHead {
            frames: AddressRange { addr: frames, len: bytes as usize },
            native: (native / 8) as u32,
            has_script: script > 0,
        })
    }
}

#[derive(Debug)]
struct TracebackHead {
    frames: AddressRange,
    native: u32,
    has_script: bool,
}

impl TracebackHead {
    fn stack(&self, frames: &[u8]) -> Option<RecordedStack> {
        let frame = |bytes: &[u8]| {
            Some(RecordedFrame {
                code: Addr(Field::<u64>::at(0).get(bytes)?),
                instruction: Field::<i32>::at(8).get(bytes)?,
            })
        };
        let frames = frames.chunks_exact(PY_FRAME as usize).map(frame).collect::<Option<_>>()?;
        Some(RecordedStack { frames, native: self.native, has_script: self.has_script })
    }
}

const EMPTY: AddressRange = AddressRange { addr: Addr(0), len: 0 };

fn read_each(memory: &dyn Memory, spans: &[AddressRange]) -> Vec<Option<Vec<u8>>> {
    let filled: Vec<AddressRange> = spans.iter().copied().filter(|span| span.len > 0).collect();
    let mut bytes = vec![0; filled.iter().map(|span| span.len).sum()];
    let all = memory.read_spans(&filled, &mut bytes).is_ok();
    let mut at = 0;
    let mut content = |span: &AddressRange| {
        if span.len == 0 {
            return Some(Vec::new());
        }
        if !all {
            return memory.vec(span.addr, span.len).ok();
        }
        let part = bytes.get(at..at + span.len).map(<[u8]>::to_vec);
        at += span.len;
        part
    };
    spans.iter().map(&mut content).collect()
}

/// `context_when_allocated` and `context_when_segment_allocated`, or null, by device address. They
/// precede `expandable_segment_`, at one of two known offsets: all blocks must fit it.
pub(super) fn block_contexts(
    memory: &dyn Memory,
    layout: BlockLayout,
    blocks: &[(u64, Addr)],
    tracebacks: &mut TracebackReader,
) -> Vec<(u64, Addr, Addr)> {
    let mut best: Vec<(u64, Addr, Addr)> = Vec::new();
    for field in layout.expandable_segment() {
        let spans: Vec<AddressRange> = blocks
            .iter()
            .map(|(_, at)| AddressRange { addr: *at + (field.offset - 0x20) as u64, len: 0x20 })
            .collect();
        let mut found = Vec::new();
        let mut fits = true;
        for (batch, blocks) in spans.chunks(BATCH).zip(blocks.chunks(BATCH)) {
            for (bytes, (address, _)) in read_each(memory, batch).into_iter().zip(blocks) {
                let Some(bytes) = bytes else { continue };
                let word = |at: usize| Addr(Field::<u64>::at(at).get(&bytes).unwrap_or(0));
                let (own, segment) = (word(0), word(0x10));
                fits &= [own, segment].into_iter().all(|at| {
                    at.0 == 0
                        || (at.is_plausible()
                            && memory
                                .u64(at)
                                .is_ok_and(|vtable| tracebacks.is_traceback(memory, vtable)))
                });
                found.push((*address, own, segment));
            }
        }
        if fits && !found.is_empty() && best.is_empty() {
            best = found;
        }
    }
    best
}
