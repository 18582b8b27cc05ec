//! Objects that the collector does not track although they refer to others: what `lru_cache` keeps,
//! tuples and dictionaries of such.

use super::held_memory::GraphBuilder;
use super::name_lookup::{NamedPlace, NamedReference, is_plain};
use super::retention_graph::ReferenceSide;
use crate::python::{ClassKind, HeapObject, ObjectHeap, ReferenceGraph};
use crate::target::{Addr, Memory as _};

const MAX_UNTRACKED: usize = 1 << 16;
pub(super) const LRU_CACHE: &str = "functools._lru_cache_wrapper";
const LRU_RESULT: &str = "functools._lru_list_elem";

/// Adds what names pass through and the collector does not track, with the others beside it.
pub(super) fn add_untracked(
    heap: &ObjectHeap<'_>,
    references: &ReferenceGraph<'_>,
    builder: &mut GraphBuilder,
    on_ways: &[NamedReference],
) {
    let tracked = |at: Addr| references.number_of(at);
    let caches = references.objects().iter().filter(|it| &*it.class.name == LRU_CACHE);
    let mut holders: Vec<Addr> = caches.map(|cache| cache.at).collect();
    for named in on_ways {
        if tracked(named.to).is_none()
            && let NamedPlace::In(holder) = named.place
            && tracked(holder).is_some()
            && !holders.contains(&holder)
        {
            holders.push(holder);
        }
    }
    let object = |at: Addr| {
        let class = heap.class_of(at)?;
        Some(HeapObject { at, class, references: 0 })
    };
    let mut added: Vec<Addr> = Vec::new();
    let of_frames = on_ways.iter().filter(|named| matches!(named.place, NamedPlace::Frame(_)));
    for to in of_frames.map(|named| named.to).filter(|to| tracked(*to).is_none()) {
        let is_new = !builder.numbers.contains_key(&to.0);
        if is_new && object(to).is_some_and(|it| !is_plain(it.class.kind)) {
            builder.add(to.0, || heap.count_of(to));
            added.push(to);
        }
    }
    let mut next = 0;
    while let Some(from) = holders.get(next).or_else(|| added.get(next - holders.len())).copied() {
        next += 1;
        let torn_before = heap.pages().torn_reads();
        let Some(from) = object(from) else { continue };
        let is_added = next > holders.len();
        let dict = heap.dict_of_instance(from.at, &from.class).filter(|_| !is_added);
        let dict = dict.and_then(&object);
        for from in std::iter::once(from).chain(dict) {
            let number = tracked(from.at).or_else(|| builder.numbers.get(&from.at.0).copied());
            let Some(number) = number else { continue };
            let mut owned = Vec::new();
            heap.owned(&from, &mut |to| owned.push(to));
            if heap.pages().torn_reads() > torn_before {
                continue;
            }
            for to in owned {
                let target = match tracked(to) {
                    // Its edges from tracked objects are known.
                    Some(target) if is_added => target,
                    Some(_) => continue,
                    None if added.len() >= MAX_UNTRACKED || heap.is_leaf(to) => continue,
                    None if object(to).is_none_or(|it| is_plain(it.class.kind)) => continue,
                    None => {
                        if !builder.numbers.contains_key(&to.0) {
                            builder.add(to.0, || heap.count_of(to));
                            added.push(to);
                        }
                        builder.numbers[&to.0]
                    }
                };
                builder.edges.push((number, target, ReferenceSide::Python));
            }
        }
    }
    add_cached(heap, references, builder, &holders);
}

/// A cache's dictionary owns its results, and so does its list (Modules/_functoolsmodule.c).
fn add_cached(
    heap: &ObjectHeap<'_>,
    references: &ReferenceGraph<'_>,
    builder: &mut GraphBuilder,
    holders: &[Addr],
) {
    for holder in holders {
        let (Some(number), Some(class)) = (references.number_of(*holder), heap.class_of(*holder))
        else {
            continue;
        };
        if &*class.name != LRU_CACHE {
            continue;
        }
        let mut dicts = Vec::new();
        heap.owned(&HeapObject { at: *holder, class, references: 0 }, &mut |to| dicts.push(to));
        for dict in dicts {
            let Some(class) = heap.class_of(dict).filter(|it| it.kind == ClassKind::Dict) else {
                continue;
            };
            let mut results = Vec::new();
            let torn_before = heap.pages().torn_reads();
            heap.owned(&HeapObject { at: dict, class, references: 0 }, &mut |to| {
                if heap.class_of(to).is_some_and(|class| &*class.name == LRU_RESULT)
                    && let Some(&to) = builder.numbers.get(&to.0)
                {
                    results.push((number, to, ReferenceSide::Python));
                }
            });
            if heap.pages().torn_reads() == torn_before {
                builder.edges.append(&mut results);
            }
        }
    }
}
