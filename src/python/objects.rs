//! Decodes `str`, `bytes` and `int` objects.

use crate::python::layouts::ObjectLayout;
use crate::target::{Addr, Field, Memory, MemoryError};

pub(super) const MAX_STRING_LEN: usize = 4096;
const MAX_HEAD_LEN: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecodeError {
    Memory(MemoryError),
    Malformed,
}

impl From<MemoryError> for DecodeError {
    fn from(error: MemoryError) -> Self {
        DecodeError::Memory(error)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PyString {
    pub(super) text: String,
    pub(super) at: Addr,
    /// 1, 2 or 4 bytes each.
    pub(super) stored: Vec<u8>,
}

/// All names are compact (PEP 393, Include/cpython/unicodeobject.h).
pub(super) fn text(
    memory: &dyn Memory,
    layout: &ObjectLayout,
    at: Addr,
) -> Result<PyString, DecodeError> {
    if !at.is_plausible() {
        return Err(DecodeError::Malformed);
    }
    let mut head = [0; MAX_HEAD_LEN];
    let head = head.get_mut(..layout.compact_start).ok_or(DecodeError::Malformed)?;
    memory.read(at, head)?;
    let (Some(len), Some(state)) = (layout.text_len.get(head), layout.text_state.get(head)) else {
        return Err(DecodeError::Malformed);
    };
    let kind = state >> layout.text_kind_bit & 7;
    let compact = state >> layout.text_compact_bit & 1 == 1;
    let ascii = state >> layout.text_ascii_bit & 1 == 1;
    if !compact || !matches!(kind, 1 | 2 | 4) || (ascii && kind != 1) || len > 1 << 24 {
        return Err(DecodeError::Malformed);
    }
    let start = if ascii { layout.ascii_start } else { layout.compact_start };
    let width = kind as usize;
    let bytes = (len as usize * width).min(MAX_STRING_LEN);
    let at = at + start as u64;
    let stored = memory.vec(at, bytes)?;
    Ok(PyString { text: decode(&stored, width), at, stored })
}

fn decode(stored: &[u8], width: usize) -> String {
    if width == 1
        && stored.is_ascii()
        && let Ok(text) = std::str::from_utf8(stored)
    {
        return text.to_owned();
    }
    stored
        .chunks_exact(width)
        .map(|unit| {
            let mut value = [0; 4];
            value[..width].copy_from_slice(unit);
            // A surrogate has no `char`.
            char::from_u32(u32::from_le_bytes(value)).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
        .collect()
}

/// `None` if longer than `most`.
pub(super) fn bytes(
    memory: &dyn Memory,
    layout: &ObjectLayout,
    at: Addr,
    most: usize,
) -> Result<Option<Vec<u8>>, DecodeError> {
    if !at.is_plausible() {
        return Err(DecodeError::Malformed);
    }
    let head = memory.vec(at, layout.bytes_len.end())?;
    match layout.bytes_len.get(&head) {
        Some(len) if len <= most as u64 => {
            Ok(Some(memory.vec(at + layout.bytes_start as u64, len as usize)?))
        }
        Some(len) if len < 1 << 47 => Ok(None),
        _ => Err(DecodeError::Malformed),
    }
}

/// At most two digits of 30 bits (Include/cpython/longintrepr.h).
pub(super) fn small_int(
    memory: &dyn Memory,
    layout: &ObjectLayout,
    at: Addr,
) -> Result<u64, DecodeError> {
    if !at.is_plausible() {
        return Err(DecodeError::Malformed);
    }
    let bytes = memory.vec(at, layout.int_digits + 8)?;
    // Since 3.12 the word's low bits are the sign (2: negative); before, a negative count is.
    let tag = layout.int_len.get(&bytes).ok_or(DecodeError::Malformed)?;
    if layout.int_len_bit > 0 && tag & 3 == 2 {
        return Err(DecodeError::Malformed);
    }
    let digit = |n: usize| Field::<u32>::at(layout.int_digits + 4 * n).get(&bytes).map(u64::from);
    match (tag >> layout.int_len_bit, digit(0), digit(1)) {
        (0, _, _) => Ok(0),
        (1, Some(low), _) => Ok(low),
        (2, Some(low), Some(high)) => Ok(high << 30 | low),
        _ => Err(DecodeError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::layouts::layout_tables::row;
    use crate::target::MemoryImage;

    fn string(state: u32, start: usize, len: u64, stored: &[u8]) -> MemoryImage {
        let mut object = vec![0; start];
        object[16..24].copy_from_slice(&len.to_le_bytes());
        object[32..36].copy_from_slice(&state.to_le_bytes());
        object.extend_from_slice(stored);
        object.resize(object.len().max(128), 0);
        let mut image = MemoryImage::default();
        image.insert(Addr(0x5000), &object);
        image
    }

    #[test]
    fn strings_of_every_width_are_decoded() {
        let layout = &row(12, false).unwrap().object;
        let ascii = string(1 << 2 | 1 << 5 | 1 << 6, 40, 3, b"abc");
        assert_eq!(text(&ascii, layout, Addr(0x5000)).unwrap().text, "abc");
        let latin = string(1 << 2 | 1 << 5, 56, 2, b"\xe9a");
        assert_eq!(text(&latin, layout, Addr(0x5000)).unwrap().text, "éa");
        let two = string(2 << 2 | 1 << 5, 56, 2, &[0x3b, 0x04, 0x00, 0xd8]);
        assert_eq!(text(&two, layout, Addr(0x5000)).unwrap().text, "л\u{fffd}");
        let four = string(4 << 2 | 1 << 5, 56, 1, &[0x80, 0xf6, 0x01, 0x00]);
        assert_eq!(text(&four, layout, Addr(0x5000)).unwrap().text, "🚀");
    }

    #[test]
    fn non_strings_are_refused() {
        let layout = &row(12, false).unwrap().object;
        for (state, len) in [(0, 3), (3 << 2 | 1 << 5, 3), (1 << 2 | 1 << 5, 1 << 40)] {
            let image = string(state, 56, len, b"abc");
            assert_eq!(text(&image, layout, Addr(0x5000)), Err(DecodeError::Malformed));
        }
        assert_eq!(text(&MemoryImage::default(), layout, Addr(8)), Err(DecodeError::Malformed));
    }
}
