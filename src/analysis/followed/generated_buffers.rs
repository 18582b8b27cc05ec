//! The lines by which code that `torch.compile` wrote makes its buffers, with their sizes: its text tells both.
//!
//! TorchInductor makes each buffer by a line of its own (`make_allocation` in torch/_inductor/codegen/wrapper.py):
//! `buf3 = empty_strided_cuda((2048, 512), (512, 1), torch.float32)`. Such a line is over within a microsecond, and these functions have
//! neither loops nor branches around them. What an operator of PyTorch makes (`buf6 = torch.ops.aten.sort.default(buf5)`) is told by the lines below it
//! that check it (`codegen_size_asserts` in torch/_inductor/ir.py): `assert_size_stride(buf7, (16, 8), (8, 1))`, but for its type.

use rustc_hash::FxHashMap;
use std::sync::Arc;

use crate::model::{FunctionId, SourceText, StackTable};

/// How such a function begins: a module whose text has one within it is none.
const BEGINS: &str = "def call(";
/// What makes a buffer, as far as the name of the function goes.
const MAKES_BUFFER: &str = "= empty_strided_cuda(";
/// What calls an operator of PyTorch.
const CALLS_OPERATOR: &str = "= torch.ops.";
/// What checks one of its results.
const CHECKS_SIZE: &str = "assert_size_stride(";
/// So many results of one operator are told apart.
const MAX_RESULTS: usize = 4;
/// So many names are remembered of its results.
const MAX_NAMES: usize = 64;
/// Bytes of an element of any type that a result can have.
const ITEM_SIZES: [u64; 5] = [1, 2, 4, 8, 16];
/// Functions that are remembered.
const MAX_FUNCTIONS: usize = 1 << 14;

/// What the recording knows of the program's code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgramText<'a> {
    pub(crate) stacks: &'a StackTable,
    pub(crate) sources: &'a FxHashMap<FunctionId, SourceText>,
}

/// A line that makes a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BufferLine {
    pub(super) line: u32,
    pub(super) size: BufferSize,
}

/// How much it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BufferSize {
    Bytes(u64),
    /// So many elements, whose type the text does not tell: an operator makes them that the line calls.
    Elements(u64),
    /// It depends on a variable.
    Unknown,
}

impl BufferLine {
    /// Whether it is an operator called here that makes the buffer.
    pub(super) fn is_operator(&self) -> bool {
        matches!(self.size, BufferSize::Elements(_))
    }

    /// The bytes that it can ask for; none where nothing is known of them.
    pub(super) fn possible_bytes(&self) -> impl Iterator<Item = u64> + use<> {
        let (count, sizes) = match self.size {
            BufferSize::Bytes(bytes) => (bytes, &ITEM_SIZES[..1]),
            BufferSize::Elements(count) => (count, &ITEM_SIZES[..]),
            BufferSize::Unknown => (0, &ITEM_SIZES[..0]),
        };
        sizes.iter().map(move |size| count.saturating_mul(*size))
    }
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
    let mut found = Vec::new();
    let mut operator: Option<CalledOperator> = None;
    for (line, text) in (source.first_line..).zip(source.text.lines().map(str::trim)) {
        if let Some((_, arguments)) = assigned(text, MAKES_BUFFER) {
            let size = requested(arguments).map_or(BufferSize::Unknown, BufferSize::Bytes);
            found.push(BufferLine { line, size });
        } else if let Some((name, _)) = assigned(text, CALLS_OPERATOR) {
            operator = Some(CalledOperator { line, results: vec![name], checked: 0 });
        } else if let Some(operator) = &mut operator {
            found.extend(operator.result(text));
        }
    }
    // A buffer of no bytes is no block.
    found.retain(|line| line.size != BufferSize::Bytes(0));
    found.sort_by_key(|found| found.line);
    found
}

/// The name that a line assigns and what follows `how`, if it does it like that.
fn assigned<'t>(text: &'t str, how: &str) -> Option<(&'t str, &'t str)> {
    let (name, rest) = text.split_once(how)?;
    let name = name.trim_end();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then_some((name, rest))
}

