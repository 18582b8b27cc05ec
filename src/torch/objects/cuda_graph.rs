//! The private pool of a CUDA graph or `MemPool`.

use super::tensor::TensorDecoder;
use crate::model::PoolId;
use crate::target::{Addr, Field};

/// Word at which `mempool_id_` begins (ATen/cuda/CUDAGraph.h); one further up to 2.1.
const OF_GRAPH: &[usize] = &[4, 5];
/// Word at which `c10::cuda::MemPool::id_` begins.
const OF_MEM_POOL: &[usize] = &[2, 3];
const WORDS: usize = 7;

impl TensorDecoder<'_> {
    /// The pool of a Python graph or `MemPool`: a pointer after the head leads to the C++ object
    /// with the pool's two numbers.
    pub fn pool_of(&self, object: Addr, is_graph: bool, pools: &[PoolId]) -> Option<PoolId> {
        let at = self.memory.pointer(object + self.head.len as u64).ok()?;
        let bytes = self.memory.vec(at, 8 * WORDS).ok()?;
        let word = |index: usize| Field::<u64>::at(8 * index).get(&bytes);
        let pool = |index: &usize| Some(PoolId(word(*index)?, word(index + 1)?));
        let words = if is_graph { OF_GRAPH } else { OF_MEM_POOL };
        words.iter().filter_map(pool).find(|pool| pools.contains(pool))
    }
}
