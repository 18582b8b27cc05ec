//! GPU memory that only C++ keeps, read from PyTorch's own structures: autocast's cache, the work
//! spaces of cuBLAS, the buckets of DDP.
//!
//! An exported function leads to each static variable. The variable counts only if what is in it
//! has the expected shape.

use std::collections::BTreeSet;

use super::tensor::TensorDecoder;
use crate::model::{CppKeeper, CppMemory, TensorDevice};
use crate::target::{Addr, Field, LoadedObject, Mappings, Memory};
use crate::torch::code_statics::{calls, loads, references};
use crate::torch::containers::{FlatTable, TreeHeader};

/// `at::autocast::clear_cache()` (aten/src/ATen/autocast_mode.cpp).
const CLEAR_CACHE: &str = "_ZN2at8autocast11clear_cacheEv";
/// `at::cuda::cublas_handle_stream_to_workspace()`, and that of cuBLASLt
/// (aten/src/ATen/cuda/CublasHandlePool.cpp).
const WORKSPACES: [&str; 2] = [
    "_ZN2at4cuda33cublas_handle_stream_to_workspaceEv",
    "_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv",
];
const CODE: usize = 0x60;
/// Those of `clear_cache` that may return the cache.
const MAX_CALLS: usize = 4;
/// Distance, key, tensor, weak reference to the key (`std::tuple` stores its last element first).
const CAST_ENTRY: usize = 0x20;
const MAX_CASTS: u64 = 1 << 18;
const MAX_WORKSPACES: u64 = 1 << 12;
/// `std::map<std::tuple<handle, stream>, DataPtr>`: its nodes.
const WORKSPACE_NODE: usize = 0x50;
/// Of a C++ object whose members are searched.
const MAX_OBJECT: usize = 0x1000;
const DEFAULT_OBJECT: usize = 0x400;
const MAX_VECTOR: u64 = 1 << 20;
const CUDA: u8 = 1;

/// Where PyTorch's static variables are.
#[derive(Debug, Default)]
pub(super) struct CppStatics {
    /// Perhaps autocast's cache.
    casts: Vec<Addr>,
    /// Pointers to maps of work spaces.
    workspaces: Vec<Addr>,
}

impl CppStatics {
    /// Empty where the libraries have no such functions.
    pub(super) fn find(memory: &dyn Memory, mappings: &Mappings) -> CppStatics {
        let library = |stem: &'static str| {
            let is_it = move |name: &str| name.starts_with(stem) && name.contains(".so");
            LoadedObject::find(memory, mappings, is_it)?.ok()
        };
        let code_of = |object: &LoadedObject, name: &str| {
            let at = object.exported(memory, name).ok()??;
            Some((at, memory.vec(at, CODE).ok()?))
        };
        let mut found = CppStatics::default();
        if let Some(object) = library("libtorch_cpu")
            && let Some((at, code)) = code_of(&object, CLEAR_CACHE)
        {
            found.casts.extend(references(at, &code));
            for callee in calls(at, &code).into_iter().take(MAX_CALLS) {
                if object.contains(callee)
                    && let Ok(code) = memory.vec(callee, CODE)
                {
                    found.casts.extend(references(callee, &code));
                }
            }
            found.casts.retain(|at| object.contains(*at));
        }
        if let Some(object) = library("libtorch_cuda") {
            for name in WORKSPACES {
                let variable = code_of(&object, name)
                    .and_then(|(at, code)| loads(at, &code).into_iter().next());
                found.workspaces.extend(variable.filter(|at| object.contains(*at)));
            }
        }
        found
    }
}

