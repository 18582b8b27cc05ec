//! Outputs of a node's operation, from `Node::input_metadata_`.

use crate::target::{Addr, Field, Memory};

/// `c10::SmallVector` (c10/util/SmallVector.h): elements, count, capacity.
const ELEMENTS: Field<Addr> = Field::at(0);
const COUNT: Field<u32> = Field::at(8);
const ROOM: Field<u32> = Field::at(12);
const SMALL_VECTOR: usize = 16;
/// torch/csrc/autograd/input_metadata.h, PyTorch 2.1 to 2.15.
const METADATA: usize = 96;
/// In `TensorOptions`: which options are set.
const HAS: Field<u8> = Field::at(6);
const HAS_DTYPE: u8 = 1 << 3;
/// A `std::variant` of sizes and, for a nested tensor, a tensor.
const SHAPE: usize = 8;
const WHICH: Field<u8> = Field::at(64);
const SIZES: u8 = 0;
const MAX_OUTPUTS: u32 = 1 << 16;
const MAX_DIMENSIONS: u32 = 64;

/// `None` for a symbolic or nested shape. Omits outputs outside the graph.
pub(super) fn elements(memory: &dyn Memory, vector: &[u8]) -> Option<Vec<Option<u64>>> {
    let (at, count) = head(vector, MAX_OUTPUTS)?;
    let bytes = memory.vec(at, METADATA * count).ok()?;
    let in_graph =
        bytes.chunks_exact(METADATA).filter(|one| HAS.get(one).unwrap_or(0) & HAS_DTYPE != 0);
    Some(in_graph.map(|one| product(memory, one)).collect())
}

fn head(vector: &[u8], most: u32) -> Option<(Addr, usize)> {
    let (elements, count) = (ELEMENTS.get(vector)?, COUNT.get(vector)?);
    let sound = count <= ROOM.get(vector)? && count <= most && elements.is_plausible();
    sound.then_some((elements, count as usize))
}

fn product(memory: &dyn Memory, metadata: &[u8]) -> Option<u64> {
    if WHICH.get(metadata)? != SIZES {
        return None;
    }
    let (sizes, count) = head(metadata.get(SHAPE..SHAPE + SMALL_VECTOR)?, MAX_DIMENSIONS)?;
    let words = memory.vec(sizes, 8 * count).ok()?;
    // A symbolic size is negative.
    words.chunks_exact(8).try_fold(1u64, |product, word| {
        product.checked_mul(u64::try_from(Field::<i64>::at(0).get(word)?).ok()?)
    })
}
