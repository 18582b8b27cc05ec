//! Caches code objects by address and checks at each use that they were not replaced: the call that
//! copies the frames also copies their pointers to name, file and line table, the first line, and
//! the unique `co_version` (3.12+; before, the three objects are compared, too). Nothing needs
//! comparing while the count of freed code objects (3.14+) is constant.

use rustc_hash::FxHashMap;

use crate::model::{Frame, FrameId, Function, FunctionId, StackTable};
use crate::python::code::code_object::{BytecodeLocation, CodeObject, MAX_TABLE_LEN};
use crate::python::code::generated_code::is_generated;
use crate::python::code::line_table::CodeLines;
use crate::python::layouts::PythonLayout;
use crate::python::objects::DecodeError;
use crate::python::scatter_read::{ReadSlot, ScatterRead};
use crate::target::{Addr, Memory, MemoryError};

/// Ranges this near are read as one. Less than a page: each page read contains a range.
const MAX_GAP_BYTES: u64 = 1024;
const MAX_COMPARED_LEN: usize = 1024;
/// What the previous sample used is checked in advance: one more range costs 0.5 µs in the kernel,
/// one more call about five.
const FORGOTTEN_AFTER: u64 = 2;
const MAX_GENERATED_LINES: usize = 1 << 12;
const MAX_CODES: usize = 1 << 17;
const MAX_LINE_BYTES: usize = 128 << 20;

#[derive(Debug)]
struct Fingerprint {
    addr: Addr,
    expected: Vec<u8>,
    parts: Vec<(usize, usize)>,
    range: usize,
}

#[derive(Debug, Clone, Copy)]
struct ReadRange {
    start: u64,
    end: u64,
    slot: ReadSlot,
}

#[derive(Debug)]
struct CachedCode {
    function: Function,
    number: Option<FunctionId>,
    waits: bool,
    is_generated: bool,
    lines: CodeLines,
    frames: FxHashMap<i64, FrameId>,
    bytecode: BytecodeLocation,
    marks: Vec<Fingerprint>,
    verified: u64,
    /// A frame kept it alive at this generation.
    generation: Option<u64>,
    used: u64,
    watched: bool,
}

/// A frame as its structure has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct RawFrame {
    pub(in crate::python) at: Addr,
    pub(in crate::python) code: Addr,
    /// Or the shim between them.
    pub(in crate::python) previous: Addr,
    /// A pointer, or a byte offset.
    pub(in crate::python) instruction: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum CodeLookup {
    /// The frame, and whether it is a known wait.
    Frame(FrameId, bool),
    /// Not checked in this batch: read again.
    Unchecked,
    Unknown,
}

#[derive(Debug, Default)]
pub(in crate::python) struct CodeCache {
    by_addr: FxHashMap<Addr, CachedCode>,
    watched: Vec<Addr>,
    plan: Vec<ReadRange>,
    planned: bool,
    asked: bool,
    unchecked: Vec<Addr>,
    batch: u64,
    sample: u64,
    line_bytes: usize,
    generation: Option<u64>,
    still: bool,
    cut: Option<FrameId>,
}

impl CodeCache {
    pub(in crate::python) fn begin_sample(&mut self) {
        self.sample += 1;
        if self.line_bytes > MAX_LINE_BYTES {
            self.line_bytes = self.by_addr.values().map(|code| code.lines.bytes_held()).sum();
        }
        if self.by_addr.len() > MAX_CODES || self.line_bytes > MAX_LINE_BYTES {
            self.by_addr.clear();
            self.watched.clear();
            self.line_bytes = 0;
        }
        let (sample, by_addr) = (self.sample, &mut self.by_addr);
        let before = self.watched.len();
        self.watched.retain(|addr| {
            by_addr.get_mut(addr).is_some_and(|code| {
                code.watched = code.used + FORGOTTEN_AFTER > sample;
                code.watched
            })
        });
        self.planned &= self.watched.len() == before;
    }

    pub(in crate::python) fn push(&mut self, batch: &mut ScatterRead) {
        self.batch += 1;
        self.asked = !self.watched.iter().all(|addr| {
            self.by_addr.get(addr).is_none_or(|code| is_counted(code, self.generation))
        });
        if !self.asked {
            return;
        }
        if !self.planned {
            let watched = std::mem::take(&mut self.watched);
            self.make_plan(&watched);
            self.watched = watched;
            self.planned = true;
        }
        for range in &mut self.plan {
            range.slot = batch.push(Addr(range.start), (range.end - range.start) as usize);
        }
    }

