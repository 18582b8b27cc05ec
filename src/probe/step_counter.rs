//! Words that count steps (`struct watching`, cuda/steps.bpf.h).

use crate::abi::{CounterLocation, WatchedSteps};

/// Bytes of one `struct watched`, and of all.
const WATCHED: usize = 56;
pub(super) const LEN: usize = 2 * WATCHED + 32;
const NUMBER: usize = LEN - 4;

/// `enum watched_kind`.
const WORD32: u32 = 1;
const WORD64: u32 = 2;
const INTEGER: u32 = 3;

/// Each step event returns `number`.
pub(super) fn place(steps: Option<&WatchedSteps>, number: u32) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    if let Some(steps) = steps {
        bytes[..WATCHED].copy_from_slice(&watched(&steps.step));
        if let Some(epoch) = &steps.epoch {
            bytes[WATCHED..2 * WATCHED].copy_from_slice(&watched(epoch));
        }
    }
    bytes[NUMBER..].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn watched(watched: &CounterLocation) -> [u8; WATCHED] {
    let (words, kind, size_bit) = match *watched {
        CounterLocation::Word { at, wide, check_at, check } => {
            ([at, check_at, check, 0, 0, 0], if wide { WORD64 } else { WORD32 }, 0)
        }
        CounterLocation::Integer(variable) => {
            let (thread, frame) = variable.frame.map_or((0, 0), |it| (it.thread, it.frame));
            let words =
                [variable.at, variable.check_at, variable.check, variable.class, thread, frame];
            (words, INTEGER, u32::from(variable.size_bit))
        }
    };
    let mut bytes = [0; WATCHED];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes[48..52].copy_from_slice(&kind.to_le_bytes());
    bytes[52..].copy_from_slice(&size_bit.to_le_bytes());
    bytes
}
