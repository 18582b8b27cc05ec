//! Python's pickle, protocol 2, with the opcodes that pytorch.org/memory_viz knows.
//!
//! The page's reader lacks `LONG4` and `BINUNICODE8`, and passes items appended together as
//! arguments of one call: each item is appended alone.

use std::collections::BTreeMap;
use std::io::{self, Write};

pub(super) struct PickleWriter<'a> {
    out: &'a mut dyn Write,
    memo: u32,
    texts: BTreeMap<String, PickleMemo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PickleMemo(u32);

impl<'a> PickleWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<PickleWriter<'a>> {
        out.write_all(b"\x80\x02")?;
        Ok(PickleWriter { out, memo: 0, texts: BTreeMap::new() })
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.out.write_all(b".")
    }

    fn opcode(&mut self, code: u8, argument: &[u8]) -> io::Result<()> {
        self.out.write_all(&[code])?;
        self.out.write_all(argument)
    }

    /// Memoizes the value just written.
    pub(super) fn remember(&mut self) -> io::Result<PickleMemo> {
        let number = self.memo;
        self.memo += 1;
        match u8::try_from(number) {
            Ok(number) => self.opcode(b'q', &[number])?,
            Err(_) => self.opcode(b'r', &number.to_le_bytes())?,
        }
        Ok(PickleMemo(number))
    }

    pub(super) fn again(&mut self, memo: PickleMemo) -> io::Result<()> {
        match u8::try_from(memo.0) {
            Ok(number) => self.opcode(b'h', &[number]),
            Err(_) => self.opcode(b'j', &memo.0.to_le_bytes()),
        }
    }

    pub(super) fn bool(&mut self, value: bool) -> io::Result<()> {
        self.opcode(if value { 0x88 } else { 0x89 }, &[])
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.opcode(b'X', &length.to_le_bytes())?;
        self.out.write_all(text.as_bytes())
    }

    /// Writes a text, or its number the next time.
    pub(super) fn text_once(&mut self, text: &str) -> io::Result<()> {
        if let Some(&memo) = self.texts.get(text) {
            return self.again(memo);
        }
        self.text(text)?;
        let memo = self.remember()?;
        self.texts.insert(text.to_owned(), memo);
        Ok(())
    }

    pub(super) fn integer(&mut self, value: u64) -> io::Result<()> {
        if let Ok(value) = u8::try_from(value) {
            return self.opcode(b'K', &[value]);
        }
        if let Ok(value) = u16::try_from(value) {
            return self.opcode(b'M', &value.to_le_bytes());
        }
        if let Ok(value) = i32::try_from(value) {
            return self.opcode(b'J', &value.to_le_bytes());
        }
        // Signed: a set top bit needs another byte.
        let bytes = value.to_le_bytes();
        let length = (8 - value.leading_zeros() as usize / 8).min(8);
        match bytes[length - 1] < 0x80 {
            true => self.opcode(0x8a, &[length as u8])?,
            false => self.opcode(0x8a, &[length as u8 + 1])?,
        }
        self.out.write_all(&bytes[..length])?;
        if bytes[length - 1] >= 0x80 {
            self.out.write_all(&[0])?;
        }
        Ok(())
    }

    pub(super) fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.integer(first)?;
        self.integer(second)?;
        self.opcode(0x86, &[])
    }

    pub(super) fn empty_list(&mut self) -> io::Result<()> {
        self.opcode(b']', &[])
    }

    pub(super) fn empty_dict(&mut self) -> io::Result<()> {
        self.opcode(b'}', &[])
    }

    pub(super) fn append(&mut self) -> io::Result<()> {
        self.opcode(b'a', &[])
    }

    /// At least one key and value must follow.
    pub(super) fn begin_dict(&mut self) -> io::Result<()> {
        self.opcode(b'}', &[])?;
        self.opcode(b'(', &[])
    }

    pub(super) fn end_dict(&mut self) -> io::Result<()> {
        self.opcode(b'u', &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickled(write: impl FnOnce(&mut PickleWriter<'_>) -> io::Result<()>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pickle = PickleWriter::new(&mut out).unwrap();
        write(&mut pickle).unwrap();
        pickle.finish().unwrap();
        out
    }

    #[test]
    fn integers_take_the_opcodes_of_their_size() {
        for (value, bytes) in [
            (0, &b"K\0"[..]),
            (255, b"K\xff"),
            (256, b"M\0\x01"),
            (65_536, b"J\0\0\x01\0"),
            (i32::MAX as u64, b"J\xff\xff\xff\x7f"),
            (0x8000_0000, b"\x8a\x05\0\0\0\x80\0"),
            (0x7f00_0000_0000, b"\x8a\x06\0\0\0\0\0\x7f"),
            (u64::MAX, b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0"),
        ] {
            let written = pickled(|pickle| pickle.integer(value));
            assert_eq!(written, [b"\x80\x02", bytes, b"."].concat(), "{value:#x}");
        }
    }

    #[test]
    fn a_repeated_value_is_written_as_its_number() {
        let written = pickled(|pickle| {
            for _ in 0..300 {
                pickle.text("x")?;
                let memo = pickle.remember()?;
                pickle.again(memo)?;
            }
            Ok(())
        });
        assert!(written.windows(4).any(|w| w == [b'q', 255, b'h', 255]));
        assert!(written.windows(10).any(|w| w == [b'r', 0, 1, 0, 0, b'j', 0, 1, 0, 0]));
    }
}
