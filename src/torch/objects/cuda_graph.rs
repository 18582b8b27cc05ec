//! The private pool of a CUDA graph or `torch.cuda.MemPool`.

use super::tensor::TensorDecoder;
use crate::model::PoolId;
use crate::target::{Addr, Field};

/// Word of `mempool_id_` (ATen/cuda/CUDAGraph.h): after two pointers, flags and the capture's id;
/// up to 2.1 one more number.
const OF_GRAPH: &[usize] = &[4, 5];
/// Word of `c10::cuda::MemPool::id_`: after a pointer and a flag.
const OF_MEM_POOL: &[usize] = &[2, 3];
const WORDS: usize = 7;

impl TensorDecoder<'_> {
    /// The pool of `pools` that a Python graph or `MemPool` uses: the C++ object, to which a
    /// pointer follows the head, contains its two numbers.
    pub fn pool_of(&self, object: Addr, is_graph: bool, pools: &[PoolId]) -> Option<PoolId> {
        let at = self.memory.pointer(object + self.head.len as u64).ok()?;
        let bytes = self.memory.vec(at, 8 * WORDS).ok()?;
        let word = |index: usize| Field::<u64>::at(8 * index).get(&bytes);
        let pool = |index: &usize| Some(PoolId(word(*index)?, word(index + 1)?));
        let words = if is_graph { OF_GRAPH } else { OF_MEM_POOL };
        words.iter().filter_map(pool).find(|pool| pools.contains(pool))
    }
}
