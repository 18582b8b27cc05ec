//! The allocator in use.

use crate::model::AllocatorBackend;
use crate::target::{Addr, LoadedObject, Mappings, Memory, MemoryError, ObjectError, Process};

/// A `std::atomic<CUDAAllocator*>` (c10/cuda/CUDACachingAllocator.h, torch 2.1 to 2.15).
pub(super) const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
const MAX_NAME_LEN: usize = 512;

pub(super) fn variable(
    process: &Process,
    memory: &dyn Memory,
    mappings: &Mappings,
    library: &LoadedObject,
) -> Result<Option<Addr>, ObjectError> {
    // A program may own the variable (COPY relocation); the library then uses that.
    let program = process.program().ok().and_then(|path| mappings.object_at(&path).cloned());
    if let Some(program) = program
        && let Ok(program) = LoadedObject::read(memory, &program)
        && let Ok(Some(copy)) = program.exported(memory, ALLOCATOR)
    {
        return Ok(Some(copy));
    }
    library.exported(memory, ALLOCATOR)
}

/// Before the vtable is a pointer to `std::type_info`, whose second word is the name (Itanium C++
/// ABI).
pub(super) fn type_name(memory: &dyn Memory, object: Addr) -> Result<String, MemoryError> {
    let vtable = memory.pointer(object)?;
    let type_info = memory.pointer(vtable - 8)?;
    let name = memory.pointer(type_info + 8)?;
    memory.c_string(name, MAX_NAME_LEN)
}

pub(super) fn of_type(mangled: &str) -> AllocatorBackend {
    let name = demangle(mangled).unwrap_or_else(|| mangled.to_owned());
    if name.ends_with("::NativeCachingAllocator") {
        AllocatorBackend::Native
    } else if name.ends_with("::CudaMallocAsyncAllocator") {
        AllocatorBackend::CudaMallocAsync
    } else if name.contains("Pluggable") {
        AllocatorBackend::Pluggable(name)
    } else {
        AllocatorBackend::Unknown(name)
    }
}

/// `N3c104cuda3FooE` → `c10::cuda::Foo`.
fn demangle(mangled: &str) -> Option<String> {
    let nested = mangled.strip_prefix('N').and_then(|m| m.strip_suffix('E'));
    let mut rest = nested.unwrap_or(mangled);
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (length, tail) = rest.split_at(digits);
        let part = tail.get(..length.parse().ok()?)?;
        parts.push(if part.starts_with("_GLOBAL__N_") { "(anonymous)" } else { part });
        rest = &tail[part.len()..];
    }
    (!parts.is_empty()).then(|| parts.join("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_type_determines_the_backend() {
        let native = "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";
        assert_eq!(of_type(native), AllocatorBackend::Native);
        let asynchronous =
            "N3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE";
        assert_eq!(of_type(asynchronous), AllocatorBackend::CudaMallocAsync);
        assert_eq!(
            of_type("N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE"),
            AllocatorBackend::Pluggable(
                "torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator".to_owned()
            )
        );
        assert_eq!(of_type("7MyThing"), AllocatorBackend::Unknown("MyThing".to_owned()));
        assert_eq!(of_type("N3c1"), AllocatorBackend::Unknown("N3c1".to_owned()));
        assert_eq!(of_type("N99E"), AllocatorBackend::Unknown("N99E".to_owned()));
    }
}
