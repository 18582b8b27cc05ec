//! Encodes a block's first sample whole, later ones as changes.

use super::varint::{PayloadCursor, put, unzigzag, zigzag};
use super::{MalformedPayload, tag};
use crate::model::{StackId, ThreadActivity, ThreadId, ThreadSample};

/// Threads whose description may be lost in a damaged block.
const MAX_LOST_THREADS: usize = 1 << 16;

/// As known to writer and reader of a block, in the file's numbers.
#[derive(Debug, Default)]
pub(crate) struct SampleState {
    threads: Vec<ThreadSample>,
    any: bool,
}

impl SampleState {
    /// At a block's start.
    pub(crate) fn reset(&mut self) {
        self.threads.clear();
        self.any = false;
    }

    pub(crate) fn threads(&self) -> &[ThreadSample] {
        &self.threads
    }

    /// Returns the record's tag.
    pub(crate) fn encode(&mut self, threads: &[ThreadSample], out: &mut Vec<u8>) -> u8 {
        if self.any && self.threads == threads {
            return tag::SAMPLE_SAME;
        }
        let same_threads = self.any
            && self.threads.len() == threads.len()
            && self.threads.iter().zip(threads).all(|(a, b)| a.thread == b.thread);
        let written = if same_threads {
            self.encode_changes(threads, out);
            tag::SAMPLE_CHANGED
        } else {
            encode_all(threads, out);
            tag::SAMPLE
        };
        self.threads.clear();
        self.threads.extend_from_slice(threads);
        self.any = true;
        written
    }

    fn encode_changes(&self, threads: &[ThreadSample], out: &mut Vec<u8>) {
        let changed = || self.threads.iter().zip(threads).enumerate().filter(|(_, (a, b))| a != b);
        put(out, changed().count() as u64);
        let mut next = 0;
        for (index, (before, now)) in changed() {
            put(out, (index - next) as u64);
            let step = i64::from(now.stack.0) - i64::from(before.stack.0);
            put(out, zigzag(step));
            out.push(flags(now));
            next = index + 1;
        }
    }

    /// Fills [`Self::threads`]: each of the `known` threads at most once, and those whose
    /// description was lost.
    pub(crate) fn decode(
        &mut self,
        tag: u8,
        from: &mut PayloadCursor<'_>,
        known: usize,
    ) -> Result<(), MalformedPayload> {
        match tag {
            tag::SAMPLE => self.decode_all(from, known)?,
            _ if !self.any => {
                return Err(MalformedPayload(
                    "a sample refers to an earlier one, and there is none",
                ));
            }
            tag::SAMPLE_CHANGED => self.decode_changes(from)?,
            _ => {}
        }
        self.any = true;
        Ok(())
    }

    fn decode_all(
        &mut self,
        from: &mut PayloadCursor<'_>,
        known: usize,
    ) -> Result<(), MalformedPayload> {
        self.threads.clear();
        let mut thread = 0i64;
        for n in 0..from.number()? {
            if n >= (known + MAX_LOST_THREADS) as u64 {
                return Err(MalformedPayload("a sample has more threads than were described"));
            }
            thread = thread.wrapping_add(unzigzag(from.number()?));
            let number = u32::try_from(thread)
                .map_err(|_| MalformedPayload("a thread's number is out of range"))?;
            let mut entry = ThreadSample {
                thread: ThreadId(number),
                stack: StackId(from.number32()?),
                gil: false,
                activity: ThreadActivity::Unknown,
            };
            set_flags(&mut entry, from.byte()?)?;
            self.threads.push(entry);
        }
        Ok(())
    }

    fn decode_changes(&mut self, from: &mut PayloadCursor<'_>) -> Result<(), MalformedPayload> {
        let mut rest = self.threads.iter_mut();
        for _ in 0..from.number()? {
            let skip = usize::try_from(from.number()?).unwrap_or(usize::MAX);
            let entry = rest
                .nth(skip)
                .ok_or(MalformedPayload("a sample changes a thread that it does not have"))?;
            let stack = i64::from(entry.stack.0).wrapping_add(unzigzag(from.number()?));
            entry.stack = StackId(
                u32::try_from(stack)
                    .map_err(|_| MalformedPayload("a stack's number is out of range"))?,
            );
            set_flags(entry, from.byte()?)?;
        }
        Ok(())
    }
}

fn encode_all(threads: &[ThreadSample], out: &mut Vec<u8>) {
    put(out, threads.len() as u64);
    let mut before = 0;
    for entry in threads {
        let thread = i64::from(entry.thread.0);
        put(out, zigzag(thread - before));
        put(out, u64::from(entry.stack.0));
        out.push(flags(entry));
        before = thread;
    }
}

fn flags(entry: &ThreadSample) -> u8 {
    let activity = match entry.activity {
        ThreadActivity::Active => 0,
        ThreadActivity::Idle => 1,
        ThreadActivity::Unknown => 2,
    };
    u8::from(entry.gil) | activity << 1
}

fn set_flags(entry: &mut ThreadSample, flags: u8) -> Result<(), MalformedPayload> {
    entry.gil = flags & 1 != 0;
    entry.activity = match flags >> 1 {
        0 => ThreadActivity::Active,
        1 => ThreadActivity::Idle,
        2 => ThreadActivity::Unknown,
        _ => return Err(MalformedPayload("a thread's flags are unknown")),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn threads() -> impl Strategy<Value = Vec<ThreadSample>> {
        let entry = (0..4u32, any::<u32>(), any::<bool>(), 0..3u8).prop_map(
            |(thread, stack, gil, activity)| ThreadSample {
                thread: ThreadId(thread),
                stack: StackId(stack),
                gil,
                activity: [ThreadActivity::Active, ThreadActivity::Idle, ThreadActivity::Unknown]
                    [usize::from(activity)],
            },
        );
        proptest::collection::vec(entry, 0..4)
    }

    proptest! {
        #[test]
        fn every_sequence_of_samples_reads_back(samples in proptest::collection::vec(threads(), 0..20)) {
            let (mut write, mut read) = (SampleState::default(), SampleState::default());
            for sample in samples {
                let mut bytes = Vec::new();
                let tag = write.encode(&sample, &mut bytes);
                let mut cursor = PayloadCursor(&bytes);
                prop_assert_eq!(read.decode(tag, &mut cursor, 4), Ok(()));
                prop_assert_eq!(read.threads(), &sample[..]);
                prop_assert!(cursor.is_empty());
            }
        }
    }
}
