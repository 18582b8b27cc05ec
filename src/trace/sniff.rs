//! Guesses a foreign file's format from its first bytes.

pub(crate) fn guess_format(head: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 13] = [
        (b"MEMSPY\n", "a trace whose line ends were changed by a transfer in text mode"),
        (&[0x1F, 0x8B], "a gzip file (is it a compressed trace?)"),
        (&[0x28, 0xB5, 0x2F, 0xFD], "a zstd file (is it a compressed trace?)"),
        (&[0xFD, b'7', b'z', b'X', b'Z'], "an xz file (is it a compressed trace?)"),
        (b"BZh", "a bzip2 file (is it a compressed trace?)"),
        (b"PK\x03\x04", "a zip archive, as torch.save writes"),
        (&[0x80, 0x02], "a Python pickle, as torch.cuda.memory._dump_snapshot writes"),
        (&[0x80, 0x03], "a Python pickle, as torch.cuda.memory._dump_snapshot writes"),
        (&[0x80, 0x04], "a Python pickle, as torch.cuda.memory._dump_snapshot writes"),
        (&[0x80, 0x05], "a Python pickle, as torch.cuda.memory._dump_snapshot writes"),
        (b"\x7fELF", "a program or library"),
        (b"SQLite format 3", "a SQLite database, as nsys exports"),
        (b"PERFILE2", "a recording of perf"),
    ];
    if let Some((_, name)) = KNOWN.iter().find(|(magic, _)| head.starts_with(magic)) {
        return name;
    }
    if head.iter().all(|&b| b == 0) {
        return "nothing but zeros";
    }
    let text = head.iter().all(|&b| b >= b' ' && b != 0x7F || b"\n\r\t".contains(&b));
    match head.trim_ascii_start().first() {
        Some(b'{' | b'[') if text => "JSON",
        Some(b'<') if text => "HTML, XML or SVG",
        _ if text => "text",
        _ => "some other binary file",
    }
}

#[cfg(test)]
mod tests {
    use super::guess_format;

    #[test]
    fn common_files_are_recognised() {
        for (head, name) in [
            (b"\x1f\x8b\x08\0".as_slice(), "gzip"),
            (b"PK\x03\x04\x14", "zip"),
            (b"\x80\x04\x95", "pickle"),
            (b"{\"a\": 1}", "JSON"),
            (b" <svg", "SVG"),
            (b"hello\n", "text"),
            (b"MEMSPY\n\x01\0", "line ends"),
            (b"\0\0\0", "zeros"),
            (b"\x00\x01\x02", "binary"),
        ] {
            assert!(guess_format(head).contains(name), "{head:?}: {}", guess_format(head));
        }
    }
}
