//! Classes of C++ objects, by vtable.

use std::cell::RefCell;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::target::{Addr, Memory};
use crate::torch::class_names::class_of_vtable;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CppKind {
    Tensor,
    /// The single `UndefinedTensorImpl`: no tensor.
    Undefined,
    Hooks,
    Other,
}

type CppClass = (Arc<str>, CppKind);

#[derive(Debug, Default)]
pub(super) struct CppClasses {
    known: RefCell<FxHashMap<u64, Option<CppClass>>>,
}

impl CppClasses {
    pub(super) fn class_at(&self, memory: &dyn Memory, at: Addr) -> Option<CppClass> {
        if !at.is_plausible() || !at.0.is_multiple_of(8) {
            return None;
        }
        let vtable = memory.u64(at).ok()?;
        if let Some(known) = self.known.borrow().get(&vtable) {
            return known.clone();
        }
        let found = class_of_vtable(memory, vtable).map(|name| {
            let kind = kind(&name);
            (Arc::from(name), kind)
        });
        self.known.borrow_mut().insert(vtable, found.clone());
        found
    }

    pub(super) fn is_tensor(&self, memory: &dyn Memory, at: Addr) -> bool {
        matches!(self.class_at(memory, at), Some((_, CppKind::Tensor)))
    }
}

/// Tensor classes are named after `TensorImpl`, except wrappers of functorch and functionalization.
fn kind(name: &str) -> CppKind {
    match name {
        "UndefinedTensorImpl" => CppKind::Undefined,
        "TensorWrapper" | "FunctionalTensorWrapper" => CppKind::Tensor,
        _ if name.ends_with("TensorImpl") => CppKind::Tensor,
        _ if name.ends_with("SavedVariableHooks") => CppKind::Hooks,
        _ => CppKind::Other,
    }
}
