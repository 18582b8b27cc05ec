//! The built-in reader: some three system calls a sample.

use std::time::{Duration, Instant};

use crate::abi::UnwindInfo;
use crate::model::{StackId, StackTable, ThreadId, ThreadSample};
use crate::python::code::{CodeCache, is_engine_function};
use crate::python::error::InterpreterError;
use crate::python::layouts::interpreter::Interpreter;
use crate::python::objects::DecodeError;
use crate::python::scatter_read::ScatterRead;
use crate::python::stacks::activity::{ThreadEvidence, WaitKind, classify};
use crate::python::stacks::bpf_stacks;
use crate::python::stacks::c_calls::frames_by_call;
use crate::python::stacks::poll_target::PollTarget;
use crate::python::stacks::thread::{ReadBuffers, ReadOutcome, SampleContext, SampledThread};
use crate::python::stacks::thread_list::{
    InterpreterList, ListError, ThreadEntry, make_ids_unique,
};
use crate::python::stacks::thread_names::ThreadNames;
use crate::target::{Addr, AddressRange, KernelWait, Memory, MemoryError, Process};

const MAX_TORN_READS: u32 = 24;
/// Reads after which a sample seeks nothing new.
const MAX_READS: u32 = 96;
const OS_STATES_INTERVAL: Duration = Duration::from_millis(50);
const MAX_WAIT_CHECKS: u32 = 8;
/// Samples within which one stack must be consistent. A thread that always calls and returns is
/// torn in nine of ten.
const VERIFIED_BY: u32 = 200;

/// Statistics of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleStats {
    /// Stacks read.
    pub stacks: u32,
    /// Threads that changed during every attempt.
    pub torn: u32,
    /// Stacks deeper than 4,096 frames; a marker replaces the outer frames.
    pub cut: u32,
    /// Reads; each is one system call per 1,024 pieces.
    pub reads: u32,
}

pub(in crate::python) struct StackSampler {
    pid: u32,
    /// `None` for captured memory.
    process: Option<Process>,
    memory: Box<dyn Memory>,
    interpreter: Interpreter,
    heads: InterpreterList,
    threads: Vec<SampledThread>,
    codes: CodeCache,
    batch: ScatterRead,
    marks: ScatterRead,
    scratch: ReadBuffers,
    names: ThreadNames,
    holders: Vec<Addr>,
    allocator_locks: Vec<AddressRange>,
    listed: bool,
    os_states_at: Option<Instant>,
}

impl StackSampler {
    pub(in crate::python) fn new(
        pid: u32,
        process: Option<Process>,
        memory: Box<dyn Memory>,
        interpreter: Interpreter,
    ) -> StackSampler {
        StackSampler {
            pid,
            names: ThreadNames::new(process.as_ref()),
            process,
            memory,
            heads: InterpreterList::new(interpreter.runtime),
            interpreter,
            threads: Vec::new(),
            codes: CodeCache::default(),
            batch: ScatterRead::default(),
            marks: ScatterRead::default(),
            scratch: ReadBuffers::default(),
            holders: Vec::new(),
            allocator_locks: Vec::new(),
            listed: false,
            os_states_at: None,
        }
    }

    pub(in crate::python) fn interpreter(&self) -> &Interpreter {
        &self.interpreter
    }

