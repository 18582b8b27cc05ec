//! Finds garbage by CPython's algorithm (Python/gc.c, `deduce_unreachable`): an object with more
//! counts than references from tracked objects is alive, with all that it references. Unknown kinds
//! count as without references, and torn objects as alive: every object found is garbage, though
//! some is missed.

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::dicts::{self, InstanceAttributes};
use super::locals::CELL;
use super::reference_graph::ReferenceGraph;
use super::references::{METHOD_FUNCTION, METHOD_SELF};
use super::{ClassKind, HeapObject, ObjectHeap};
use crate::python::layouts::RefcountLayout;
use crate::target::{Addr, Field};

impl ReferenceGraph<'_> {
    /// Objects that only cycles keep alive; `None` if counts are inconsistent. `through_cpp`:
    /// references from C++, such as from a tensor to its node's `ctx`.
    pub fn garbage(&self, through_cpp: &[(Addr, Addr)]) -> Option<FxHashSet<Addr>> {
        let objects = self.objects();
        let immortal = |object: &HeapObject| object.references < 0;
        let mut alive = vec![false; objects.len()];
        let mut waiting: Vec<u32> = Vec::new();
        let mut further: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        let mut accounted: FxHashMap<u32, i64> = FxHashMap::default();
        for (from, to) in through_cpp {
            if let (Some(from), Some(to)) = (self.number_of(*from), self.number_of(*to)) {
                further.entry(from).or_default().push(to);
                *accounted.entry(to).or_default() += 1;
            }
        }
        let by_torn = self.by_torn();
        for (number, object) in (0u32..).zip(objects) {
            let mut left = self.unaccounted(number);
            left += by_torn.get(&number).copied().unwrap_or_default();
            if let Some(accounted) = accounted.get(&number).filter(|accounted| **accounted <= left)
            {
                left -= accounted;
            }
            if immortal(object) || left > 0 || self.is_torn(number) {
                alive[number as usize] = true;
                waiting.push(number);
            } else if left < 0 {
                return None;
            }
        }
        while let Some(number) = waiting.pop() {
            let further = further.get(&number).map_or(&[][..], Vec::as_slice);
            for &next in self.references_of(number).iter().chain(further) {
                if !std::mem::replace(&mut alive[next as usize], true) {
                    waiting.push(next);
                }
            }
        }
        let dead = objects.iter().zip(alive).filter(|(_, alive)| !alive);
        Some(dead.map(|(object, _)| object.at).collect())
    }
}

impl ObjectHeap<'_> {
    /// An untracked object's reference count; `None` if immortal or torn, or without a GIL.
    pub fn count_of(&self, at: Addr) -> Option<i64> {
        let RefcountLayout::One(field) = self.layout.object.references else { return None };
        let memory = self.memory();
        let (count, is_torn) = memory.noting_torn(|| memory.u32(at + field.offset as u64).ok());
        let count = count? as i32;
        (count >= 0 && !is_torn).then_some(i64::from(count))
    }

    /// Passes each reference on as often as it counts.
    pub fn owned(&self, object: &HeapObject, take: &mut dyn FnMut(Addr)) {
        let memory = self.memory();
        let at = object.at;
        let head = &self.layout.object;
        let pointer = |field: Field<Addr>| {
            memory.pointer(field.in_target(at)).ok().filter(|to| to.is_plausible())
        };
        match object.class.kind {
            ClassKind::Dict => self.owned_by_dict(at, take),
            ClassKind::List | ClassKind::Tuple | ClassKind::Set | ClassKind::Deque => {
                self.each_item_of(at, object.class.kind, take)
            }
            ClassKind::Cell => pointer(head.shift(CELL)).into_iter().for_each(&mut *take),
            ClassKind::Function => {
                self.function_parts().into_iter().filter_map(pointer).for_each(&mut *take);
            }
            ClassKind::Method => {
                let parts = [METHOD_FUNCTION, METHOD_SELF].map(|field| head.shift(field));
                parts.into_iter().filter_map(pointer).for_each(&mut *take);
            }
            ClassKind::Module => {
                dicts::of_module(memory, &self.layout, at).into_iter().for_each(&mut *take);
                return;
            }
            ClassKind::Generator => {
                self.owned_by_generator(at, take);
                return;
            }
            ClassKind::Frame => {
                self.owned_by_frame_object(at, take);
                return;
            }
            ClassKind::Instance => {}
            ClassKind::Other if object.class.parts.is_some() => {}
            ClassKind::Text | ClassKind::Type | ClassKind::Capsule | ClassKind::Other => return,
        }
        object.class.parts(head).filter_map(|(part, _)| pointer(part)).for_each(&mut *take);
        self.row_of(at, &object.class).into_iter().for_each(|(_, to)| take(to));
        if !object.class.is_heap_type() && object.class.parts.is_none() {
            return;
        }
        self.owned_by_slots(at, &object.class).into_iter().for_each(&mut *take);
        match dicts::owned_by_instance(memory, &self.layout, at, &object.class.place()) {
            Ok(InstanceAttributes { dict, values }) => {
                dict.into_iter().for_each(&mut *take);
                values.into_iter().for_each(take);
            }
            Err(_) => self.missed(),
        }
    }

    fn owned_by_dict(&self, at: Addr, take: &mut dyn FnMut(Addr)) {
        if let Ok(entries) = dicts::owned_entries(self.memory(), &self.layout, at) {
            for (key, value) in entries {
                take(key);
                take(value);
            }
        }
    }

    fn function_parts(&self) -> [Field<Addr>; 5] {
        let heap = &self.layout.heap;
        [
            heap.function_globals,
            heap.function_defaults,
            heap.function_kwdefaults,
            heap.function_closure,
            heap.function_dict,
        ]
    }
}
