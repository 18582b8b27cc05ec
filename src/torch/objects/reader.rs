//! Attaches to tensors: Python types and layout.

use parking_lot::Mutex;

use crate::abi::ObjectHeader;
use crate::model::CppMemory;
use crate::target::{Addr, LoadedObject, Memory, Process};
use crate::torch::error::{AllocatorError, reading};
use crate::torch::version;

use super::classes::CppClasses;
use super::cpp_memory::CppStatics;
use super::layout::{FAMILIES, ObjectsLayout};
use super::tensor::{FoundLayout, LayoutFit, TensorDecoder};

/// `PyTypeObject.tp_base` (Include/cpython/object.h, 3.8 to 3.15).
const TYPE_BASE: usize = 256;
const VERIFIED_BY: usize = 64;

/// The Python types of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorTypes {
    /// `torch._C.TensorBase`.
    pub base: Addr,
    /// `torch.nn.Parameter`.
    pub parameter: Addr,
}

/// Reads tensors and autograd nodes, even without CUDA.
pub struct TensorReader {
    version: Option<String>,
    variable_class: Addr,
    parameter_class: Addr,
    found: Mutex<Option<FoundLayout>>,
    statics: CppStatics,
}

impl TensorReader {
    /// `Ok(None)` if PyTorch is not loaded.
    pub fn attach(process: &Process) -> Result<Option<TensorReader>, AllocatorError> {
        let memory = process.memory();
        let mappings = process.mappings()?;
        let is_it = |name: &str| name.starts_with("libtorch_python") && name.contains(".so");
        let Some(library) = LoadedObject::find(&memory, &mappings, is_it).transpose()? else {
            return Ok(None);
        };
        let version = version::read(process, &library.path());
        let symbol = |symbol: &'static str| match library.exported(&memory, symbol)? {
            Some(at) => Ok(at),
            None => Err(AllocatorError::NoAllocatorVariable {
                library: library.path().display().to_string(),
                version: version.clone().unwrap_or_else(|| "unknown".to_owned()),
                symbol,
            }),
        };
        let (variable_class, parameter_class) =
            (symbol("THPVariableClass")?, symbol("ParameterClass")?);
        let (found, statics) = (Mutex::default(), CppStatics::find(&memory, &mappings));
        Ok(Some(TensorReader { version, variable_class, parameter_class, found, statics }))
    }

    /// PyTorch's version, if readable.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// `None` during PyTorch's import.
    pub fn types(
        &self,
        memory: &dyn Memory,
        head: ObjectHeader,
    ) -> Result<Option<TensorTypes>, AllocatorError> {
        let pointer = |at: Addr| memory.pointer(at).map_err(reading("a type of tensors", at));
        let (variable, parameter) = (pointer(self.variable_class)?, pointer(self.parameter_class)?);
        if variable == Addr(0) || parameter == Addr(0) {
            return Ok(None);
        }
        let base = pointer(variable + head.shift(TYPE_BASE) as u64)?;
        Ok(Some(TensorTypes { base, parameter }))
    }

    /// Decodes tensors of a stopped process. The Python tensors `objects` determine the layout.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::UnknownLayout`] if none fits.
    pub fn tensors<'a>(
        &self,
        memory: &'a dyn Memory,
        head: ObjectHeader,
        objects: &[Addr],
    ) -> Result<TensorDecoder<'a>, AllocatorError> {
        let mut found = self.found.lock();
        match (self.verified(memory, head, objects), *found) {
            (Ok(tensors), _) => {
                *found = Some(tensors.found_layout());
                Ok(tensors)
            }
            // Many of the samples changed while they were copied; an earlier copy fitted.
            (Err(_), Some(known)) => Ok(TensorDecoder::laid_out(memory, known)),
            (Err(error), None) => Err(error),
        }
    }

    /// GPU memory in PyTorch's static variables.
    pub fn cpp_memory(&self, tensors: &TensorDecoder<'_>) -> Vec<CppMemory> {
        tensors.of_statics(&self.statics)
    }

    /// [`Self::tensors`] with the layout verified earlier: objects of a running process may suggest
    /// a wrong one.
    pub fn tensors_as_before<'a>(
        &self,
        memory: &'a dyn Memory,
        head: ObjectHeader,
        objects: &[Addr],
    ) -> Result<TensorDecoder<'a>, AllocatorError> {
        match *self.found.lock() {
            Some(found) => Ok(TensorDecoder::laid_out(memory, found)),
            None => self.verified(memory, head, objects),
        }
    }

    fn verified<'a>(
        &self,
        memory: &'a dyn Memory,
        head: ObjectHeader,
        objects: &[Addr],
    ) -> Result<TensorDecoder<'a>, AllocatorError> {
        let minor = self.version.as_deref().and_then(minor_version);
        let mut families: Vec<&ObjectsLayout> = FAMILIES.iter().collect();
        // This version's family first: builds may differ from the wheels.
        families.sort_by_key(|family| minor.is_some_and(|minor| family.since > minor));
        // Evenly spaced: neighbours are alike.
        let step = objects.len().div_ceil(VERIFIED_BY).max(1);
        let samples: Vec<Addr> = objects.iter().copied().step_by(step).take(VERIFIED_BY).collect();
        let mut most: Option<(TensorDecoder<'a>, LayoutFit)> = None;
        for family in families {
            let tensors = TensorDecoder::new(memory, head, *family, CppClasses::default());
            let Some((tensors, verified)) = tensors.verified_by(&samples) else { continue };
            if verified.is_all() {
                return Ok(tensors);
            }
            if most.as_ref().is_none_or(|(_, before)| verified.fitting > before.fitting) {
                most = Some((tensors, verified));
            }
        }
        // Some may be damaged. A wrong layout fits none, or only those alike in both.
        if let Some((tensors, _)) = most.filter(|(_, verified)| verified.is_most()) {
            return Ok(tensors);
        }
        Err(AllocatorError::UnknownLayout {
            version: self.version.clone().unwrap_or_else(|| "unknown".to_owned()),
            what: "no known layout makes tensors of its tensors".to_owned(),
        })
    }
}

/// 11 for `2.11.0+cu130`.
fn minor_version(version: &str) -> Option<u32> {
    let mut numbers = version.split('.');
    (numbers.next()? == "2").then(|| numbers.next()?.parse().ok())?
}
