//! CUDA graphs and `torch.cuda.MemPool`s: which private pool of the allocator each uses.

use super::tensor::TensorDecoder;
use crate::model::PoolId;
use crate::target::{Addr, Field};

/// The word of `at::cuda::CUDAGraph` (ATen/cuda/CUDAGraph.h) in which `mempool_id_` begins: after
/// two pointers, flags and the number of the capture; up to 2.1 after one number more.
const OF_GRAPH: &[usize] = &[4, 5];
/// That of `c10::cuda::MemPool` in which `id_` begins: after a pointer and a flag.
const OF_MEM_POOL: &[usize] = &[2, 3];
const WORDS: usize = 7;

impl TensorDecoder<'_> {
    /// The pool of `pools` that a graph, or a `MemPool`, of Python uses. pybind11 keeps a pointer
    /// to the C++ object behind the usual head of the Python object; the pool's two numbers are
    /// found there by being those of a pool that exists.
    pub fn pool_of(&self, object: Addr, is_graph: bool, pools: &[PoolId]) -> Option<PoolId> {
        let at = self.memory.pointer(object + self.head.len as u64).ok()?;
        let bytes = self.memory.vec(at, 8 * WORDS).ok()?;
        let word = |index: usize| Field::<u64>::at(8 * index).get(&bytes);
        let pool = |index: &usize| Some(PoolId(word(*index)?, word(index + 1)?));
        let words = if is_graph { OF_GRAPH } else { OF_MEM_POOL };
        words.iter().filter_map(pool).find(|pool| pools.contains(pool))
    }
}