impl TensorDecoder<'_> {
    pub(super) fn of_statics(&self, statics: &CppStatics) -> Vec<CppMemory> {
        let casts = statics.casts.iter().find_map(|at| self.casts(*at)).unwrap_or_default();
        let workspaces = statics.workspaces.iter().filter_map(|at| self.workspaces(*at));
        casts.into_iter().chain(workspaces.flatten()).collect()
    }

    /// `None` if it is another variable.
    fn casts(&self, at: Addr) -> Option<Vec<CppMemory>> {
        let table = FlatTable::decode(&self.memory.vec(at, FlatTable::SIZE).ok()?)?;
        if table.slots > MAX_CASTS {
            return None;
        }
        let entries = match table.count {
            0 => Vec::new(),
            _ => self.memory.vec(table.entries, CAST_ENTRY * table.slots as usize).ok()?,
        };
        let used = entries.chunks_exact(CAST_ENTRY).filter(|entry| FlatTable::is_used(entry[0]));
        let mut found = Vec::new();
        for entry in used {
            let [of, copy] = [8, 16].map(|at| Field::<Addr>::at(at).get(entry));
            let (of, tensor) = (of?, self.tensor(copy?)?);
            if let (Some(device), Some(storage)) = (tensor.device, tensor.storage)
                && device.is_cuda()
            {
                let (keeper, data) = (CppKeeper::AutocastCache, storage.data);
                found.push(CppMemory { keeper, device, data, of: of.0 });
            }
        }
        Some(found)
    }

    fn workspaces(&self, variable: Addr) -> Option<Vec<CppMemory>> {
        let map = self.memory.pointer(variable).ok().filter(|at| at.is_plausible())?;
        let at = map + TreeHeader::IN_SET as u64;
        let header = TreeHeader::decode(&self.memory.vec(at, TreeHeader::SIZE).ok()?, at)?;
        if header.count > MAX_WORKSPACES {
            return None;
        }
        let mut waiting = vec![header.root];
        let mut found = Vec::new();
        while let Some(at) = waiting.pop().filter(|_| (found.len() as u64) < header.count) {
            if !at.is_plausible() {
                continue;
            }
            let node = self.memory.vec(at, WORKSPACE_NODE).ok()?;
            let word = |at: usize| Field::<u64>::at(at).get(&node).unwrap_or(0);
            waiting.extend([Addr(word(0x10)), Addr(word(0x18))]);
            let (kind, index) = (node[0x48], node[0x49]);
            if kind == CUDA && word(0x30) != 0 {
                let device = TensorDevice { kind, index: Some(index) };
                let (keeper, data, of) = (CppKeeper::Cublas, word(0x30), word(0x20));
                found.push(CppMemory { keeper, device, data, of });
            }
        }
        Some(found)
    }

    /// The GPU tensors in the vectors of a pybind11 object's C++ part.
    pub fn tensors_in_bound_object(&self, object: Addr, keeper: CppKeeper) -> Vec<CppMemory> {
        let Ok(at) = self.memory.pointer(object + self.head.len as u64) else { return Vec::new() };
        if !at.is_plausible() {
            return Vec::new();
        }
        let size = self.memory.u64(at - 8).map_or(0, |size| (size & !7) as usize);
        let len = if (0x80..=MAX_OBJECT).contains(&size) { size - 8 } else { DEFAULT_OBJECT };
        let members = words(&self.memory.vec_up_to(at, len));
        let mut found = BTreeSet::new();
        for vector in members.windows(3) {
            let &[begin, end, capacity] = vector else { continue };
            let is_vector = Addr(begin).is_plausible()
                && begin.is_multiple_of(8)
                && begin < end
                && end <= capacity
                && end - begin <= MAX_VECTOR;
            if !is_vector {
                continue;
            }
            let Ok(elements) = self.memory.vec(Addr(begin), (end - begin) as usize) else {
                continue;
            };
            let tensors = words(&elements).into_iter().map(Addr).filter(|at| self.is_tensor(*at));
            for tensor in tensors.filter_map(|at| self.tensor(at)) {
                if let (Some(device), Some(storage)) = (tensor.device, tensor.storage)
                    && device.is_cuda()
                    && storage.data != 0
                {
                    found.insert(CppMemory { keeper, device, data: storage.data, of: 0 });
                }
            }
        }
        found.into_iter().collect()
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes).collect()
}
