//! What the frames of polled chains are called, found out some milliseconds after they were copied.
//!
//! A code object that dies leaves its address to the next one. So a chain is named only if each of its code objects was
//! known before the chain was copied and still is what it was, or if a copy that the poller made of it right then is what
//! is there now.
//!
//! The lines of code that `torch.compile` wrote are over too soon for a poll to see each of them. So all stacks that such a function can
//! have where it was called are defined once it is seen there: who reads the recording finds out by them which line made a buffer.

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

/// A chain's stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedChain {
    /// Its number.
    pub stack: StackId,
    /// Whether its innermost frame is a place known to wait without allocating.
    pub waits: bool,
}

/// Places that call generated functions, of which is remembered that the stacks of all lines are defined.
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
    /// The calls of generated functions whose stacks are defined: who calls, and the code.
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

    /// Forgets the numbers it was given: the next chain has another table.
    pub fn forget_numbers(&mut self) {
        self.codes = CodeCache::default();
        self.generated.clear();
    }

    /// Names `chains`, all polled since the last call; `copies` are the code objects that the poller copied when it met
    /// them first, by address. `None` for a chain with a code object of which it is not certain what it was.
    ///
    /// # Errors
    /// The process is gone or cannot be read any more.
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
        // The first pass finds the code objects that have to be checked, the second has the result.
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

    /// The address of a frame's code object, by which copies of it are found.
    pub fn code_of(frame: &ChainFrame) -> u64 {
        frame.code.0
    }

    /// Reads those of `used` that are not known yet; returns them.
    fn learn(&mut self, used: &FxHashSet<Addr>) -> Result<Vec<Addr>, MemoryError> {
        self.unknown.clear();
        self.unknown.extend(used.iter().filter(|at| !self.codes.knows(**at)));
        let mut learned = Vec::new();
        for &at in &self.unknown {
            match self.codes.learn(&*self.memory, &self.layout, self.code_type, at) {
                Ok(()) => learned.push(at),
                // It died meanwhile, or never was one.
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
                // All of them are to be checked at once.
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
