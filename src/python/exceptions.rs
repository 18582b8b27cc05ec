//! Finds exceptions that threads raise or handle, and the last uncaught one. A thread must refer to
//! it before and after the copy.

use rustc_hash::FxHashSet;

use super::heap::ObjectHeap;
use crate::model::Function;
use crate::python::code::CodeObject;
use crate::python::layouts::interpreter::Interpreter;
use crate::python::layouts::{EntryFrame, PythonLayout};
use crate::python::stacks::{FrameFields, thread_states};
use crate::target::{Addr, Field, Memory, PageCache, Process};

const MAX_NESTED: usize = 64;
const MAX_FRAMES: usize = 512;

/// Finds exceptions of one class.
pub struct ExceptionFinder {
    process: Process,
    interpreter: Interpreter,
    class: &'static str,
    sys: Option<Addr>,
}

/// An exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundException {
    /// `id(exception)`.
    pub at: Addr,
    /// `PyThreadState.thread_id`; `None` for the last uncaught one.
    pub python_id: Option<u64>,
    /// First argument, if a string; cut if very long.
    pub text: String,
    /// Its class.
    pub class: String,
    /// The traceback's outermost frame: the function that handles it.
    pub handler: Option<(Function, u32)>,
    /// The traceback's frames, then their callers, innermost first, with lines (0: none).
    pub frames: Vec<(Function, u32)>,
}

/// Frames with lines, innermost first, and the one that handles.
type RaisedFrames = (Vec<(Function, u32)>, Option<(Function, u32)>);

#[derive(Debug, Clone, Copy)]
struct ExceptionRoot {
    slot: Addr,
    exception: Addr,
    python_id: Option<u64>,
    traceback: Option<Addr>,
}

impl ExceptionFinder {
    /// Every exception, also without a text.
    pub const ANY: &'static str = "BaseException";

    pub(super) fn new(
        process: Process,
        interpreter: Interpreter,
        class: &'static str,
    ) -> ExceptionFinder {
        ExceptionFinder { process, interpreter, class, sys: None }
    }

    /// Raised or handled now, with causes; `uncaught`: also `sys.last_value`.
    pub fn find(&mut self, uncaught: bool) -> Vec<FoundException> {
        let live = self.process.memory();
        let copy = PageCache::new(Box::new(self.process.memory()));
        let heap = ObjectHeap::unlisted(&copy, &self.interpreter);
        let search = ExceptionSearch {
            live: &live,
            memory: &copy,
            heap: &heap,
            layout: &self.interpreter.layout,
            interpreter: &self.interpreter,
            class: self.class,
        };
        let mut roots = search.roots();
        if uncaught {
            if self.sys.is_none() {
                let sys = heap.modules().into_iter().find(|(name, _)| name == "sys");
                self.sys = sys.map(|(_, dict)| dict);
            }
            // Before 3.12 only this name is set.
            let last = self.sys.and_then(|sys| heap.named_value(sys, "last_value"));
            roots.extend(last.map(|exception| ExceptionRoot {
                slot: Addr(0),
                exception,
                python_id: None,
                traceback: None,
            }));
        }
        let mut found: Vec<FoundException> = Vec::new();
        for root in roots {
            let Some(raised) = search.of_class(&root) else { continue };
            if found.iter().any(|known| known.at == raised.at) {
                continue;
            }
            let still = match root.slot {
                Addr(0) => self.is_last(root.exception),
                slot => search.live.pointer(slot).is_ok_and(|now| now == root.exception),
            };
            if still {
                found.push(raised);
            }
        }
        found
    }

    fn is_last(&self, exception: Addr) -> bool {
        let copy = PageCache::new(Box::new(self.process.memory()));
        let heap = ObjectHeap::unlisted(&copy, &self.interpreter);
        self.sys.and_then(|sys| heap.named_value(sys, "last_value")) == Some(exception)
    }
}

struct ExceptionSearch<'a> {
    live: &'a dyn Memory,
    memory: &'a dyn Memory,
    heap: &'a ObjectHeap<'a>,
    layout: &'a PythonLayout,
    interpreter: &'a Interpreter,
    class: &'static str,
}

