//! Base64 in lines that an editor can show.

use std::io::{self, Write};

use base64::engine::general_purpose::{GeneralPurpose, STANDARD};
use base64::write::EncoderWriter;

const WIDTH: usize = 120;

pub(super) struct Base64Lines<W: Write>(EncoderWriter<'static, GeneralPurpose, LineBreaker<W>>);

impl<W: Write> Base64Lines<W> {
    pub(super) fn new(out: W) -> Base64Lines<W> {
        Base64Lines(EncoderWriter::new(LineBreaker { out, column: 0 }, &STANDARD))
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.0.finish().map(drop)
    }
}

impl<W: Write> Write for Base64Lines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

struct LineBreaker<W> {
    out: W,
    column: usize,
}

impl<W: Write> Write for LineBreaker<W> {
    /// Takes all of `text`: after a short write the encoder takes nothing more.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut rest = text;
        while !rest.is_empty() {
            let (line, left) = rest.split_at(rest.len().min(WIDTH - self.column));
            self.out.write_all(line)?;
            self.column += line.len();
            if self.column == WIDTH {
                self.out.write_all(b"\n")?;
                self.column = 0;
            }
            rest = left;
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        let mut lines = Base64Lines::new(&mut out);
        lines.write_all(bytes).unwrap();
        lines.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_examples_of_the_standard() {
        for (text, code) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(coded(text.as_bytes()), code);
        }
    }

    #[test]
    fn a_full_line_is_ended() {
        let line = "AAAA".repeat(WIDTH / 4);
        assert_eq!(coded(&[0; WIDTH / 4 * 3]), format!("{line}\n"));
        // The encoder writes some 1 KiB at once.
        assert_eq!(coded(&[0; WIDTH / 4 * 3 * 20 + 3]), format!("{line}\n").repeat(20) + "AAAA");
    }
}
