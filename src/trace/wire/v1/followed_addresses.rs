//! Encodes the addresses of counter deltas.

use super::MalformedPayload;
use super::varint::{
    PayloadCursor, fold, fold_signed, put, unfold, unfold_signed, unzigzag, zigzag,
};
use crate::model::{AddressedBlock, FollowedAddresses, FollowedChange};

const PARTS: usize = 3;
const COUNTS: usize = 0;
const ADDRESSES: usize = 1;
const SIZES: usize = 2;

const TOO_MANY: MalformedPayload = MalformedPayload("more addresses than a delta may have");
const NO_CHANGE: MalformedPayload = MalformedPayload("addresses of a delta that does not exist");

pub(crate) fn any(changes: &[FollowedChange]) -> bool {
    changes.iter().any(|change| change.addresses.is_some())
}

pub(crate) fn encode(
    changes: &[FollowedChange],
    out: &mut Vec<u8>,
) -> Result<(), MalformedPayload> {
    let mut parts: [Vec<u8>; PARTS] = Default::default();
    let (mut number, mut next, mut last) = (0u64, 0, 0u64);
    let mut address = |part: &mut Vec<u8>, address: u64| {
        put(part, fold_signed(address.wrapping_sub(last) as i64));
        last = address;
    };
    for (index, change) in changes.iter().enumerate() {
        let Some(addresses) = &change.addresses else { continue };
        let FollowedAddresses { changes, allocated, freed } = &**addresses;
        if allocated.len().max(freed.len()) > FollowedAddresses::MAX {
            return Err(TOO_MANY);
        }
        let counts = [(index - next) as u64, u64::from(*changes)];
        let counts = counts.into_iter().chain([allocated.len() as u64, freed.len() as u64]);
        counts.for_each(|count| put(&mut parts[COUNTS], count));
        for block in allocated {
            address(&mut parts[ADDRESSES], block.address);
            put(&mut parts[SIZES], fold(block.size));
            put(&mut parts[SIZES], zigzag(block.size.wrapping_sub(block.requested) as i64));
        }
        freed.iter().for_each(|freed| address(&mut parts[ADDRESSES], *freed));
        (number, next) = (number + 1, index + 1);
    }
    put(out, number);
    parts.iter().for_each(|part| put(out, part.len() as u64));
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}

pub(crate) fn decode(
    from: &mut PayloadCursor<'_>,
    changes: &mut [FollowedChange],
) -> Result<(), MalformedPayload> {
    let number = from.number()?;
    let mut lengths = [0; PARTS];
    for length in &mut lengths {
        *length = usize::try_from(from.number()?).unwrap_or(usize::MAX);
    }
    let mut parts = [PayloadCursor(&[]); PARTS];
    for (part, length) in parts.iter_mut().zip(lengths) {
        *part = PayloadCursor(from.bytes(length)?);
    }
    let [counts, of_addresses, sizes] = &mut parts;
    let (mut next, mut last) = (0usize, 0u64);
    let mut address = || {
        last = last.wrapping_add(unfold_signed(of_addresses.number()?) as u64);
        Ok::<u64, MalformedPayload>(last)
    };
    for _ in 0..number {
        let gap = usize::try_from(counts.number()?).unwrap_or(usize::MAX);
        let change = next.checked_add(gap).and_then(|index| changes.get_mut(index));
        let change = change.ok_or(NO_CHANGE)?;
        next += gap + 1;
        let of_changes = counts.number32()?;
        let mut length = || match usize::try_from(counts.number()?) {
            Ok(length) if length <= FollowedAddresses::MAX => Ok(length),
            _ => Err(TOO_MANY),
        };
        let (allocated, freed) = (length()?, length()?);
        let block = |_| {
            let (address, size) = (address()?, unfold(sizes.number()?));
            let requested = size.wrapping_sub(unzigzag(sizes.number()?) as u64);
            Ok(AddressedBlock { address, size, requested })
        };
        let allocated = (0..allocated).map(block).collect::<Result<_, MalformedPayload>>()?;
        let freed = (0..freed).map(|_| address()).collect::<Result<_, MalformedPayload>>()?;
        let addresses = FollowedAddresses { changes: of_changes, allocated, freed };
        change.addresses = Some(Box::new(addresses));
    }
    Ok(())
}