/// The operator called last, and the names that its results have.
struct CalledOperator<'t> {
    line: u32,
    results: Vec<&'t str>,
    checked: usize,
}

impl<'t> CalledOperator<'t> {
    /// What a line below its call says of a result.
    fn result(&mut self, text: &'t str) -> Option<BufferLine> {
        if let Some((name, what)) = text.split_once(" = ") {
            let is_part = what.split_once('[').is_some_and(|(whole, _)| whole == self.results[0]);
            let is_more = is_part && self.results.len() < MAX_NAMES;
            self.results.extend(is_more.then_some(name));
            return None;
        }
        let (name, arguments) = text.strip_prefix(CHECKS_SIZE)?.split_once(", ")?;
        let elements = extent(arguments)?.0;
        // A single number (`()`) is on the host as a rule.
        let counts = elements > 1 && self.checked < MAX_RESULTS && self.results.contains(&name);
        self.checked += usize::from(counts);
        counts.then_some(BufferLine { line: self.line, size: BufferSize::Elements(elements) })
    }
}

/// The bytes of a tensor with these sizes, strides and this type, as text.
fn requested(arguments: &str) -> Option<u64> {
    let (elements, rest) = extent(arguments)?;
    let dtype = rest.trim_start_matches([',', ' ']).strip_prefix("torch.")?;
    let end = dtype.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(dtype.len());
    elements.checked_mul(item_size(&dtype[..end])?)
}

/// From the first element of a tensor with these sizes and strides to its last one, in elements (`computeStorageNbytes` in c10/core or
/// aten/src/ATen/EmptyTensor.cpp), and what follows them.
fn extent(arguments: &str) -> Option<(u64, &str)> {
    let (sizes, rest) = tuple(arguments)?;
    let (strides, rest) = tuple(rest.trim_start_matches([',', ' ']))?;
    if sizes.len() != strides.len() {
        return None;
    }
    if sizes.contains(&0) {
        return Some((0, rest));
    }
    let last = sizes.iter().zip(&strides).try_fold(0u64, |sum, (size, stride)| {
        sum.checked_add(size.checked_sub(1)?.checked_mul(*stride)?)
    });
    Some((last?.checked_add(1)?, rest))
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
    use super::BufferSize::{Bytes, Elements, Unknown};
    use super::*;

    fn lines(text: &str) -> Vec<(u32, BufferSize)> {
        let source = SourceText { function: FunctionId(0), first_line: 10, text: text.into() };
        buffer_lines(&source).iter().map(|line| (line.line, line.size)).collect()
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
            [
                (11, Bytes(4 << 20)),
                (14, Bytes(144)),
                (15, Bytes(2)),
                (17, Unknown),
                (18, Bytes(56))
            ]
        );
    }

    #[test]
    fn the_results_of_an_operator_are_what_is_checked_below_its_call() {
        let text = "def call(self, args):
    buf0 = empty_strided_cuda((2, 8), (8, 1), torch.float32)
    buf6 = torch.ops.aten.attention.default(buf0, None, True, 0.1)
    del view_1
    buf7 = buf6[0]
    assert_size_stride(buf7, (16, 8, 128, 64), (65536, 64, 512, 1), 'torch.ops.aten.attention.default')
    assert_alignment(buf7, 16, 'torch.ops.aten.attention.default')
    buf8 = buf6[1]
    assert_size_stride(buf8, (16, 8), (8, 1), 'torch.ops.aten.attention.default')
    buf9 = buf6[2]
    assert_size_stride(buf9, (), (), 'torch.ops.aten.attention.default')
    del buf6
    buf10 = torch.ops.aten.sort.default(buf7)
    assert_size_stride(buf7, (5, 8), (8, 1))
    assert_size_stride(buf10, (9, 8), (8, 1))";
        let first = (12, Elements(1 << 20));
        assert_eq!(
            lines(text),
            [(11, Bytes(64)), first, (12, Elements(128)), (22, Elements(72))],
            "what goes in is none of its results, and a single number is on the host"
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
            assert_eq!(lines(&text), [(11, Unknown)]);
        }
    }
}
