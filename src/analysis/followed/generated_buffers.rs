//! The lines by which code that `torch.compile` wrote makes its buffers, with their sizes: its text tells both.
//!
//! TorchInductor makes each buffer by a line of its own (`make_allocation` in torch/_inductor/codegen/wrapper.py):
//! `buf3 = empty_strided_cuda((2048, 512), (512, 1), torch.float32)`. Such a line is over within a microsecond, and these functions have
//! neither loops nor branches around them.

use rustc_hash::FxHashMap;
use std::sync::Arc;

use crate::model::{FunctionId, SourceText};

/// How such a function begins: a module whose text has one within it is none.
const BEGINS: &str = "def call(";
/// What makes a buffer, as far as the name of the function goes.
const MAKES_BUFFER: &str = "= empty_strided_cuda(";
/// Functions that are remembered.
const MAX_FUNCTIONS: usize = 1 << 14;

/// A line that makes a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BufferLine {
    pub(super) line: u32,
    /// The bytes that it asks for; `None` where they depend on a variable.
    pub(super) bytes: Option<u64>,
}

/// The lines of each function, read once; `None` for one that was not generated.
#[derive(Debug, Default)]
pub(super) struct GeneratedBuffers(FxHashMap<FunctionId, Option<Arc<[BufferLine]>>>);

impl GeneratedBuffers {
    /// The lines of a function that make buffers, in their order.
    pub(super) fn of(
        &mut self,
        function: FunctionId,
        sources: &FxHashMap<FunctionId, SourceText>,
    ) -> Option<Arc<[BufferLine]>> {
        if let Some(known) = self.0.get(&function) {
            return known.clone();
        }
        // The text comes with the function, or never.
        let lines = sources.get(&function).map(buffer_lines).filter(|lines| !lines.is_empty());
        let lines: Option<Arc<[BufferLine]>> = lines.map(Arc::from);
        if self.0.len() < MAX_FUNCTIONS {
            self.0.insert(function, lines.clone());
        }
        lines
    }
}

fn buffer_lines(source: &SourceText) -> Vec<BufferLine> {
    if !source.text.trim_start().starts_with(BEGINS) {
        return Vec::new();
    }
    let numbered = (source.first_line..).zip(source.text.lines());
    numbered
        .filter_map(|(line, text)| {
            let (name, arguments) = text.split_once(MAKES_BUFFER)?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let name = name.trim();
            let bytes = requested(arguments);
            // A buffer of no bytes is no block.
            (!name.is_empty() && name.chars().all(is_name) && bytes != Some(0))
                .then_some(BufferLine { line, bytes })
        })
        .collect()
}

/// The bytes of a tensor with these sizes, strides and this type, as text (`computeStorageNbytes` in c10/core or aten/src/ATen/EmptyTensor.cpp).
fn requested(arguments: &str) -> Option<u64> {
    let (sizes, rest) = tuple(arguments)?;
    let (strides, rest) = tuple(rest.trim_start_matches([',', ' ']))?;
    let dtype = rest.trim_start_matches([',', ' ']).strip_prefix("torch.")?;
    let end = dtype.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(dtype.len());
    if sizes.len() != strides.len() {
        return None;
    }
    if sizes.contains(&0) {
        return Some(0);
    }
    let last = sizes.iter().zip(&strides).try_fold(0u64, |sum, (size, stride)| {
        sum.checked_add(size.checked_sub(1)?.checked_mul(*stride)?)
    });
    last?.checked_add(1)?.checked_mul(item_size(&dtype[..end])?)
}

/// The numbers of a tuple, and what follows it.
fn tuple(text: &str) -> Option<(Vec<u64>, &str)> {
    let (inner, rest) = text.strip_prefix('(')?.split_once(')')?;
    let numbers = inner.split(',').map(str::trim).filter(|number| !number.is_empty());
    Some((numbers.map(|number| number.parse().ok()).collect::<Option<_>>()?, rest))
}

/// Bytes of an element (c10/core/ScalarType.h).
fn item_size(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "complex128" => 16,
        "float64" | "int64" | "uint64" | "complex64" => 8,
        "float32" | "int32" | "uint32" | "complex32" => 4,
        "float16" | "bfloat16" | "int16" | "uint16" => 2,
        "int8" | "uint8" | "bool" => 1,
        _ if dtype.starts_with("float8_") => 1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(u32, Option<u64>)> {
        let source = SourceText { function: FunctionId(0), first_line: 10, text: text.into() };
        buffer_lines(&source).iter().map(|line| (line.line, line.bytes)).collect()
    }

    #[test]
    fn each_line_that_makes_a_buffer_says_how_large_it_is() {
        let text = "def call(self, args):
    buf0 = empty_strided_cuda((128, 16, 512), (8192, 512, 1), torch.float32)
    extern_kernels.mm(buf0, primals_3, out=buf1)
    buf1 = reinterpret_tensor(buf0, (2048, 512), (512, 1), 0); del buf0  # reuse
    buf2 = empty_strided_cuda((18, ), (1, ), torch.int64)
    buf3 = empty_strided_cuda((), (), torch.bfloat16)
    buf4 = empty_strided_cuda((0, 8), (8, 1), torch.bool)
    buf5 = empty_strided_cuda((s0, 8), (8, 1), torch.bool)
    buf6 = empty_strided_cuda((4, 8), (16, 1), torch.float8_e4m3fn)
    return (empty_strided_cuda((1, ), (1, ), torch.bool), )";
        assert_eq!(
            lines(text),
            [(11, Some(4 << 20)), (14, Some(144)), (15, Some(2)), (17, None), (18, Some(56)),]
        );
    }

    #[test]
    fn a_module_with_such_a_function_in_its_text_is_none() {
        assert!(
            lines(
                "import torch\ndef call():\n    b = empty_strided_cuda((1, ), (1, ), torch.int8)"
            )
            .is_empty()
        );
    }

    #[test]
    fn numbers_that_no_tensor_can_have_are_no_sizes() {
        let most = u64::MAX;
        for arguments in [
            format!("(({most}, {most}), ({most}, 1), torch.float32)"),
            "((2, ), (1, 1), torch.float32)".into(),
            "((2, ), (1, ), torch.quint8)".into(),
            "((-1, ), (1, ), torch.bool)".into(),
            "((2, ".into(),
        ] {
            let text = format!("def call(args):\n    b = empty_strided_cuda{arguments}");
            assert_eq!(lines(&text), [(11, None)]);
        }
    }
}
