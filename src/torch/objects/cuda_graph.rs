//! The private pool of a CUDA graph or `MemPool`.

use super::tensor::TensorDecoder;
use crate::model::PoolId;
use crate::target::{Addr, Field};

/// Word of `mempool_id_` (ATen/cuda/CUDAGraph.h); one more up to 2.1.
const OF_GRAPH: &[usize] = &[4, 5];
/// Word of `c10::cuda::MemPool::id_`.
const OF_MEM_POOL: &[usize] = &[2, 3];
const WORDS: usize = 7;

impl TensorDecoder<'_> {
    /// A pointer after the Python head leads to the C++ object with the pool's two numbers.
    pub fn pool_of(&self, object: Addr, is_graph: bool, pools: &[PoolId]) -> Option<PoolId> {
        let at = self.memory.pointer(object + self.head.len as u64).ok()?;
        let bytes = self.memory.vec(at, 8 * WORDS).ok()?;
        let word = |index: usize| Field::<u64>::at(8 * index).get(&bytes);
        let pool = |index: &usize| Some(PoolId(word(*index)?, word(index + 1)?));
        let words = if is_graph { OF_GRAPH } else { OF_MEM_POOL };
        words.iter().filter_map(pool).find(|pool| pools.contains(pool))
    }
}