    fn make_plan(&mut self, listed: &[Addr]) {
        self.plan.clear();
        for code in listed.iter().filter_map(|addr| self.by_addr.get(addr)) {
            self.plan.extend(code.marks.iter().map(|mark| ReadRange {
                start: mark.addr.0,
                end: mark.addr.0 + mark.expected.len() as u64,
                slot: ReadSlot::default(),
            }));
        }
        self.plan.sort_unstable_by_key(|range| range.start);
        self.plan.dedup_by(|next, kept| {
            let near = next.start <= kept.end + MAX_GAP_BYTES;
            if near {
                kept.end = kept.end.max(next.end);
            }
            near
        });
        for addr in listed {
            let Some(code) = self.by_addr.get_mut(addr) else { continue };
            for mark in &mut code.marks {
                let after = self.plan.partition_point(|s| s.start <= mark.addr.0);
                mark.range = after.saturating_sub(1);
            }
        }
    }

    /// `generations`: counts of freed code objects before and after the frames.
    pub(in crate::python) fn compare(
        &mut self,
        batch: &ScatterRead,
        generations: Option<[u64; 2]>,
    ) {
        self.generation = generations.map(|[_, after]| after);
        self.still = generations.is_some_and(|[before, after]| before == after);
        self.unchecked.clear();
        if !self.asked {
            return;
        }
        let mut watched = std::mem::take(&mut self.watched);
        let before = watched.len();
        self.verify(&mut watched, batch);
        self.planned &= watched.len() == before;
        self.watched = watched;
    }

    pub(in crate::python) fn has_doubts(&self) -> bool {
        !self.unchecked.is_empty()
    }

    /// Compares in another call. A fingerprint equal now was equal in between.
    pub(in crate::python) fn settle(
        &mut self,
        memory: &dyn Memory,
        batch: &mut ScatterRead,
    ) -> Result<(), MemoryError> {
        let mut unchecked = std::mem::take(&mut self.unchecked);
        self.make_plan(&unchecked);
        self.planned = false;
        batch.clear();
        for range in &mut self.plan {
            range.slot = batch.push(Addr(range.start), (range.end - range.start) as usize);
        }
        batch.read(memory)?;
        self.verify(&mut unchecked, batch);
        unchecked.clear();
        self.unchecked = unchecked;
        Ok(())
    }

    fn verify(&mut self, listed: &mut Vec<Addr>, batch: &ScatterRead) {
        let (number, plan, by_addr) = (self.batch, &self.plan, &mut self.by_addr);
        let unreadable = batch.fault();
        listed.retain(|addr| {
            let Some(code) = by_addr.get_mut(addr) else { return false };
            let slot = |mark: &Fingerprint| plan.get(mark.range).map(|range| range.slot);
            let same = code.marks.iter().all(|mark| mark.holds(plan, batch));
            if same {
                code.verified = number;
            } else if unreadable.is_none() || code.marks.iter().any(|m| slot(m) == unreadable) {
                by_addr.remove(addr);
                return false;
            }
            true
        });
    }

    /// `raw` must belong to a completely read stack.
    pub(in crate::python) fn frame(
        &mut self,
        raw: &RawFrame,
        table: &mut StackTable,
    ) -> CodeLookup {
        let Some(code) = self.by_addr.get_mut(&raw.code) else { return CodeLookup::Unknown };
        code.used = self.sample;
        if code.verified != self.batch && !is_counted(code, self.generation) {
            if !code.watched {
                code.watched = true;
                self.planned = false;
                self.watched.push(raw.code);
            }
            if !self.unchecked.contains(&raw.code) {
                self.unchecked.push(raw.code);
            }
            return CodeLookup::Unchecked;
        }
        if self.still {
            code.generation = self.generation;
        }
        // A thread copied the bytecode later.
        let Some(offset) = code.bytecode.offset(raw.instruction) else {
            return CodeLookup::Unknown;
        };
        if let Some(&frame) = code.frames.get(&offset) {
            return CodeLookup::Frame(frame, code.waits);
        }
        let function = *code.number.get_or_insert_with(|| table.function(code.function.clone()));
        let frame = table.frame(Frame { function, line: code.lines.at(offset) });
        code.frames.insert(offset, frame);
        CodeLookup::Frame(frame, code.waits)
    }

    pub(in crate::python) fn is_generated(&self, at: Addr) -> bool {
        self.by_addr.get(&at).is_some_and(|code| code.is_generated)
    }

    pub(in crate::python) fn frames_of_all_lines(
        &self,
        at: Addr,
        table: &mut StackTable,
    ) -> Vec<FrameId> {
        let Some(code) = self.by_addr.get(&at) else { return Vec::new() };
        let Some(function) = code.number else { return Vec::new() };
        let lines = code.lines.all().into_iter().take(MAX_GENERATED_LINES);
        lines.map(|line| table.frame(Frame { function, line })).collect()
    }

