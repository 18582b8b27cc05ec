//! Objects written in C that hold others, by the name of their type: where in them the references are.
//!
//! All of these are counted references that `tp_traverse` visits (CPython's sources, 3.8 to 3.15; compared with
//! `gc.get_referents` in the tests). What a type has besides and is not listed is not followed.

use super::super::layout::Layout;

/// Where a reference is in an object, and how it is called in Python.
pub(super) type Part = (u64, &'static str);

/// Sorted by name.
const TYPES: [(&str, &[Part]); 47] = [
    ("builtin_function_or_method", &[(24, "__self__"), (32, "__module__")]),
    ("callable_iterator", &[(16, "<callable>"), (24, "<sentinel>")]),
    ("classmethod", &[(16, "__func__")]),
    ("collections.defaultdict", &[(48, "default_factory")]),
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
    ("iterator", COUNTS),
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
    ("odict_items", ITERATES),
    ("odict_keys", ITERATES),
    ("odict_values", ITERATES),
    ("property", &[(16, "fget"), (24, "fset"), (32, "fdel"), (40, "__doc__")]),
    ("reversed", COUNTS),
    ("set_iterator", ITERATES),
    ("slice", &[(16, "start"), (24, "stop"), (32, "step")]),
    ("staticmethod", &[(16, "__func__")]),
    ("traceback", &[(16, "tb_next"), (24, "tb_frame")]),
    ("tuple_iterator", COUNTS),
    ("zip", &[(24, "<items>"), (32, "<result>")]),
];

const ITERATES: &[Part] = &[(16, "<items>")];
/// After a number.
const COUNTS: &[Part] = &[(24, "<items>")];
const FUNCTION_AND_ITEMS: &[Part] = &[(16, "<function>"), (24, "<items>")];
/// Weak references count their callback only; their names differ from version to version.
const WEAK: &[Part] = &[(24, "__callback__")];
const WEAK_TYPES: [&str; 6] = [
    "weakref",
    "weakref.ReferenceType",
    "weakproxy",
    "weakref.ProxyType",
    "weakcallableproxy",
    "weakref.CallableProxyType",
];

/// What all exceptions have after their dictionary, one behind the other (`PyException_HEAD`, Include/cpython/pyerrors.h).
const OF_EVERY_EXCEPTION: [&str; 4] = ["args", "__traceback__", "__context__", "__cause__"];
/// Where `args` is.
const ARGS: u64 = 24;
/// It came behind `args` with this version.
const NOTES: (u8, &str) = (11, "__notes__");
/// What some have besides, behind the mark `suppress_context`, and since when.
const EXCEPTIONS: [(&str, u8, &[&str]); 5] = [
    ("AttributeError", 10, &["obj", "name"]),
    ("BaseException", 0, &[]),
    ("BaseExceptionGroup", 11, &["message", "exceptions"]),
    ("StopIteration", 0, &["value"]),
    ("SystemExit", 0, &["code"]),
];

/// The references in instances of a type written in C; `None` for one that is not known.
pub(super) fn of_type(name: &str) -> Option<&'static [Part]> {
    if WEAK_TYPES.contains(&name) {
        return Some(WEAK);
    }
    let index = TYPES.binary_search_by_key(&name, |(name, _)| name).ok()?;
    Some(TYPES[index].1)
}

/// Those in exceptions of a builtin class of this name; `None` for one that only has what its base has.
pub(super) fn of_exception(layout: &Layout, name: &str) -> Option<Vec<Part>> {
    let (.., own) =
        EXCEPTIONS.iter().find(|(known, since, _)| *known == name && layout.minor >= *since)?;
    let mut names = Vec::from(OF_EVERY_EXCEPTION);
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
    }
}
