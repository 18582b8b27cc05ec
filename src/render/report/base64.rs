//! Bytes as base64 (RFC 4648), in lines that an editor can show.

use std::io::{self, Write};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Groups of four characters a line.
const GROUPS_A_LINE: usize = 30;

/// Writes what it is given as base64.
pub(super) struct Base64Lines<W: Write> {
    out: W,
    /// Up to two bytes that wait for a third.
    waiting: Vec<u8>,
    groups: usize,
}

impl<W: Write> Base64Lines<W> {
    pub(super) fn new(out: W) -> Base64Lines<W> {
        Base64Lines { out, waiting: Vec::with_capacity(3), groups: 0 }
    }

    fn group(&mut self, bytes: &[u8]) -> io::Result<()> {
        let byte = |i: usize| u32::from(bytes.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let mut text = [b'='; 4];
        for (i, c) in text.iter_mut().enumerate().take(bytes.len() + 1) {
            *c = ALPHABET[(bits >> (18 - 6 * i) & 63) as usize];
        }
        self.out.write_all(&text)?;
        self.groups += 1;
        if self.groups.is_multiple_of(GROUPS_A_LINE) {
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Writes what waits.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.waiting);
        if rest.is_empty() { Ok(()) } else { self.group(&rest) }
    }
}

impl<W: Write> Write for Base64Lines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.waiting.push(*byte);
            if let &[a, b, c] = &self.waiting[..] {
                self.waiting.clear();
                self.group(&[a, b, c])?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        for (text, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            let mut lines = Base64Lines::new(&mut out);
            lines.write_all(text.as_bytes()).unwrap();
            lines.finish().unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), coded);
        }
    }
}
