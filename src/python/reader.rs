//! Attaches to a process, then samples.

use super::attribute::IntegerAttribute;
use super::error::InterpreterError;
use super::exceptions::ExceptionFinder;
use super::follow::{ChainNamer, StackPoller};
use super::heap::{HeapError, HeapListing, ObjectHeap};
use super::variables::IntegerVariable;
use crate::abi::{ObjectHeader, UnwindInfo};
use crate::model::{StackTable, ThreadId, ThreadSample};
use crate::python::code::CodeReader;
use crate::python::layouts::{LayoutSource, interpreter};
use crate::python::line_cache::LineCache;
use crate::python::stacks::{
    FallbackReader, PollTarget, SampleStats, StackSampler, StackSymbolizer,
};
use crate::target::{AddressRange, PageCache, Process, has_no_more_rights};

/// Reads a running CPython's stacks. With py-spy, optional readers are `None`.
pub struct InterpreterReader {
    reader: ReaderBackend,
}

enum ReaderBackend {
    Own(Box<StackSampler>),
    PySpy(Box<FallbackReader>),
}

/// What a reader covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderCoverage {
    /// CPython's version.
    pub version: String,
    /// Its layout's source.
    pub layout: LayoutSource,
    /// What it cannot read, one sentence each.
    pub uncovered: Vec<&'static str>,
}