    /// Trusted once a later batch finds it unchanged.
    pub(in crate::python) fn learn(
        &mut self,
        memory: &dyn Memory,
        layout: &PythonLayout,
        code_type: Option<Addr>,
        at: Addr,
    ) -> Result<(), DecodeError> {
        let fields = &layout.code;
        // A byte of the table takes at most 16 in memory.
        let room = (2 * MAX_LINE_BYTES).saturating_sub(self.line_bytes) / 16;
        let most = room.min(MAX_TABLE_LEN);
        let object = CodeObject::read_within(memory, layout, code_type, at, most)?;
        let bytecode = object.with_copies(memory, layout)?;
        let mut parts = vec![
            (fields.name.offset, fields.name.end()),
            (fields.file.offset, fields.file.end()),
            (fields.line_table.offset, fields.line_table.end()),
            (fields.first_line.offset, fields.first_line.end()),
        ];
        let version = fields.version.and_then(|f| f.get(&object.head)).filter(|&v| v != 0);
        if let (Some(field), Some(_)) = (fields.version, version) {
            parts.push((field.offset, field.end()));
        }
        let mut marks = vec![Fingerprint::new(at, &object.head, parts)];
        if version.is_none() {
            let compared = &object.table[..object.table.len().min(MAX_COMPARED_LEN)];
            for (at, bytes) in [
                (object.name.at, &object.name.stored[..]),
                (object.file.at, &object.file.stored[..]),
                (object.table_at, compared),
            ] {
                if !bytes.is_empty() {
                    marks.push(Fingerprint::new(at, bytes, vec![(0, bytes.len())]));
                }
            }
        }
        self.line_bytes += object.lines.bytes_held();
        let code = CachedCode {
            is_generated: is_generated(&object.function),
            function: object.function,
            number: None,
            waits: object.waits,
            lines: object.lines,
            frames: FxHashMap::default(),
            bytecode,
            marks,
            verified: 0,
            generation: None,
            used: self.sample,
            watched: true,
        };
        self.planned = false;
        if self.by_addr.insert(at, code).is_none_or(|old| !old.watched) {
            self.watched.push(at);
        }
        Ok(())
    }

    /// No code object is trusted until compared.
    pub(in crate::python) fn begin_check(&mut self) {
        self.batch += 1;
        self.begin_sample();
        self.unchecked.clear();
        self.generation = None;
        self.still = false;
    }

    pub(in crate::python) fn knows(&self, at: Addr) -> bool {
        self.by_addr.contains_key(&at)
    }

    /// `copy` must be from before it was learned.
    pub(in crate::python) fn is_as_copied(&self, at: Addr, copy: &[u8]) -> bool {
        let mark = self.by_addr.get(&at).and_then(|code| code.marks.first());
        mark.is_some_and(|mark| {
            let from = mark.addr.0.wrapping_sub(at.0) as usize;
            mark.parts.iter().all(|&(a, b)| {
                let part = copy.get(from.saturating_add(a)..from.saturating_add(b));
                part.is_some() && part == mark.expected.get(a..b)
            })
        })
    }

    /// A new thread may reuse an ended one's slot.
    pub(in crate::python) fn forget_copies(&mut self) {
        self.by_addr.values_mut().for_each(|code| code.bytecode.forget_copies());
    }

    /// Replaces the outer frames of too deep a stack.
    pub(in crate::python) fn cut_frame(&mut self, table: &mut StackTable) -> FrameId {
        *self.cut.get_or_insert_with(|| {
            let function = table.function(Function {
                name: "<deeper frames not read>".into(),
                file: "".into(),
                first_line: 0,
                last_line: 0,
                is_native: false,
            });
            table.frame(Frame { function, line: 0 })
        })
    }
}

impl Fingerprint {
    fn new(addr: Addr, bytes: &[u8], mut parts: Vec<(usize, usize)>) -> Fingerprint {
        let from = parts.iter().map(|p| p.0).min().unwrap_or(0);
        let to = parts.iter().map(|p| p.1).max().unwrap_or(0);
        for part in &mut parts {
            *part = (part.0 - from, part.1 - from);
        }
        let expected = bytes.get(from..to).unwrap_or_default().to_vec();
        Fingerprint { addr: addr + from as u64, expected, parts, range: 0 }
    }

    fn holds(&self, plan: &[ReadRange], batch: &ScatterRead) -> bool {
        let now = plan.get(self.range).and_then(|range| {
            let from = self.addr.0.checked_sub(range.start)? as usize;
            batch.get(range.slot)?.get(from..from + self.expected.len())
        });
        now.is_some_and(|now| {
            self.parts.iter().all(|&(from, to)| {
                now.get(from..to).is_some_and(|part| Some(part) == self.expected.get(from..to))
            })
        })
    }
}

fn is_counted(code: &CachedCode, generation: Option<u64>) -> bool {
    code.generation.is_some() && code.generation == generation
}
