//! The highest moment between two maps: which blocks were alive then.
//!
//! Maps are read some milliseconds apart, and a job is at its peak for less: its forward pass fills
//! what its backward pass frees again. The changes between the maps tell how many bytes were alive
//! after each of them, and the replay which blocks those were most likely. What it does not know is
//! not made up: bytes that no block accounts for are `[not seen]`.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, BlockGroup};
use crate::model::Pool;

/// If more than this part of the bytes alive is not known, the map nearest below the peak tells
/// more. A peak that is known in part tells more than a map far below it: of a detector with images
/// of other sizes at every step, most of that map was older than the recording.
const MOST_UNKNOWN: u64 = 4;

/// What says that a block which a replay has alive may have been freed, the most telling first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FreeSign {
    /// It was allocated, and the tables of the allocator that were read afterwards had no address
    /// that can be its own.
    NoAddress,
    /// The next map does not have it.
    Gone,
    /// Nothing.
    None,
}

/// A block that a replay has alive.
#[derive(Debug, Clone)]
pub(crate) struct AliveBlock {
    pub(crate) kind: BlockGroup,
    pub(crate) attribution: Arc<BlockAttribution>,
    /// Where the map before has it; `None` for one that was allocated since.
    pub(crate) address: Option<u64>,
    pub(super) sign: FreeSign,
}

/// A moment between two maps.
#[derive(Debug)]
pub(crate) struct HighestMoment {
    /// When, in nanoseconds since the recording began.
    pub(crate) time: u64,
    /// Bytes alive in the small and in the large pool, by the counters.
    pub(super) live: [i64; 2],
    /// From the oldest to the youngest.
    pub(crate) blocks: Vec<AliveBlock>,
    /// Bytes of which is guessed at best whose they are.
    pub(crate) unknown: u64,
}

impl HighestMoment {
    /// Bytes alive by the counters.
    pub(crate) fn allocated(&self) -> u64 {
        self.live.iter().sum::<i64>().max(0) as u64
    }

    /// Leaves those blocks proven of whose size none was freed until then.
    pub(super) fn keep_proven(&mut self, none_freed: impl Fn(u64) -> bool) {
        let mut known: FxHashMap<u64, bool> = FxHashMap::default();
        for block in self.blocks.iter_mut().filter(|block| block.attribution.certain) {
            let size = block.kind.size;
            if !*known.entry(size).or_insert_with(|| none_freed(size)) {
                block.attribution = block.attribution.uncertain();
            }
        }
    }

    /// Makes the blocks add up to what the counters say, and tells how many bytes are not known;
    /// `None` if these are too many.
    pub(super) fn add_up(mut self) -> Option<HighestMoment> {
        let mut unknown = 0;
        for (pool, live) in [(Pool::Small, self.live[0]), (Pool::Large, self.live[1])] {
            let (mut kept, mut of_pool): (Vec<_>, Vec<_>) =
                self.blocks.into_iter().partition(|block| block.kind.pool != pool);
            let sum: i64 = of_pool.iter().map(|block| block.kind.size as i64).sum();
            let over = leave_out(&mut of_pool, sum - live, &mut unknown)?;
            kept.append(&mut of_pool);
            self.blocks = kept;
            if over < 0 {
                let size = over.unsigned_abs();
                unknown += size;
                let attribution = Arc::new(BlockAttribution {
                    shares: vec![(AllocationOrigin::NotSeen, 1)],
                    span: Some(0),
                    allocated_at: self.time,
                    certain: false,
                    contested: false,
                    doubted: false,
                });
                let kind = BlockGroup { size, requested: size, pool };
                let (address, sign) = (None, FreeSign::None);
                self.blocks.push(AliveBlock { kind, attribution, address, sign });
            }
        }
        (unknown <= self.allocated() / MOST_UNKNOWN).then_some(HighestMoment { unknown, ..self })
    }
}

