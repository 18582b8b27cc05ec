//! Format version 1, frozen ([`crate::trace`]).

pub(crate) mod blocks;
pub(crate) mod counters;
pub(crate) mod decode;
pub(crate) mod definitions;
pub(crate) mod edit_steps;
pub(crate) mod encode;
pub(crate) mod events;
pub(crate) mod exact;
pub(crate) mod follow_totals;
pub(crate) mod followed;
pub(crate) mod followed_addresses;
pub(crate) mod keyframe;
pub(crate) mod oom_exception;
pub(crate) mod owners;
pub(crate) mod records;
pub(crate) mod sample;
pub(crate) mod varint;

pub(crate) const VERSION: u16 = 1;

/// First byte of each record in a block.
pub(crate) mod tag {
    pub(crate) const HEAD: u8 = 0;
    pub(crate) const START: u8 = 1;
    pub(crate) const RUNTIME: u8 = 2;
    pub(crate) const FUNCTION: u8 = 3;
    pub(crate) const FRAME: u8 = 4;
    pub(crate) const STACK: u8 = 5;
    pub(crate) const THREAD: u8 = 6;
    pub(crate) const SOURCE: u8 = 7;
    pub(crate) const DEVICE: u8 = 8;
    pub(crate) const SAMPLE: u8 = 9;
    pub(crate) const SAMPLE_CHANGED: u8 = 10;
    pub(crate) const SAMPLE_SAME: u8 = 11;
    pub(crate) const COUNTERS: u8 = 12;
    pub(crate) const BLOCKS: u8 = 13;
    pub(crate) const USAGE: u8 = 14;
    pub(crate) const MISSED: u8 = 15;
    pub(crate) const END: u8 = 16;
    pub(crate) const SITE: u8 = 17;
    pub(crate) const EXACT: u8 = 18;
    pub(crate) const EVENTS: u8 = 19;
    pub(crate) const RECONCILED: u8 = 20;
    pub(crate) const OWNERS: u8 = 21;
    pub(crate) const STEP: u8 = 22;
    pub(crate) const KEYFRAME: u8 = 23;
    pub(crate) const TRIGGERED: u8 = 24;
    pub(crate) const THROWN: u8 = 25;
    pub(crate) const GAP: u8 = 26;
    pub(crate) const FOLLOWED: u8 = 27;
    pub(crate) const FOLLOWED_AT: u8 = 28;
}

/// With state in one block; bounds a reader's memory.
pub(crate) const MAX_DEVICES: usize = 1024;

/// Blocks of snapshots kept for a file of this many bytes: repeated blocks compress to almost
/// nothing, but each takes many bytes in memory.
pub(crate) fn max_blocks(file: u64) -> usize {
    usize::try_from(file).unwrap_or(usize::MAX).saturating_add(1 << 20)
}

pub(crate) const TOO_MANY_BLOCKS: MalformedPayload =
    MalformedPayload("it has more blocks of memory than a file of this size may have");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MalformedPayload(pub(crate) &'static str);

/// Relative to the previous one, a sample's to the expected one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BlockClock {
    last: u64,
    expected_sample: Option<u64>,
    period: u64,
}

impl BlockClock {
    /// In nanoseconds.
    pub(crate) fn new(last: u64, period: u64) -> Self {
        BlockClock { last, expected_sample: None, period }
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn encode(&mut self, time: u64) -> u64 {
        let coded = varint::zigzag(time.wrapping_sub(self.last) as i64);
        self.last = time;
        coded
    }

    pub(crate) fn decode(&mut self, coded: u64) -> u64 {
        self.last = self.last.wrapping_add(varint::unzigzag(coded) as u64);
        self.last
    }

    pub(crate) fn encode_sample(&mut self, time: u64) -> u64 {
        let expected = self.expected_sample.unwrap_or(self.last);
        self.sampled(time);
        varint::zigzag(time.wrapping_sub(expected) as i64)
    }

    pub(crate) fn decode_sample(&mut self, coded: u64) -> u64 {
        let expected = self.expected_sample.unwrap_or(self.last);
        let time = expected.wrapping_add(varint::unzigzag(coded) as u64);
        self.sampled(time);
        time
    }

    fn sampled(&mut self, time: u64) {
        self.last = time;
        self.expected_sample = Some(time.wrapping_add(self.period));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_reads_back_even_out_of_order() {
        let mut write = BlockClock::new(7, 5_000_000);
        let mut read = write;
        for (i, time) in [10, 5_000_010, 3, u64::MAX, 0, 1 << 63].into_iter().enumerate() {
            if i % 2 == 0 {
                assert_eq!(read.decode_sample(write.encode_sample(time)), time);
            } else {
                assert_eq!(read.decode(write.encode(time)), time);
            }
        }
    }
}
