//! A block: length, checksum, compressed payload.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::get_frame_content_size;

/// A transfer that changes line ends damages these bytes.
pub(crate) const MAGIC: [u8; 8] = *b"MEMSPY\r\n";
pub(crate) const FILE_HEAD: usize = 10;
pub(crate) const BLOCK_HEAD: usize = 8;
/// Bounds a reader's memory.
pub(crate) const MAX_PAYLOAD: usize = 64 << 20;
pub(crate) const MAX_BODY: usize = MAX_PAYLOAD + (1 << 20);
/// An empty zstd frame.
const MIN_BODY: usize = 9;
/// Every zstd frame begins with it (RFC 8878, 3.1.1). After damage a reader searches for it.
pub(crate) const SYNC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockError(pub(crate) &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) length: usize,
    crc: u32,
}

impl BlockHeader {
    /// `None` for values that no block states.
    pub(crate) fn read(head: [u8; BLOCK_HEAD]) -> Option<BlockHeader> {
        let [a, b, c, d, e, f, g, h] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        (MIN_BODY..=MAX_BODY)
            .contains(&length)
            .then_some(BlockHeader { length, crc: u32::from_le_bytes([e, f, g, h]) })
    }

    /// Whether length and checksum match.
    pub(crate) fn holds(&self, body: &[u8]) -> bool {
        body.len() == self.length && body.starts_with(&SYNC) && crc32c::crc32c(body) == self.crc
    }
}

pub(crate) struct BlockWriter {
    compressor: Compressor<'static>,
    body: Vec<u8>,
}

impl BlockWriter {
    pub(crate) fn new(level: i32) -> std::io::Result<Self> {
        Ok(BlockWriter { compressor: Compressor::new(level)?, body: Vec::new() })
    }

    pub(crate) fn write(&mut self, payload: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
        self.body.clear();
        self.body.reserve(zstd::zstd_safe::compress_bound(payload.len()));
        self.compressor.compress_to_buffer(payload, &mut self.body)?;
        out.clear();
        out.extend_from_slice(&(self.body.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&self.body).to_le_bytes());
        out.extend_from_slice(&self.body);
        Ok(())
    }
}

pub(crate) struct BlockReader {
    decompressor: Decompressor<'static>,
    payload: Vec<u8>,
}

impl BlockReader {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(BlockReader { decompressor: Decompressor::new()?, payload: Vec::new() })
    }

    pub(crate) fn read(&mut self, body: &[u8]) -> Result<&[u8], BlockError> {
        let size = match get_frame_content_size(body) {
            Ok(Some(size)) if size <= MAX_PAYLOAD as u64 => size as usize,
            Ok(Some(_)) => return Err(BlockError("its payload is larger than allowed")),
            _ => return Err(BlockError("it does not state the size of its payload")),
        };
        self.payload.clear();
        self.payload.reserve(size);
        match self.decompressor.decompress_to_buffer(body, &mut self.payload) {
            Ok(read) if read == size => Ok(&self.payload),
            _ => Err(BlockError("its compressed bytes cannot be read")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reads_back_and_one_flipped_bit_is_detected() {
        let payload = b"a payload, a payload, a payload".as_slice();
        let mut block = Vec::new();
        BlockWriter::new(3).unwrap().write(payload, &mut block).unwrap();
        let (head, body) = block.split_at(BLOCK_HEAD);
        let claim = BlockHeader::read(head.try_into().unwrap()).unwrap();
        assert!(claim.holds(body));
        assert_eq!(BlockReader::new().unwrap().read(body), Ok(payload));
        let mut bad = body.to_vec();
        for bit in 0..bad.len() * 8 {
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!claim.holds(&bad));
            let _ = BlockReader::new().unwrap().read(&bad);
            bad[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn zeros_are_no_block() {
        assert_eq!(BlockHeader::read([0; BLOCK_HEAD]), None);
    }
}
