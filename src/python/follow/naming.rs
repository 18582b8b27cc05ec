//! Names the frames of polled chains, some milliseconds after they were copied.
//!
//! A freed code object leaves its address to the next one. So a chain is named only if each of its
//! code objects was known before the copy and is unchanged, or equals a copy that the poller took
//! at that time.
//!
//! Generated code of `torch.compile` runs too fast for a poll to see each line. So once such a
//! function is seen, all stacks that it can have at that call site are defined; the analysis uses
//! them to find the line that allocated a buffer.

use rustc_hash::{FxHashMap, FxHashSet};

use super::chain::ChainFrame;
use crate::model::{FrameId, StackId, StackTable};
use crate::python::code::code_cache::{CodeCache, CodeLookup};
use crate::python::layouts::interpreter::Interpreter;
use crate::python::layouts::layout::PythonLayout;
use crate::python::objects::ObjectDecodeError;
use crate::python::stacks::scatter_read::ScatterRead;
use crate::python::stacks::walk::RawFrame;
use crate::target::{Addr, Memory, MemoryError};

/// The stack of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedChain {
    /// Its id.
    pub stack: StackId,
    /// Whether its innermost frame is a known wait without allocations.
    pub waits: bool,
}

const MAX_GENERATED_CALLS: usize = 1 << 10;

/// Names chains of frames.
pub struct ChainNamer {
    memory: Box<dyn Memory>,
    layout: PythonLayout,
    code_type: Option<Addr>,
    codes: CodeCache,
    marks: ScatterRead,
    frames: Vec<FrameId>,
    unknown: Vec<Addr>,
    generated: FxHashSet<(Option<StackId>, Addr)>,
}

impl ChainNamer {
    pub(in crate::python) fn new(memory: Box<dyn Memory>, interpreter: &Interpreter) -> ChainNamer {
        ChainNamer {
            memory,
            layout: interpreter.layout,
            code_type: interpreter.code_type,
            codes: CodeCache::default(),
            marks: ScatterRead::default(),
            frames: Vec::new(),
            unknown: Vec::new(),
            generated: FxHashSet::default(),
        }
    }

    /// Forgets assigned ids: the next chain has another table.
    pub fn forget_numbers(&mut self) {
        self.codes = CodeCache::default();
        self.generated.clear();
    }

    /// Names `chains`, all polled since the last call. `copies`: code objects that the poller
    /// copied when it first saw them, by address. `None` for a chain with an uncertain code object.
    ///
    /// # Errors
    ///
    /// The process is gone or unreadable.
    pub fn name(
        &mut self,
        chains: &[&[ChainFrame]],
        copies: &FxHashMap<u64, Vec<u8>>,
        table: &mut StackTable,
    ) -> Result<Vec<Option<NamedChain>>, MemoryError> {
        self.codes.begin_check();
        let code_of = |frame: &ChainFrame| frame.code;
        let used: FxHashSet<Addr> = chains.iter().copied().flatten().map(code_of).collect();
        let learned = self.learn(&used)?;
        for chain in chains {
            self.stack(chain, table);
        }
        self.codes.settle(&*self.memory, &mut self.marks)?;
        let uncertain: FxHashSet<Addr> = learned
            .into_iter()
            .filter(|at| copies.get(&at.0).is_none_or(|copy| !self.codes.is_as_copied(*at, copy)))
            .collect();
        Ok(chains
            .iter()
            .map(|chain| match chain.iter().any(|frame| uncertain.contains(&frame.code)) {
                true => None,
                false => self.stack(chain, table),
            })
            .collect())
    }

    /// The address of a frame's code object, the key of its copies.
    pub fn code_of(frame: &ChainFrame) -> u64 {
        frame.code.0
    }

    fn learn(&mut self, used: &FxHashSet<Addr>) -> Result<Vec<Addr>, MemoryError> {
        self.unknown.clear();
        self.unknown.extend(used.iter().filter(|at| !self.codes.knows(**at)));
        let mut learned = Vec::new();
        for &at in &self.unknown {
            match self.codes.learn(&*self.memory, &self.layout, self.code_type, at) {
                Ok(()) => learned.push(at),
                // It was freed meanwhile, or never was a code object.
                Err(
                    ObjectDecodeError::Malformed
                    | ObjectDecodeError::Memory(MemoryError::Fault { .. }),
                ) => {}
                Err(ObjectDecodeError::Memory(error)) => return Err(error),
            }
        }
        Ok(learned)
    }

    fn stack(&mut self, chain: &[ChainFrame], table: &mut StackTable) -> Option<NamedChain> {
        self.frames.clear();
        let (mut whole, mut waits) = (true, false);
        for (depth, frame) in chain.iter().enumerate() {
            let raw = RawFrame {
                at: Addr(0),
                code: frame.code,
                previous: Addr(0),
                instruction: frame.instruction,
            };
            match self.codes.frame(&raw, table) {
                CodeLookup::Frame(id, waits_there) => {
                    waits |= depth == 0 && waits_there;
                    self.frames.push(id);
                }
                // Continue, so that all of them are checked at once.
                CodeLookup::Unchecked | CodeLookup::Unknown => whole = false,
            }
        }
        if !whole {
            return None;
        }
        let mut stack = None;
        for (frame, named) in chain.iter().zip(&self.frames).rev() {
            if self.codes.is_generated(frame.code)
                && self.generated.len() < MAX_GENERATED_CALLS
                && self.generated.insert((stack, frame.code))
            {
                for line in self.codes.frames_of_all_lines(frame.code, table) {
                    table.stack(stack, line);
                }
            }
            stack = Some(table.stack(stack, *named));
        }
        Some(NamedChain { stack: stack?, waits })
    }
}