impl ExceptionSearch<'_> {
    fn pointer(&self, field: Field<Addr>, at: Addr) -> Option<Addr> {
        self.memory.pointer(field.in_target(at)).ok().filter(|to| to.is_plausible())
    }

    fn roots(&self) -> Vec<ExceptionRoot> {
        let mut roots = Vec::new();
        for thread in thread_states(self.memory, self.layout, self.interpreter.runtime) {
            self.roots_of_thread(thread, &mut roots);
        }
        roots
    }

    fn roots_of_thread(&self, thread: Addr, roots: &mut Vec<ExceptionRoot>) {
        let error = &self.layout.error;
        let python_id = self.memory.u64(self.layout.thread.python_id.in_target(thread)).ok();
        let mut push = |slot: Addr, traceback: Option<Addr>| {
            if let Ok(exception) = self.memory.pointer(slot)
                && exception.is_plausible()
            {
                roots.push(ExceptionRoot { slot, exception, python_id, traceback });
            }
        };
        let traceback = error.current_traceback.and_then(|field| self.pointer(field, thread));
        push(error.current.in_target(thread), traceback);
        let mut item = self.pointer(error.handled, thread);
        for _ in 0..MAX_NESTED {
            let Some(here) = item else { break };
            push(error.handled_value.in_target(here), None);
            item = self.pointer(error.handled_before, here);
        }
    }

    fn of_class(&self, root: &ExceptionRoot) -> Option<FoundException> {
        let error = &self.layout.error;
        let mut seen: FxHashSet<Addr> = FxHashSet::default();
        let mut next = vec![root.exception];
        while let Some(at) = next.pop() {
            if seen.len() == MAX_NESTED || !seen.insert(at) {
                continue;
            }
            let class = self.heap.class_of(at)?;
            let is_it = |class: &str| class.rsplit('.').next() == Some(self.class);
            let derived = || {
                let mut bases = class.bases.iter().filter_map(|base| self.heap.class_at(*base));
                bases.any(|base| is_it(&base.name))
            };
            if is_it(&class.name) || derived() {
                let traceback = match root.exception == at {
                    true => root.traceback,
                    false => None,
                };
                return self.read(at, &class.name, traceback, root.python_id);
            }
            if !self.is_exception(&class) {
                continue;
            }
            next.extend(self.pointer(error.context, at));
            next.extend(self.pointer(error.cause, at));
        }
        None
    }

    fn is_exception(&self, class: &super::heap::PyClass) -> bool {
        let mut bases = class.bases.iter().rev().filter_map(|base| self.heap.class_at(*base));
        bases.any(|base| &*base.name == "BaseException")
    }

    fn read(
        &self,
        at: Addr,
        class: &str,
        traceback: Option<Addr>,
        python_id: Option<u64>,
    ) -> Option<FoundException> {
        let error = &self.layout.error;
        let args = self.heap.items(self.pointer(error.args, at)?);
        let text = args.first().and_then(|text| self.heap.text(*text));
        let text = match self.class == ExceptionFinder::ANY {
            true => text.unwrap_or_default(),
            false => text?,
        };
        let traceback = self.pointer(error.traceback, at).or(traceback);
        let (frames, handler) =
            traceback.map(|traceback| self.frames(traceback)).unwrap_or_default();
        Some(FoundException { at, python_id, text, class: class.to_owned(), handler, frames })
    }

    /// All frames, and the traceback's outermost.
    fn frames(&self, traceback: Addr) -> RaisedFrames {
        let error = &self.layout.error;
        let mut frames = Vec::new();
        let mut at = Some(traceback);
        let mut outermost = None;
        for _ in 0..MAX_FRAMES {
            let Some(here) = at else { break };
            let Some(frame) = self.pointer(error.frame, here) else { break };
            let read = |field: Field<i32>| {
                self.memory.bytes(field.in_target(here)).map(i32::from_le_bytes).ok()
            };
            let (Some(instruction), Some(line)) = (read(error.instruction), read(error.line))
            else {
                break;
            };
            outermost = outermost.or(Some(frame));
            let Some(code) = self.fields(self.started(frame)).and_then(|f| self.code(f.code))
            else {
                break;
            };
            let line = match u32::try_from(line) {
                Ok(line) if line > 0 => line,
                _ => code.lines.at(i64::from(instruction)),
            };
            frames.push((code.function, line));
            at = self.pointer(error.next, here);
        }
        let handler = frames.first().cloned();
        frames.reverse();
        if let Some(frame) = outermost {
            self.callers(frame, &mut frames);
        }
        (frames, handler)
    }

    fn started(&self, object: Addr) -> Option<Addr> {
        match self.layout.heap.frame_of_object {
            Some(field) => self.pointer(field, object),
            None => Some(object),
        }
    }

    fn fields(&self, frame: Option<Addr>) -> Option<FrameFields> {
        let layout = &self.layout.frame;
        FrameFields::parse(layout, &self.memory.vec(frame?, layout.len).ok()?)
    }

    fn code(&self, at: Addr) -> Option<CodeObject> {
        CodeObject::read(self.memory, self.layout, self.interpreter.code_type, at).ok()
    }

    fn callers(&self, object: Addr, frames: &mut Vec<(Function, u32)>) {
        let mut object = Some(object);
        let mut fields = self.fields(self.started(object.unwrap_or_default()));
        for _ in 0..MAX_FRAMES {
            let Some(here) = fields.take() else { return };
            let next = match here.previous.is_plausible() {
                true => {
                    object = None;
                    Some(here.previous)
                }
                // A finished frame's caller is in `f_back`, before `f_frame`.
                false => {
                    let back = self.layout.heap.frame_of_object.zip(object);
                    object = back.and_then(|(field, object)| {
                        self.pointer(Field::at(field.offset.checked_sub(8)?), object)
                    });
                    object.and_then(|object| self.started(object))
                }
            };
            fields = self.fields(next);
            let Some(caller) = &fields else { return };
            if caller.shim && self.layout.frame.entry != EntryFrame::Unmarked {
                continue;
            }
            let Some(code) = self.code(caller.code) else { return };
            let bytecode = code.with_copies(self.memory, self.layout);
            let Some(offset) = bytecode.ok().and_then(|b| b.offset(caller.instruction)) else {
                return;
            };
            frames.push((code.function, code.lines.at(offset)));
        }
    }
}