/// Leaves `over` bytes out: frees that the replay could not place. Gives how many are left over,
/// which are less than 0 where a block was left out that is larger; `None` where nothing can be
/// left out. Bytes for which nothing speaks are added to `unknown`.
fn leave_out(blocks: &mut Vec<AliveBlock>, mut over: i64, unknown: &mut u64) -> Option<i64> {
    // The oldest first, but where nothing speaks for any of them: the youngest live shortest.
    for sign in [FreeSign::NoAddress, FreeSign::Gone] {
        blocks.retain(|block| {
            let size = block.kind.size as i64;
            let goes = over > 0 && size <= over && block.sign == sign;
            over -= if goes { size } else { 0 };
            !goes
        });
    }
    let can_go = |block: &AliveBlock| !block.attribution.certain;
    let mut at = blocks.len();
    while over > 0 && at > 0 {
        at -= 1;
        if can_go(&blocks[at]) && blocks[at].kind.size as i64 <= over {
            let block = blocks.remove(at);
            over -= block.kind.size as i64;
            *unknown += block.kind.size;
        }
    }
    if over > 0 {
        let candidates = blocks.iter().enumerate().filter(|(_, block)| can_go(block));
        let (at, _) = candidates.min_by_key(|(_, block)| (block.sign, block.kind.size))?;
        over -= blocks.remove(at).kind.size as i64;
    }
    Some(over)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::{StackId, ThreadId};

    /// A moment of blocks that these stacks made, of so many bytes each; stack 0 is the time before
    /// the recording.
    pub(crate) fn moment_of(time: u64, blocks: &[(u32, u64)], unknown: u64) -> HighestMoment {
        let made = |&(stack, size): &(u32, u64)| {
            let attribution = match stack {
                0 => BlockAttribution::before(),
                _ => made_by(stack, false),
            };
            AliveBlock { attribution, ..block(size, false) }
        };
        let live = blocks.iter().map(|(_, size)| *size as i64).sum();
        let blocks = blocks.iter().map(made).collect();
        HighestMoment { time, unknown, ..moment(live, blocks) }
    }

    fn made_by(stack: u32, certain: bool) -> Arc<BlockAttribution> {
        let shares = vec![(AllocationOrigin::Stack(ThreadId(0), StackId(stack)), 1)];
        Arc::new(BlockAttribution {
            shares,
            span: Some(1),
            allocated_at: 1,
            certain,
            contested: false,
            doubted: false,
        })
    }

    fn block(size: u64, certain: bool) -> AliveBlock {
        let attribution = made_by(1, certain);
        let kind = BlockGroup { size, requested: size, pool: Pool::Large };
        AliveBlock { kind, attribution, address: None, sign: FreeSign::None }
    }

    fn moment(live: i64, blocks: Vec<AliveBlock>) -> HighestMoment {
        HighestMoment { time: 7, live: [0, live], blocks, unknown: 0 }
    }

    fn sizes(moment: &HighestMoment) -> Vec<u64> {
        moment.blocks.iter().map(|block| block.kind.size).collect()
    }

    #[test]
    fn bytes_without_a_block_are_not_seen() {
        let moment = moment(21 << 20, vec![block(20 << 20, false)]).add_up().unwrap();
        assert_eq!(sizes(&moment), [20 << 20, 1 << 20]);
        assert!(moment.blocks[1].attribution.is_not_seen());
    }

    #[test]
    fn of_too_many_blocks_the_youngest_go_and_certain_ones_stay() {
        let blocks = [(60, false), (1, false), (2, false), (1, true)];
        let blocks = blocks.map(|(size, certain)| block(size << 20, certain));
        let high = moment(62 << 20, blocks.to_vec()).add_up().unwrap();
        assert_eq!(sizes(&high), [60 << 20, 1 << 20, 1 << 20]);
        let certain = moment(12 << 20, vec![block(20 << 20, true)]);
        assert!(certain.add_up().is_none(), "none can be left out");
        let half = moment(40 << 20, vec![block(20 << 20, false)]);
        assert!(half.add_up().is_none(), "half of it is known to nobody");
    }

    /// What was freed within the reading of the addresses never had one.
    #[test]
    fn blocks_without_an_address_go_first_and_then_those_that_the_next_map_does_not_have() {
        let mut blocks = [40, 5, 6, 90].map(|size| block(size << 20, false));
        (blocks[1].sign, blocks[2].sign) = (FreeSign::Gone, FreeSign::NoAddress);
        let add_up = |live: i64| sizes(&moment(live << 20, blocks.to_vec()).add_up().unwrap());
        assert_eq!(add_up(135), [40 << 20, 5 << 20, 90 << 20]);
        assert_eq!(add_up(130), [40 << 20, 90 << 20]);
        // A part of the block remains, and whose it is is not known.
        assert_eq!(add_up(137), [40 << 20, 5 << 20, 90 << 20, 2 << 20]);
    }
}
