//! Captured memory, for tests.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use parking_lot::Mutex;

use super::memory::{Addr, AddressRange, Memory, MemoryError};

const MAGIC: &[u8; 8] = b"MEMIMG\x01\n";
/// Longer ranges in a file are damage.
const MAX_RANGE_LEN: u64 = 1 << 30;

/// Ranges by address, which never overlap or touch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct MemoryImage {
    ranges: BTreeMap<u64, Vec<u8>>,
}

impl MemoryImage {
    /// Adds `bytes` at `addr`; replaces older ones.
    pub fn insert(&mut self, addr: Addr, bytes: &[u8]) {
        let (mut start, mut merged) = (addr.0, bytes.to_vec());
        let end = start + bytes.len() as u64;
        let touching: Vec<u64> = self
            .ranges
            .range(..=end)
            .rev()
            .take_while(|(at, old)| **at + old.len() as u64 >= addr.0)
            .map(|(at, _)| *at)
            .collect();
        for at in touching {
            let Some(old) = self.ranges.remove(&at) else { continue };
            let old_end = at + old.len() as u64;
            let merged_end = start + merged.len() as u64;
            if old_end > merged_end {
                merged.extend_from_slice(&old[(merged_end - at) as usize..]);
            }
            if at < start {
                let mut head = old[..(start - at) as usize].to_vec();
                head.append(&mut merged);
                (start, merged) = (at, head);
            }
        }
        self.ranges.insert(start, merged);
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.ranges.values().map(Vec::len).sum()
    }

    /// Has no bytes.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Writes the magic, then address (`u64`), length (`u64`) and bytes per range.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        for (addr, bytes) in &self.ranges {
            out.write_all(&addr.to_le_bytes())?;
            out.write_all(&(bytes.len() as u64).to_le_bytes())?;
            out.write_all(bytes)?;
        }
        Ok(())
    }

    /// Reads what [`Self::write_to`] wrote, else `InvalidData`.
    pub fn read_from(input: &mut dyn Read) -> io::Result<Self> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a memory image"));
        }
        let mut image = MemoryImage::default();
        let mut rest = Vec::new();
        input.read_to_end(&mut rest)?;
        let mut at = &rest[..];
        while let Some((head, tail)) = at.split_first_chunk::<16>() {
            let (addr, len) = head.split_at(8);
            let number = |b: &[u8]| b.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
            let (addr, len) = (number(addr), number(len));
            if len > MAX_RANGE_LEN || len as usize > tail.len() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "memory image is cut short",
                ));
            }
            let (bytes, next) = tail.split_at(len as usize);
            image.insert(Addr(addr), bytes);
            at = next;
        }
        Ok(image)
    }
}

impl Memory for MemoryImage {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        let mut done = 0;
        for (index, span) in spans.iter().enumerate() {
            let found = self.ranges.range(..=span.addr.0).next_back().and_then(|(at, bytes)| {
                let from = (span.addr.0 - at) as usize;
                bytes.get(from..from.checked_add(span.len)?)
            });
            let Some(bytes) = found else {
                return Err(MemoryError::Fault { span: *span, index });
            };
            out[done..done + span.len].copy_from_slice(bytes);
            done += span.len;
        }
        Ok(())
    }
}

/// Captures all reads.
pub struct RecordingMemory<M> {
    inner: M,
    seen: Mutex<MemoryImage>,
}

impl<M: Memory> RecordingMemory<M> {
    /// Captures reads from `inner`.
    pub fn new(inner: M) -> Self {
        RecordingMemory { inner, seen: Mutex::default() }
    }

    /// The reads so far.
    pub fn image(&self) -> MemoryImage {
        self.seen.lock().clone()
    }
}

impl<M: Memory> Memory for RecordingMemory<M> {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        self.inner.read_spans(spans, out)?;
        let mut image = self.seen.lock();
        let mut done = 0;
        for span in spans {
            image.insert(span.addr, &out[done..done + span.len]);
            done += span.len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_and_touching_ranges_merge() {
        let mut image = MemoryImage::default();
        image.insert(Addr(100), b"aaaa");
        image.insert(Addr(108), b"cccc");
        image.insert(Addr(102), b"bbbbbb");
        assert_eq!(image.ranges.len(), 1);
        let mut out = [0; 12];
        image.read(Addr(100), &mut out).unwrap();
        assert_eq!(&out, b"aabbbbbbcccc");
        image.insert(Addr(104), b"x");
        image.read(Addr(100), &mut out).unwrap();
        assert_eq!(&out, b"aabbxbbbcccc");
        assert!(image.read(Addr(99), &mut [0; 2]).is_err());
        assert!(image.read(Addr(111), &mut [0; 2]).is_err());
    }

    #[test]
    fn an_image_reads_back_and_a_truncated_one_is_refused() {
        let mut image = MemoryImage::default();
        image.insert(Addr(0x7000), &[1; 50]);
        image.insert(Addr(0x9000), &[2; 5]);
        let mut file = Vec::new();
        image.write_to(&mut file).unwrap();
        assert_eq!(MemoryImage::read_from(&mut &file[..]).unwrap(), image);
        assert!(MemoryImage::read_from(&mut &file[..file.len() - 1]).is_err());
    }

    #[test]
    fn a_recording_replays_what_was_read() {
        let mut image = MemoryImage::default();
        image.insert(Addr(0x7000), &[1; 50]);
        let recording = RecordingMemory::new(image);
        recording.read(Addr(0x7008), &mut [0; 8]).unwrap();
        assert_eq!(recording.image().len(), 8);
    }
}
