//! References in C types, all visited by `tp_traverse` (CPython 3.8 to 3.15; tests compare with
//! `gc.get_referents`).

use crate::python::layouts::PythonLayout;
use crate::target::{Addr, Field};

pub(super) type TypeField = (u64, &'static str);

const TYPES: [(&str, &[TypeField]); 69] = [
    ("Context", CONTEXT),
    ("ContextVar", CONTEXT_VARIABLE),
    ("TaskStepMethWrapper", &[(16, "<task>"), (24, "<exception>")]),
    ("TaskWakeupMethWrapper", &[(16, "<task>")]),
    ("Token", TOKEN),
    ("_asyncio.FutureIter", &[(16, "<future>")]),
    ("_asyncio.TaskStepMethWrapper", &[(16, "<task>"), (24, "<exception>")]),
    ("_contextvars.Context", CONTEXT),
    ("_contextvars.ContextVar", CONTEXT_VARIABLE),
    ("_contextvars.Token", TOKEN),
    ("builtin_function_or_method", &[(24, "__self__"), (32, "__module__")]),
    ("callable_iterator", &[(16, "<callable>"), (24, "<sentinel>")]),
    ("classmethod", &[(16, "__func__")]),
    ("collections.defaultdict", &[(48, "default_factory")]),
    ("coroutine_wrapper", &[(16, "<coroutine>")]),
    ("dict_itemiterator", ITERATES),
    ("dict_items", ITERATES),
    ("dict_keyiterator", ITERATES),
    ("dict_keys", ITERATES),
    ("dict_valueiterator", ITERATES),
    ("dict_values", ITERATES),
    ("enumerate", &[(24, "<items>"), (32, "<result>")]),
    ("filter", FUNCTION_AND_ITEMS),
    ("functools._lru_cache_wrapper", &[(72, "<cache>"), (88, "__wrapped__")]),
    ("functools._lru_list_elem", &[(40, "<key>"), (48, "<result>")]),
    ("functools.partial", &[(16, "func"), (24, "args"), (32, "keywords")]),
    ("hamt", &[(16, "<root>")]),
    ("hamt_array_node", &HAMT_ARRAY),
    ("hamt_bitmap_node", &[]),
    ("hamt_collision_node", &[]),
    ("iterator", COUNTS),
    ("itertools._tee", &[(16, "<buffer>")]),
    ("itertools._tee_dataobject", &[(16, "<items>"), (32, "<next>")]),
    (
        "itertools.accumulate",
        &[(16, "<total>"), (24, "<items>"), (32, "<function>"), (40, "<initial>")],
    ),
    ("itertools.chain", &[(16, "<source>"), (24, "<items>")]),
    ("itertools.compress", &[(16, "<items>"), (24, "<selectors>")]),
    ("itertools.cycle", &[(16, "<items>"), (24, "<saved>")]),
    ("itertools.dropwhile", FUNCTION_AND_ITEMS),
    ("itertools.filterfalse", FUNCTION_AND_ITEMS),
    (
        "itertools.groupby",
        &[(16, "<items>"), (24, "<function>"), (32, "<target>"), (40, "<key>"), (48, "<value>")],
    ),
    ("itertools.islice", ITERATES),
    ("itertools.pairwise", &[(16, "<items>"), (24, "<last>")]),
    ("itertools.permutations", &[(16, "<pool>"), (40, "<result>")]),
    ("itertools.product", &[(16, "<pools>"), (32, "<result>")]),
    ("itertools.repeat", &[(16, "<element>")]),
    ("itertools.starmap", FUNCTION_AND_ITEMS),
    ("itertools.takewhile", FUNCTION_AND_ITEMS),
    ("itertools.zip_longest", &[(32, "<items>"), (40, "<result>"), (48, "<fill>")]),
    ("list_iterator", COUNTS),
    ("list_reverseiterator", COUNTS),
    ("map", &[(16, "<items>"), (24, "<function>")]),
    ("mappingproxy", &[(16, "<mapping>")]),
    ("method-wrapper", &[(16, "<descriptor>"), (24, "__self__")]),
    ("numpy.ndarray", &[(48, ARRAY_BASE)]),
    ("odict_items", ITERATES),
    ("odict_keys", ITERATES),
    ("odict_values", ITERATES),
    ("pandas._libs.internals.Block", PANDAS_BLOCK),
    (
        "pandas._libs.internals.BlockManager",
        &[(24, "blocks"), (32, "axes"), (48, "_blknos"), (56, "_blklocs")],
    ),
    ("pandas._libs.internals.NumpyBlock", PANDAS_BLOCK),
    ("property", &[(16, "fget"), (24, "fset"), (32, "fdel"), (40, "__doc__")]),
    ("reversed", COUNTS),
    ("set_iterator", ITERATES),
    ("slice", &[(16, "start"), (24, "stop"), (32, "step")]),
    ("staticmethod", &[(16, "__func__")]),
    ("traceback", &[(16, "tb_next"), (24, "tb_frame")]),
    ("tuple_iterator", COUNTS),
    ("types.GenericAlias", &[(16, "__origin__"), (24, "__args__"), (32, "__parameters__")]),
    ("zip", &[(24, "<items>"), (32, "<result>")]),
];

/// A tree of `hamt` nodes (Include/internal/pycore_context.h, pycore_hamt.h).
const CONTEXT: &[TypeField] = &[(16, "<previous>"), (24, "<variables>")];
const CONTEXT_VARIABLE: &[TypeField] = &[(24, "<default>")];
const TOKEN: &[TypeField] = &[(16, "<context>"), (24, "var"), (32, "old_value")];
const HAMT_ARRAY: [TypeField; 32] = {
    let mut parts = [(16, "<node>"); 32];
    let mut n = 0;
    while n < parts.len() {
        parts[n].0 += 8 * n as u64;
        n += 1;
    }
    parts
};
/// Columns of a `DataFrame` (pandas 2, pandas/_libs/internals.pyx).
const PANDAS_BLOCK: &[TypeField] = &[(24, "_mgr_locs"), (32, "refs"), (48, "values")];
const ITERATES: &[TypeField] = &[(16, "<items>")];
const COUNTS: &[TypeField] = &[(24, "<items>")];
const FUNCTION_AND_ITEMS: &[TypeField] = &[(16, "<function>"), (24, "<items>")];
/// Only the callback counts. Names vary between versions.
const WEAK: &[TypeField] = &[(24, "__callback__")];
const WEAK_TYPES: [&str; 6] = [
    "weakref",
    "weakref.ReferenceType",
    "weakproxy",
    "weakref.ProxyType",
    "weakcallableproxy",
    "weakref.CallableProxyType",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReferenceArray {
    Inside { count: Field<u32>, first: u64 },
    Ring { items: Field<Addr>, room: Field<u64>, first: Field<u64>, count: Field<u64> },
}

const ROWS: [(&str, ReferenceArray); 3] = [
    ("hamt_bitmap_node", ReferenceArray::Inside { count: Field::at(16), first: 32 }),
    ("hamt_collision_node", ReferenceArray::Inside { count: Field::at(16), first: 32 }),
    ("itertools._tee_dataobject", ReferenceArray::Inside { count: Field::at(24), first: 40 }),
];

/// `FutureObj`, then a `TaskObj`'s own part by minor version (Modules/_asynciomodule.c).
const FUTURE: [TypeField; 5] =
    [(16, "_loop"), (24, "<callback>"), (32, "<context>"), (40, "_callbacks"), (48, "_exception")];
const RESULT_TO_3_9: [TypeField; 3] =
    [(56, "_result"), (64, "_source_traceback"), (72, "_cancel_message")];
const RESULT: [TypeField; 4] =
    [(56, "<traceback>"), (64, "_result"), (72, "_source_traceback"), (80, "_cancel_message")];
/// Since 3.14.
const AWAITED_BY: TypeField = (96, "<awaited by>");
const TASK: [&str; 4] = ["_fut_waiter", "_coro", "<name>", "_context"];
const TASK_BEGINS: [(u8, u64); 6] =
    [(14, 120), (13, 112), (11, 128), (10, 152), (9, 144), (8, 104)];

pub(super) fn of_version(layout: &PythonLayout, name: &str) -> Option<Vec<TypeField>> {
    match name {
        "_asyncio.Future" | "_asyncio.Task" => {
            let mut parts = FUTURE.to_vec();
            match layout.minor {
                8 => parts.extend(&RESULT_TO_3_9[..2]),
                9 => parts.extend(RESULT_TO_3_9),
                _ => parts.extend(RESULT),
            }
            if layout.minor >= 14 {
                parts.push(AWAITED_BY);
            }
            if name == "_asyncio.Task" {
                let (_, first) = TASK_BEGINS.iter().find(|(since, _)| layout.minor >= *since)?;
                parts.extend((*first..).step_by(8).zip(TASK));
            }
            Some(parts)
        }
        // A list up to 3.12 (Modules/_queuemodule.c).
        SIMPLE_QUEUE => Some(match layout.minor {
            ..=12 => vec![(32, "<items>")],
            _ => Vec::new(),
        }),
        // Up to 3.12 the list of weak references is first.
        "_thread._local" => {
            let first = if layout.minor >= 13 { 16 } else { 24 };
            let mut parts =
                vec![(first, "<arguments>"), (first + 8, "<keywords>"), (first + 24, LOCAL)];
            if layout.minor >= 13 {
                parts.push((first + 32, "<watchdogs>"));
            }
            Some(parts)
        }
        _ => None,
    }
}

/// A dictionary of one dictionary per thread.
pub(super) const LOCAL: &str = "<threads>";

/// Only NumPy arrays have this field.
pub(super) const ARRAY_BASE: &str = "base";

const SIMPLE_QUEUE: &str = "_queue.SimpleQueue";
/// `RingBuf` (3.13+).
const RING_OF_QUEUE: ReferenceArray = ReferenceArray::Ring {
    items: Field::at(40),
    room: Field::at(48),
    first: Field::at(32),
    count: Field::at(56),
};

pub(super) fn row_of(layout: &PythonLayout, name: &str) -> Option<ReferenceArray> {
    if name == SIMPLE_QUEUE && layout.minor >= 13 {
        return Some(RING_OF_QUEUE);
    }
    ROWS.iter().find(|(known, _)| *known == name).map(|(_, row)| *row)
}

/// `PyException_HEAD` (Include/cpython/pyerrors.h).
const EXCEPTION_FIELDS: [&str; 4] = ["args", "__traceback__", "__context__", "__cause__"];
const ARGS: u64 = 24;
/// After `args`, since this minor version.
const NOTES: (u8, &str) = (11, "__notes__");
/// After `suppress_context`, since the given minor version.
const EXCEPTIONS: [(&str, u8, &[&str]); 5] = [
    ("AttributeError", 10, &["obj", "name"]),
    ("BaseException", 0, &[]),
    ("BaseExceptionGroup", 11, &["message", "exceptions"]),
    ("StopIteration", 0, &["value"]),
    ("SystemExit", 0, &["code"]),
];

pub(super) fn of_type(name: &str) -> Option<&'static [TypeField]> {
    if WEAK_TYPES.contains(&name) {
        return Some(WEAK);
    }
    let index = TYPES.binary_search_by_key(&name, |(name, _)| name).ok()?;
    Some(TYPES[index].1)
}

pub(super) fn of_exception(layout: &PythonLayout, name: &str) -> Option<Vec<TypeField>> {
    let (.., own) =
        EXCEPTIONS.iter().find(|(known, since, _)| *known == name && layout.minor >= *since)?;
    let mut names = Vec::from(EXCEPTION_FIELDS);
    if layout.minor >= NOTES.0 {
        names.insert(1, NOTES.1);
    }
    let behind = ARGS + 8 * names.len() as u64 + 8;
    let every = (ARGS..).step_by(8).zip(names);
    Some(every.chain((behind..).step_by(8).zip(own.iter().copied())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_name() {
        assert!(TYPES.is_sorted_by_key(|(name, _)| name));
        assert!(TYPES.iter().all(|(name, parts)| of_type(name) == Some(parts)));
        assert_eq!(of_type("itertools.tee"), None);
        assert!(ROWS.iter().all(|(name, _)| of_type(name).is_some()));
    }
}