    pub(in crate::python) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    pub(in crate::python) fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.threads.iter().map(|thread| thread.id)
    }

    pub(in crate::python) fn poll_targets(&self) -> Vec<PollTarget> {
        self.threads
            .iter()
            .map(|thread| PollTarget {
                place: thread.place,
                thread: thread.id,
                os_id: self.names.os_id(&*self.memory, &thread.place),
                id_here: self.names.id_here(&*self.memory, &thread.place),
            })
            .collect()
    }

    pub(in crate::python) fn set_allocator_locks(&mut self, locks: Vec<AddressRange>) {
        self.allocator_locks = locks;
    }

    pub(in crate::python) fn working_locks(&self) -> Vec<AddressRange> {
        self.heads.gils().chain(self.allocator_locks.iter().copied()).collect()
    }

    /// Innermost first. The process must be stopped.
    pub(in crate::python) fn frames_by_call(&self) -> Vec<(ThreadId, Option<Vec<u32>>)> {
        let of = |thread: &SampledThread| {
            let at = thread.place.at;
            (thread.id, frames_by_call(&*self.memory, &self.interpreter.layout, at))
        };
        self.threads.iter().map(of).collect()
    }

    pub(in crate::python) fn verify(&mut self) -> Result<(), InterpreterError> {
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        let mut torn = 0;
        for _ in 0..VERIFIED_BY {
            let stats = self.sample(&mut table, &mut out)?;
            torn += stats.torn;
            if stats.stacks > 0 {
                // The cached ids' `table` ends here.
                self.forget_numbers();
                return Ok(());
            }
        }
        if torn == 0 {
            let waiting_for = "no thread executes Python";
            return Err(InterpreterError::NotReady { pid: self.pid, waiting_for });
        }
        Err(InterpreterError::LayoutMismatch {
            version: self.interpreter.version.clone(),
            why: "no thread has a plausible stack".to_owned(),
        })
    }

    pub(in crate::python) fn forget_numbers(&mut self) {
        self.codes = CodeCache::default();
        self.threads.clear();
        self.listed = false;
        self.os_states_at = None;
    }

    pub(in crate::python) fn sample(
        &mut self,
        table: &mut StackTable,
        out: &mut Vec<ThreadSample>,
    ) -> Result<SampleStats, InterpreterError> {
        out.clear();
        let mut stats = SampleStats::default();
        self.codes.begin_sample();
        self.find_waits();
        for thread in &mut self.threads {
            thread.begin_sample();
        }
        if !self.listed {
            self.list(table)?;
        }
        // A process without threads may have ended.
        while stats.reads == 0 || (stats.reads < MAX_READS && self.threads.iter().any(|t| !t.done))
        {
            stats.reads += 1;
            self.read_batch()?;
            let layout = &self.interpreter.layout;
            self.holders.clear();
            self.heads.gil_holders(&self.batch, layout, &mut self.holders);
            self.codes.compare(&self.batch, self.heads.generations(&self.batch, layout));
            let same_list = self.heads.unchanged(&self.batch, layout) == Some(true);
            if !same_list || self.decode_threads(table) {
                self.list(table)?;
                continue;
            }
            self.learn()?;
            if self.codes.has_doubts() {
                self.codes
                    .settle(&*self.memory, &mut self.marks)
                    .map_err(|error| self.unreadable_marks(error))?;
                self.decode_threads_unchecked(table);
            }
        }
        self.finish(table, &mut stats, out);
        if self.names.are_due() {
            self.name_threads(table);
        }
        Ok(stats)
    }

    fn find_waits(&mut self) {
        let mut checks = 0;
        // The main thread is last in the list.
        for thread in self.threads.iter_mut().rev() {
            let may_wait = matches!(thread.found, Some(ReadOutcome::Stack { .. }));
            thread.waited_before = None;
            if may_wait && checks < MAX_WAIT_CHECKS {
                checks += 1;
                let id = self.names.id_here(&*self.memory, &thread.place);
                let process = self.process.as_ref().zip(id);
                thread.waited_before = process.and_then(|(process, id)| process.kernel_wait(id));
            }
        }
    }

    fn read_batch(&mut self) -> Result<(), InterpreterError> {
        let layout = &self.interpreter.layout;
        self.batch.clear();
        self.heads.push(&mut self.batch, layout);
        for thread in self.threads.iter_mut().filter(|t| !t.done) {
            thread.push(&mut self.batch, layout);
        }
        self.heads.push_generation(&mut self.batch, layout);
        self.codes.push(&mut self.batch);
        self.batch.read(&*self.memory).map_err(|error| {
            InterpreterError::unreadable(self.pid, "_PyRuntime", self.interpreter.runtime, error)
        })
    }

    /// `true`: walk the thread list again.
    fn decode_threads(&mut self, table: &mut StackTable) -> bool {
        let fault = self.batch.fault();
        let mut shared = SampleContext {
            layout: &self.interpreter.layout,
            codes: &mut self.codes,
            table,
            scratch: &mut self.scratch,
        };
        for thread in self.threads.iter_mut().filter(|t| !t.done) {
            if let Some(slot) = fault.filter(|&slot| thread.asked_for(slot)) {
                thread.forget(slot);
                if thread.is_state(slot) {
                    return true;
                }
            }
            let outcome = thread.decode(&self.batch, &mut shared);
            match outcome {
                ReadOutcome::Stack { .. } | ReadOutcome::NoFrames => {
                    thread.done = true;
                    thread.found = Some(outcome);
                }
                ReadOutcome::Torn => {
                    thread.tears += 1;
                    thread.done = thread.tears == MAX_TORN_READS;
                }
                ReadOutcome::Again => {}
                ReadOutcome::Unchecked => thread.found = Some(outcome),
                ReadOutcome::Relist => return true,
            }
        }
        false
    }

    fn decode_threads_unchecked(&mut self, table: &mut StackTable) {
        let mut shared = SampleContext {
            layout: &self.interpreter.layout,
            codes: &mut self.codes,
            table,
            scratch: &mut self.scratch,
        };
        for thread in self.threads.iter_mut() {
            if !matches!(thread.found, Some(ReadOutcome::Unchecked)) {
                continue;
            }
            thread.found = None;
            let outcome = thread.decode(&self.batch, &mut shared);
            if let ReadOutcome::Stack { .. } | ReadOutcome::NoFrames = outcome {
                thread.done = true;
                thread.found = Some(outcome);
            }
        }
    }

    fn unreadable_marks(&self, error: MemoryError) -> InterpreterError {
        InterpreterError::unreadable(self.pid, "a code object", self.interpreter.runtime, error)
    }

    fn learn(&mut self) -> Result<(), InterpreterError> {
        let Interpreter { layout, code_type, .. } = &self.interpreter;
        while let Some(at) = self.scratch.unknown.pop() {
            match self.codes.learn(&*self.memory, layout, *code_type, at) {
                Ok(()) | Err(DecodeError::Malformed) => {}
                Err(DecodeError::Memory(MemoryError::Fault { .. })) => {}
                Err(DecodeError::Memory(error)) => {
                    return Err(InterpreterError::unreadable(self.pid, "a code object", at, error));
                }
            }
        }
        Ok(())
    }

    pub(in crate::python) fn unwind_info(&mut self) -> Result<UnwindInfo, InterpreterError> {
        let places = self.thread_entries()?;
        let waiting_for = "there is no interpreter";
        let main =
            self.heads.main().ok_or(InterpreterError::NotReady { pid: self.pid, waiting_for })?;
        bpf_stacks::unwind_info(&*self.memory, &self.interpreter, main, &places, self.pid)
    }

    fn thread_entries(&mut self) -> Result<Vec<ThreadEntry>, InterpreterError> {
        self.heads.list(&*self.memory, &self.interpreter.layout).map_err(|fault| match fault {
            ListError::Memory(what, at, error) => {
                InterpreterError::unreadable(self.pid, what, at, error)
            }
            ListError::NoInterpreter => {
                InterpreterError::NotReady { pid: self.pid, waiting_for: "there is no interpreter" }
            }
            ListError::Changing => InterpreterError::NotReady {
                pid: self.pid,
                waiting_for: "its list of threads keeps changing",
            },
        })
    }

    fn list(&mut self, table: &mut StackTable) -> Result<(), InterpreterError> {
        self.listed = false;
        let mut places = self.thread_entries()?;
        make_ids_unique(&mut places);
        let mut old = std::mem::take(&mut self.threads);
        let mut is_new = false;
        for place in places {
            let known = old
                .iter()
                .position(|t| t.place.at == place.at && t.place.identity == place.identity);
            let thread = match known {
                Some(at) => {
                    let mut thread = old.swap_remove(at);
                    thread.place = place;
                    thread
                }
                None => {
                    is_new = true;
                    let described = self.names.describe(&*self.memory, &place);
                    SampledThread::new(place, table.thread(described))
                }
            };
            self.threads.push(thread);
        }
        if is_new {
            self.codes.forget_copies();
            self.names.refresh_soon();
        }
        self.listed = true;
        Ok(())
    }

    fn name_threads(&mut self, table: &mut StackTable) {
        let layout = &self.interpreter.layout;
        self.names.refresh(
            self.process.as_ref(),
            &*self.memory,
            layout,
            self.heads.main(),
            self.threads.iter().map(|t| &t.place),
        );
        for thread in &mut self.threads {
            thread.id = table.thread(self.names.describe(&*self.memory, &thread.place));
        }
    }

    fn finish(&mut self, table: &StackTable, stats: &mut SampleStats, out: &mut Vec<ThreadSample>) {
        let now = Instant::now();
        let look_up = self.os_states_at.is_none_or(|at| now - at >= OS_STATES_INTERVAL);
        if look_up {
            self.os_states_at = Some(now);
        }
        let working = self.working_locks();
        for thread in &mut self.threads {
            thread.settle();
            let Some(ReadOutcome::Stack { stack, waits, cut }) = thread.found else {
                stats.torn += u32::from(thread.found != Some(ReadOutcome::NoFrames));
                continue;
            };
            stats.stacks += 1;
            stats.cut += u32::from(cut);
            let gil = self.holders.contains(&thread.place.at);
            let process =
                || self.process.as_ref().zip(self.names.id_here(&*self.memory, &thread.place));
            // It may have moved during the read.
            let before = thread.waited_before.filter(|_| !gil && !waits);
            let needs_after = before.is_some_and(|wait| wait != KernelWait::Working);
            let after =
                process().filter(|_| needs_after).and_then(|(process, id)| process.kernel_wait(id));
            let kind = |wait: Option<KernelWait>| wait.map(|wait| WaitKind::of(wait, &working));
            thread.os_state = thread.os_state.filter(|_| !thread.moved);
            // A small file per thread: at a low rate, and only without other evidence.
            if (look_up || thread.os_state.is_none()) && !gil && !waits && !thread.moved {
                thread.os_state = process().and_then(|(process, id)| process.thread_state(id));
            }
            let signs = ThreadEvidence {
                gil,
                in_known_wait: waits,
                in_engine: ends_in_engine(table, stack),
                moved: thread.moved,
                os_state: thread.os_state,
                waits: [kind(before), kind(after)],
            };
            out.push(ThreadSample { thread: thread.id, stack, gil, activity: classify(signs) });
        }
    }
}

fn ends_in_engine(table: &StackTable, stack: StackId) -> bool {
    let frame = table.get_stack(stack).and_then(|node| table.get_frame(node.frame));
    let function = frame.and_then(|frame| table.get_function(frame.function));
    function.is_some_and(|function| is_engine_function(&function.file, &function.name))
}

#[cfg(test)]
#[path = "stack_sampler_tests.rs"]
mod tests;