impl InterpreterReader {
    /// Attaches and checks the layout. Uses py-spy only if memspy has no more rights than the
    /// process.
    ///
    /// # Errors
    ///
    /// [`InterpreterError::NotReady`] is transient; others are final.
    pub fn attach(process: &Process) -> Result<InterpreterReader, InterpreterError> {
        match Self::attach_own(process) {
            Ok(reader) => Ok(reader),
            Err(
                error @ (InterpreterError::UnknownVersion { .. }
                | InterpreterError::Unsupported { .. }
                | InterpreterError::LayoutMismatch { .. }),
                // py-spy is not hardened against hostile jobs: it follows links and waits for
                // pipes.
            ) if !has_no_more_rights(process) => {
                Err(InterpreterError::NoFallback { why: error.to_string() })
            }
            Err(
                error @ (InterpreterError::UnknownVersion { .. }
                | InterpreterError::Unsupported { .. }
                | InterpreterError::LayoutMismatch { .. }),
            ) => match FallbackReader::attach(process) {
                Ok(reader) => {
                    Ok(InterpreterReader { reader: ReaderBackend::PySpy(Box::new(reader)) })
                }
                // The built-in reader's error says more.
                Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// [`Self::attach`] without py-spy.
    pub fn attach_own(process: &Process) -> Result<InterpreterReader, InterpreterError> {
        let memory = process.memory();
        let found = interpreter::find(process, &memory)?;
        let handle = process.reopen()?;
        let mut own = StackSampler::new(process.pid(), Some(handle), Box::new(memory), found);
        own.verify()?;
        Ok(InterpreterReader { reader: ReaderBackend::Own(Box::new(own)) })
    }

    /// `3.12.1`, `3.14.4t` without a GIL; `3.9` if the patch release is unknown.
    pub fn version(&self) -> &str {
        match &self.reader {
            ReaderBackend::Own(own) => &own.interpreter().version,
            ReaderBackend::PySpy(py_spy) => py_spy.version(),
        }
    }

    /// Source of the structure layout.
    pub fn source(&self) -> LayoutSource {
        match &self.reader {
            ReaderBackend::Own(own) => own.interpreter().source,
            ReaderBackend::PySpy(_) => LayoutSource::PySpy,
        }
    }

    /// Replaces `out` with all threads' stacks, except those without Python frames and torn ones
    /// ([`SampleStats::torn`]). `table` must stay the same until [`Self::forget_numbers`].
    ///
    /// # Errors
    ///
    /// [`InterpreterError::Gone`]; [`InterpreterError::NotReady`] without interpreter;
    /// [`InterpreterError::Unreadable`] after `exec`.
    pub fn sample(
        &mut self,
        table: &mut StackTable,
        out: &mut Vec<ThreadSample>,
    ) -> Result<SampleStats, InterpreterError> {
        match &mut self.reader {
            ReaderBackend::Own(own) => own.sample(table, out),
            ReaderBackend::PySpy(py_spy) => py_spy.sample(table, out),
        }
    }

    /// Frames per call of the interpreter's C function, innermost first, of the stopped process.
    /// `None`: unreadable; empty with py-spy.
    pub fn frames_by_call(&self) -> Vec<(ThreadId, Option<Vec<u32>>)> {
        match &self.reader {
            ReaderBackend::Own(own) => own.frames_by_call(),
            ReaderBackend::PySpy(_) => Vec::new(),
        }
    }

    /// Forgets all ids: the next sample has another table.
    pub fn forget_numbers(&mut self) {
        match &mut self.reader {
            ReaderBackend::Own(own) => own.forget_numbers(),
            // It requests all ids again anyway.
            ReaderBackend::PySpy(_) => {}
        }
    }

    /// The last sample's threads, also those without frames.
    pub fn threads(&self) -> Vec<ThreadId> {
        match &self.reader {
            ReaderBackend::Own(own) => own.threads().collect(),
            ReaderBackend::PySpy(py_spy) => py_spy.threads().to_vec(),
        }
    }

    /// For a kernel program that walks these stacks.
    ///
    /// # Errors
    ///
    /// [`InterpreterError::Unsupported`] with py-spy.
    pub fn unwind_info(&mut self) -> Result<UnwindInfo, InterpreterError> {
        match &mut self.reader {
            ReaderBackend::Own(own) => own.unwind_info(),
            ReaderBackend::PySpy(py_spy) => Err(InterpreterError::Unsupported {
                version: py_spy.version().to_owned(),
                what: "walking its stacks in the kernel",
            }),
        }
    }

    /// Names stacks walked by a kernel program.
    pub fn stack_symbolizer(&self, process: &Process) -> Option<StackSymbolizer> {
        match &self.reader {
            ReaderBackend::Own(own) => {
                Some(StackSymbolizer::new(process.reopen().ok()?, own.interpreter()))
            }
            ReaderBackend::PySpy(_) => None,
        }
    }

    /// Polls and names single stacks.
    pub fn stack_poller(&self, process: &Process) -> Option<(StackPoller, ChainNamer)> {
        match &self.reader {
            ReaderBackend::Own(own) => Some((
                StackPoller::new(own.interpreter()),
                ChainNamer::new(Box::new(process.memory()), own.interpreter()),
            )),
            ReaderBackend::PySpy(_) => None,
        }
    }

    /// Whether [`Self::stack_poller`] is available.
    pub fn can_be_polled(&self) -> bool {
        matches!(self.reader, ReaderBackend::Own(_))
    }

    /// The last sample's threads; empty with py-spy.
    pub fn poll_targets(&self) -> Vec<PollTarget> {
        match &self.reader {
            ReaderBackend::Own(own) => own.poll_targets(),
            ReaderBackend::PySpy(_) => Vec::new(),
        }
    }

    /// Sets the allocator's locks: a wait for one is work.
    pub fn set_allocator_locks(&mut self, locks: Vec<AddressRange>) {
        if let ReaderBackend::Own(own) = &mut self.reader {
            own.set_allocator_locks(locks);
        }
    }

    /// The GILs and the allocator's locks.
    pub fn working_locks(&self) -> Vec<AddressRange> {
        match &self.reader {
            ReaderBackend::Own(own) => own.working_locks(),
            ReaderBackend::PySpy(_) => Vec::new(),
        }
    }

    /// Reads single code objects.
    pub fn code_reader(&self, process: &Process) -> Option<CodeReader> {
        match &self.reader {
            ReaderBackend::Own(own) => {
                Some(CodeReader::new(Box::new(process.memory()), own.interpreter().clone()))
            }
            ReaderBackend::PySpy(_) => None,
        }
    }

    /// Reads source text without a file.
    pub fn line_cache(&self, process: &Process) -> Option<LineCache> {
        match &self.reader {
            ReaderBackend::Own(own) => {
                let process = process.reopen().ok()?;
                Some(LineCache::new(process, own.interpreter().clone()))
            }
            ReaderBackend::PySpy(_) => None,
        }
    }

    /// Reads the integer variable `name`: `i` or `function:i`.
    pub fn integer_variable(&self, process: &Process, name: &str) -> Option<IntegerVariable> {
        match &self.reader {
            ReaderBackend::Own(own) => {
                let process = process.reopen().ok()?;
                Some(IntegerVariable::new(process, own.interpreter().clone(), name))
            }
            ReaderBackend::PySpy(_) => None,
        }
    }

    /// Reads an integer attribute; `None` if the object is gone.
    pub fn integer_attribute(
        &self,
        process: &Process,
        object: u64,
        name: &'static str,
    ) -> Option<IntegerAttribute> {
        match &self.reader {
            ReaderBackend::Own(own) => {
                let process = process.reopen().ok()?;
                IntegerAttribute::new(process, own.interpreter().clone(), object, name)
            }
            ReaderBackend::PySpy(_) => None,
        }
    }

    /// Finds exceptions of `class`.
    pub fn exceptions(&self, process: &Process, class: &'static str) -> Option<ExceptionFinder> {
        match &self.reader {
            ReaderBackend::Own(own) => {
                let process = process.reopen().ok()?;
                Some(ExceptionFinder::new(process, own.interpreter().clone(), class))
            }
            ReaderBackend::PySpy(_) => None,
        }
    }

    /// CPython's object head; the usual one with py-spy.
    pub fn object_head(&self) -> ObjectHeader {
        match &self.reader {
            ReaderBackend::Own(own) => own.interpreter().layout.object.head(),
            ReaderBackend::PySpy(_) => ObjectHeader::USUAL,
        }
    }

    /// The stopped process's objects.
    ///
    /// # Errors
    ///
    /// [`HeapError::Collecting`] and [`HeapError::Changing`] are transient; others final.
    pub fn heap<'a>(&self, memory: &'a PageCache) -> Result<ObjectHeap<'a>, HeapError> {
        self.heap_listed(memory, HeapListing::Whole)
    }

    /// [`Self::heap`], as complete as `listing` says.
    ///
    /// # Errors
    ///
    /// As [`InterpreterReader::heap`].
    pub fn heap_listed<'a>(
        &self,
        memory: &'a PageCache,
        listing: HeapListing,
    ) -> Result<ObjectHeap<'a>, HeapError> {
        match &self.reader {
            ReaderBackend::Own(own) => {
                ObjectHeap::read(memory, own.interpreter(), own.process(), listing)
            }
            ReaderBackend::PySpy(py_spy) => {
                Err(HeapError::Unsupported { version: py_spy.version().to_owned() })
            }
        }
    }

    /// The heap without object list.
    pub fn unlisted_heap<'a>(&self, memory: &'a PageCache) -> Option<ObjectHeap<'a>> {
        match &self.reader {
            ReaderBackend::Own(own) => Some(ObjectHeap::unlisted(memory, own.interpreter())),
            ReaderBackend::PySpy(_) => None,
        }
    }

    /// What is covered, for `doctor`.
    pub fn coverage(&self) -> ReaderCoverage {
        let uncovered = match &self.reader {
            ReaderBackend::Own(_) => Vec::new(),
            ReaderBackend::PySpy(_) => vec![
                "stacks are read by py-spy: slower, and torn stacks are not recognised",
                "function names are not qualified",
            ],
        };
        ReaderCoverage { version: self.version().to_owned(), layout: self.source(), uncovered }
    }
}
