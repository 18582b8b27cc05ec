//! A typed offset in a foreign structure.

use std::marker::PhantomData;

use super::memory::Addr;

/// A little-endian type.
pub trait Scalar: Sized {
    /// Bytes.
    const SIZE: usize;
    /// Decodes exactly [`Self::SIZE`] bytes.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

macro_rules! scalar {
    ($($t:ty),*) => {$(
        impl Scalar for $t {
            const SIZE: usize = size_of::<$t>();
            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(<$t>::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}
scalar!(u8, i8, u16, i16, u32, i32, u64, i64);

impl Scalar for Addr {
    const SIZE: usize = 8;
    fn decode(bytes: &[u8]) -> Option<Self> {
        u64::decode(bytes).map(Addr)
    }
}

/// Byte offset of a field of type `T`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Field<T> {
    /// From the start of the structure.
    pub offset: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Field<T> {}

impl<T: Scalar> Field<T> {
    /// The field at `offset`.
    pub const fn at(offset: usize) -> Self {
        Field { offset, of: PhantomData }
    }

    /// Its value in a copy of the structure; `None`: too short.
    pub fn get(self, structure: &[u8]) -> Option<T> {
        T::decode(structure.get(self.offset..self.offset + T::SIZE)?)
    }

    /// Its address in a structure at `base`.
    pub fn in_target(self, base: Addr) -> Addr {
        base + self.offset as u64
    }

    /// Minimum length of a copy with it.
    pub const fn end(self) -> usize {
        self.offset + T::SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_copy_has_no_value() {
        let field = Field::<u32>::at(4);
        assert_eq!(field.get(&[0, 0, 0, 0, 1, 2, 0, 0]), Some(0x201));
        assert_eq!(field.get(&[0; 7]), None);
        assert_eq!(field.end(), 8);
    }
}
