//! Tensors, by the fields of `TensorImpl`.

use std::fmt;
use std::sync::Arc;

/// The class of JAX's arrays.
pub const JAX_ARRAY: &str = "jax.Array";

/// An element type: a stable index of `c10::ScalarType` (c10/core/ScalarType.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DType(pub u16);

/// Names and bytes.
const DTYPES: [(&str, u8); 47] = [
    ("uint8", 1),
    ("int8", 1),
    ("int16", 2),
    ("int32", 4),
    ("int64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("complex32", 4),
    ("complex64", 8),
    ("complex128", 16),
    ("bool", 1),
    ("qint8", 1),
    ("quint8", 1),
    ("qint32", 4),
    ("bfloat16", 2),
    ("quint4x2", 1),
    ("quint2x4", 1),
    ("bits1x8", 1),
    ("bits2x4", 1),
    ("bits4x2", 1),
    ("bits8", 1),
    ("bits16", 2),
    ("float8_e5m2", 1),
    ("float8_e4m3fn", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e4m3fnuz", 1),
    ("uint16", 2),
    ("uint32", 4),
    ("uint64", 8),
    ("uint1", 1),
    ("uint2", 1),
    ("uint3", 1),
    ("uint4", 1),
    ("uint5", 1),
    ("uint6", 1),
    ("uint7", 1),
    ("int1", 1),
    ("int2", 1),
    ("int3", 1),
    ("int4", 1),
    ("int5", 1),
    ("int6", 1),
    ("int7", 1),
    ("float8_e8m0fnu", 1),
    ("float4_e2m1fn_x2", 1),
    ("bcomplex32", 4),
];

impl DType {
    /// Of a type that PyTorch does not have.
    pub const UNKNOWN: DType = DType(u16::MAX);

    /// The one with this name in PyTorch, and in NumPy.
    pub fn named(name: &str) -> Option<DType> {
        let name = if name == "bool_" { "bool" } else { name };
        let at = DTYPES.iter().position(|(known, _)| *known == name)?;
        u16::try_from(at).ok().map(DType)
    }

    /// Bytes of an element, if known.
    pub fn bytes(self) -> Option<u64> {
        DTYPES.get(usize::from(self.0)).map(|(_, bytes)| u64::from(*bytes))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DTYPES.get(usize::from(self.0)) {
            Some((name, _)) => f.write_str(name),
            None if *self == DType::UNKNOWN => f.write_str("unknown type"),
            None => write!(f, "dtype {}", self.0),
        }
    }
}

/// A tensor's `c10::Device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorDevice {
    /// Stable index of a `c10::DeviceType` (torch/headeronly/core/DeviceType.h).
    pub kind: u8,
    /// `None`: the only one.
    pub index: Option<u8>,
}

const DEVICES: [&str; 21] = [
    "cpu",
    "cuda",
    "mkldnn",
    "opengl",
    "opencl",
    "ideep",
    "hip",
    "fpga",
    "maia",
    "xla",
    "vulkan",
    "metal",
    "xpu",
    "mps",
    "meta",
    "hpu",
    "ve",
    "lazy",
    "ipu",
    "mtia",
    "privateuseone",
];

impl TensorDevice {
    /// Number of the GPU; without an index it is the first.
    pub fn gpu(self) -> u32 {
        self.index.map_or(0, |index| index as u32)
    }

    /// Whether it is CUDA.
    pub fn is_cuda(self) -> bool {
        self.kind == 1
    }

    /// Whether it is the CPU.
    pub fn is_cpu(self) -> bool {
        self.kind == 0
    }

    /// Whether tensors there have no memory.
    pub fn is_meta(self) -> bool {
        self.kind == 14
    }
}

impl fmt::Display for TensorDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DEVICES.get(usize::from(self.kind)) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "device {}", self.kind)?,
        }
        match self.index {
            Some(index) => write!(f, ":{index}"),
            None => Ok(()),
        }
    }
}

/// A `c10::StorageImpl`, shared by tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Storage {
    /// Address, its identity.
    pub at: u64,
    /// Address of the bytes, or 0.
    pub data: u64,
    /// Bytes; `None`: symbolic.
    pub bytes: Option<u64>,
}

impl Storage {
    /// Bytes of memory: 0 if symbolic or without address (meta, fake, wrapped tensors).
    pub fn memory(&self) -> u64 {
        if self.data == 0 { 0 } else { self.bytes.unwrap_or(0) }
    }
}

/// A `c10::TensorImpl` with its `AutogradMeta`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Address, its identity.
    pub at: u64,
    /// C++ class: `TensorImpl`, `SparseTensorImpl`.
    pub class: Arc<str>,
    /// `None`: consists of other tensors (sparse).
    pub storage: Option<Storage>,
    /// `None`: symbolic, or nested.
    pub shape: Option<Vec<i64>>,
    /// In elements; `None`: symbolic, or nested.
    pub strides: Option<Vec<i64>>,
    /// Sizes within a nested tensor; `None`: not nested, or too many.
    pub nested: Option<Vec<Vec<i64>>>,
    /// Elements; `None`: symbolic, or unknown for nested.
    pub numel: Option<i64>,
    /// Element type.
    pub dtype: DType,
    /// Its device, if it has one.
    pub device: Option<TensorDevice>,
    /// Offset of its first element, in elements.
    pub offset: i64,
    /// `_version`: in-place changes; `None`: an inference tensor.
    pub version: Option<u32>,
    /// It requires a gradient.
    pub requires_grad: bool,
    /// Autograd node that returned it; `None`: a leaf.
    pub grad_fn: Option<u64>,
    /// Its gradient's `TensorImpl`.
    pub grad: Option<u64>,
    /// `TensorImpl`s of its parts: sparse indices and values, nested sizes, a wrapped tensor.
    pub parts: Vec<u64>,
    /// Paths to the parts (`._values`).
    pub part_names: &'static [&'static str],
}

impl TensorInfo {
    /// Bytes of its elements, packed, if known.
    pub fn logical_bytes(&self) -> Option<u64> {
        u64::try_from(self.numel?).ok()?.checked_mul(self.dtype.bytes()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_devices_have_torchs_names() {
        assert_eq!(DType(6).to_string(), "float32");
        assert_eq!((DType::named("bool_"), DType::named("x")), (Some(DType(11)), None));
        assert_eq!(
            (DType(10).bytes(), DType(24).bytes(), DType(99).bytes()),
            (Some(16), Some(1), None)
        );
        let cuda = TensorDevice { kind: 1, index: Some(3) };
        assert_eq!(cuda.to_string(), "cuda:3");
        assert_eq!(TensorDevice { kind: 0, index: None }.to_string(), "cpu");
        assert!(TensorDevice { kind: 14, index: None }.is_meta());
    }
}
