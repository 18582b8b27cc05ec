//! Numbers in bincode's variable-length form, for frequent records.
//!
//! A test compares with bincode.

use super::MalformedPayload;

/// Makes numbers near zero small: 0, -1, 1, -2 become 0, 1, 2, 3.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(crate) fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Makes multiples of 512, the allocator's unit, small; lossless.
pub(crate) fn fold(value: u64) -> u64 {
    value.rotate_right(9)
}

pub(crate) fn unfold(value: u64) -> u64 {
    value.rotate_left(9)
}

/// [`fold`] and [`zigzag`].
pub(crate) fn fold_signed(value: i64) -> u64 {
    // `value >> 9` has 55 significant bits with its sign: the low 9 fit above its zigzag form.
    zigzag(value >> 9) | ((value as u64 & 511) << 55)
}

pub(crate) fn unfold_signed(value: u64) -> i64 {
    let high = unzigzag(value & ((1 << 55) - 1));
    (high << 9) | (value >> 55) as i64
}

/// As bincode's `config::standard()` does.
pub(crate) fn put(out: &mut Vec<u8>, value: u64) {
    if value < 251 {
        out.push(value as u8);
    } else if let Ok(small) = u16::try_from(value) {
        let [a, b] = small.to_le_bytes();
        out.extend_from_slice(&[251, a, b]);
    } else if let Ok(small) = u32::try_from(value) {
        let [a, b, c, d] = small.to_le_bytes();
        out.extend_from_slice(&[252, a, b, c, d]);
    } else {
        out.push(253);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PayloadCursor<'a>(pub(crate) &'a [u8]);

impl<'a> PayloadCursor<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], MalformedPayload> {
        let (head, tail) = self
            .0
            .split_at_checked(length)
            .ok_or(MalformedPayload("a record is longer than its block"))?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, MalformedPayload> {
        let (&first, tail) = self.0.split_first().ok_or(ENDED)?;
        self.0 = tail;
        Ok(first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, MalformedPayload> {
        match self.byte()? {
            small @ 0..=250 => Ok(u64::from(small)),
            251 => Ok(u64::from(u16::from_le_bytes(self.array()?))),
            252 => Ok(u64::from(u32::from_le_bytes(self.array()?))),
            253 => Ok(u64::from_le_bytes(self.array()?)),
            _ => Err(MalformedPayload("a number is wider than 64 bits")),
        }
    }

    /// Reads a batch: number of items (at most `max`), length of each column but the first, which
    /// has a byte per item, then the columns.
    pub(crate) fn columns<const N: usize>(
        &mut self,
        max: usize,
        too_many: MalformedPayload,
    ) -> Result<[PayloadCursor<'a>; N], MalformedPayload> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > max {
            return Err(too_many);
        }
        let mut lengths = [count; N];
        for length in lengths.iter_mut().skip(1) {
            *length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        }
        let mut columns = [PayloadCursor(&[]); N];
        for (column, length) in columns.iter_mut().zip(lengths) {
            *column = PayloadCursor(self.bytes(length)?);
        }
        Ok(columns)
    }

    pub(crate) fn number32(&mut self) -> Result<u32, MalformedPayload> {
        u32::try_from(self.number()?)
            .map_err(|_| MalformedPayload("a number is wider than 32 bits"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedPayload> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(ENDED)?;
        self.0 = tail;
        Ok(*head)
    }
}

const ENDED: MalformedPayload = MalformedPayload("a record ends in the middle of a number");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_width() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64u32).prop_map(|(v, shift)| v >> shift)
    }

    proptest! {
        #[test]
        fn numbers_are_bincode_numbers(value in any_width()) {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            let theirs = bincode::encode_to_vec(value, bincode::config::standard()).unwrap();
            prop_assert_eq!(&bytes, &theirs);
            prop_assert_eq!(PayloadCursor(&bytes).number(), Ok(value));
            bytes.pop();
            prop_assert!(PayloadCursor(&bytes).number().is_err());
        }

        #[test]
        fn zigzag_and_fold_are_reversible(value in any::<i64>(), shift in 0..64u32) {
            let value = value >> shift;
            prop_assert_eq!(unzigzag(zigzag(value)), value);
            prop_assert_eq!(unfold_signed(fold_signed(value)), value);
            prop_assert_eq!(unfold(fold(value as u64)), value as u64);
        }
    }

    #[test]
    fn multiples_of_512_fold_to_small_numbers() {
        assert_eq!(fold(1024), 2);
        assert_eq!(fold_signed(-1024), 3);
        assert_eq!(fold_signed(1024), 4);
    }
}
