//! The objects that CPython's garbage collector tracks, and their references. A running target
//! changes the lists ([`HeapError::Changing`]). Start reading at [`ObjectHeap`].

mod blocks;
mod c_type_fields;
mod class;
mod contents;
mod frames;
mod garbage;
mod hidden;
mod lists;
mod locals;
mod mimalloc;
mod object_arrays;
mod onward;
mod reference_graph;
mod reference_scan;
mod references;
mod threads;

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

pub use class::{ClassKind, PyClass};
use lists::TrackedObject;
pub(super) use locals::TAG;
pub use locals::{LocalVariable, VariableHolder};
pub use onward::OnwardReferences;
pub use reference_graph::{LeadingObjects, ReferenceGraph};
pub use references::ReferenceKind;

use crate::python::layouts::PythonLayout;
use crate::python::layouts::interpreter::Interpreter;
use crate::target::{Addr, MemoryError, PageCache, Process};

/// Why the heap could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum HeapError {
    #[error("Python's garbage collector is at work")]
    Collecting,
    #[error("Python's list of objects changed while it was read")]
    Changing,
    #[error("the list of objects of this CPython ({version}) could not be found")]
    NoLists { version: String },
    #[error("the objects of CPython {version} are not known to memspy")]
    Unsupported { version: String },
    #[error("cannot read {what} at {at}: {source}")]
    Unreadable { what: &'static str, at: Addr, source: MemoryError },
}

impl HeapError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, HeapError::Collecting | HeapError::Changing)
    }

    /// [`MemoryError::is_limit`].
    pub fn is_limit(&self) -> bool {
        matches!(self, HeapError::Unreadable { source, .. } if source.is_limit())
    }

    fn unreadable(what: &'static str, at: Addr) -> impl FnOnce(MemoryError) -> HeapError {
        move |source| HeapError::Unreadable { what, at, source }
    }
}

/// A tracked object.
#[derive(Debug, Clone)]
pub struct HeapObject {
    /// `id(object)`.
    pub at: Addr,
    /// Its class.
    pub class: Arc<PyClass>,
    /// Its reference count; negative if immortal (3.12+) or unknown.
    pub references: i32,
}

type KnownClasses = FxHashMap<Addr, Option<Arc<PyClass>>>;

/// A CPython's heap at one moment.
pub struct ObjectHeap<'a> {
    memory: &'a PageCache,
    layout: PythonLayout,
    runtime: Addr,
    threads: Cell<usize>,
    objects: Vec<HeapObject>,
    /// Objects that may be of another moment than the snapshot.
    torn: FxHashSet<Addr>,
    classes: RefCell<KnownClasses>,
    class_depth: Cell<u32>,
    texts: RefCell<FxHashMap<Addr, Box<str>>>,
    unreadable: Cell<u64>,
    context_values: OnceCell<hidden::ContextValues>,
}

/// How complete the object list must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapListing {
    /// Any inconsistency is an error.
    Whole,
    /// Best effort, to learn which pages hold the list.
    Rough,
    /// Best effort, some thousand newest objects (without a GIL: of any age).
    Newest,
}

impl<'a> ObjectHeap<'a> {
    pub(super) fn read(
        memory: &'a PageCache,
        interpreter: &Interpreter,
        process: Option<&Process>,
        listing: HeapListing,
    ) -> Result<ObjectHeap<'a>, HeapError> {
        let mut heap = ObjectHeap::unlisted(memory, interpreter);
        let tracked = match interpreter.layout.free_threaded {
            true if listing == HeapListing::Newest => Vec::new(),
            true => mimalloc::tracked(memory, interpreter, process, listing)?,
            false => lists::tracked(memory, interpreter, listing)?,
        };
        heap.objects.reserve(tracked.len());
        for TrackedObject { at, class, references, is_torn } in tracked {
            match heap.class_at(class) {
                Some(class) => heap.objects.push(HeapObject { at, class, references }),
                None => heap.missed(),
            }
            if is_torn {
                heap.torn.insert(at);
            }
        }
        Ok(heap)
    }

    pub(super) fn unlisted(memory: &'a PageCache, interpreter: &Interpreter) -> ObjectHeap<'a> {
        let (layout, runtime) = (interpreter.layout, interpreter.runtime);
        ObjectHeap::over(layout, runtime, KnownClasses::default(), memory)
    }

    fn over<'b>(
        layout: PythonLayout,
        runtime: Addr,
        classes: KnownClasses,
        memory: &'b PageCache,
    ) -> ObjectHeap<'b> {
        ObjectHeap {
            memory,
            layout,
            runtime,
            threads: Cell::new(threads::max_threads()),
            objects: Vec::new(),
            torn: FxHashSet::default(),
            classes: RefCell::new(classes),
            class_depth: Cell::new(0),
            texts: RefCell::default(),
            unreadable: Cell::new(0),
            context_values: OnceCell::new(),
        }
    }

    /// `gc.get_objects()` and the `gc.freeze()` list.
    pub fn objects(&self) -> &[HeapObject] {
        &self.objects
    }

    /// The memory that it is read from.
    pub fn pages(&self) -> &'a PageCache {
        self.memory
    }

    /// Number of objects with missing references.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.get()
    }

    fn missed(&self) {
        self.unreadable.set(self.unreadable.get() + 1);
    }
}
