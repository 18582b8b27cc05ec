//! Decodes the ring's records (structures of cuda/probe.h).

use super::ring_events::{NativeCopy, RawEvent, RawNode, RawStep, RingRecord};
use crate::abi::BpfFrame;
use crate::model::{
    AddressSpace, CounterSnapshot, CudaIndex, DriverEvent, EventKind, MemoryKind, StackSource,
};
use crate::target::DWARF_REGISTERS;

/// `enum record_kind`.
const ALLOCATED: u8 = 1;
const FREED: u8 = 2;
const FAILED: u8 = 3;
const MARKED: u8 = 4;
const STACK: u8 = 5;
const CODE: u8 = 6;
const CODE_FREED: u8 = 7;
const STEP: u8 = 8;
const NATIVE_STACK: u8 = 9;

/// Flags of `struct who`.
const TRUNCATED: u8 = 1;
const FAULTED: u8 = 2;
const LEVELS: u8 = 4;
const NODE: u8 = 8;
const IN_BACKWARD: u8 = 16;
const NO_DEVICE: u8 = 0xff;

const WHO: usize = 40;
const ALLOCATION: usize = 96;
const STACK_HEAD: usize = 16;
const FRAME: usize = 24;
const CODE_HEAD: usize = 64;
const OWNER_BIT: u32 = 56;
const NATIVE_HEAD: usize = 152;
/// Replaces the number of a lost stack copy.
const NATIVE_STACK_LOST: u32 = u32::MAX;
/// Parts of `struct code_record`: object, name, file's name, line table.
const PARTS: [usize; 4] = [6 * 64, 5 * 64, 7 * 64, 33 * 64];

/// Decodes records; buffers are reused.
#[derive(Debug, Default)]
pub struct RingDecoder {
    frames: Vec<BpfFrame>,
}

impl RingDecoder {
    /// Ignores unknown records.
    pub fn decode(&mut self, record: &[u8], take: &mut dyn FnMut(RingRecord<'_>)) -> Option<()> {
        match *record.first()? {
            STACK => {
                let count = usize::from(u16_at(record, 2)?);
                let frames = record.get(STACK_HEAD..)?.chunks_exact(FRAME).take(count);
                self.frames.clear();
                self.frames.extend(frames.filter_map(|frame| {
                    let code = u64_at(frame, 0)?;
                    Some(BpfFrame {
                        code: code & ((1 << OWNER_BIT) - 1),
                        owner: (code >> OWNER_BIT) as u8,
                        instruction: u64_at(frame, 8)?,
                        module: u64_at(frame, 16)?,
                    })
                }));
                take(RingRecord::Stack {
                    key: u64_at(record, 8)?,
                    frames: &self.frames,
                    truncated: record.get(1)? & TRUNCATED != 0,
                });
            }
            CODE => {
                let mut spans: [(u64, &[u8]); 4] = [(0, &[]); 4];
                let mut start = CODE_HEAD;
                for (part, (span, room)) in spans.iter_mut().zip(PARTS).enumerate() {
                    let len = u32_at(record, 48 + 4 * part)? as usize;
                    *span = (u64_at(record, 16 + 8 * part)?, record.get(start..start + len)?);
                    start += room;
                }
                take(RingRecord::Code { code: u64_at(record, 8)?, spans: &spans });
            }
            STEP => take(RingRecord::Step(RawStep {
                time: u64_at(record, 8)?,
                place: u32_at(record, 4)?,
                is_first: *record.get(1)? != 0,
                step: u64_at(record, 16)?,
                epoch: u64_at(record, 24)?,
            })),
            NATIVE_STACK => {
                let mut registers = [0; DWARF_REGISTERS];
                for (index, register) in registers.iter_mut().enumerate() {
                    *register = u64_at(record, 16 + 8 * index)?;
                }
                let (len, wanted) = (u32_at(record, 8)?, u32_at(record, 12)?);
                let stack = record.get(NATIVE_HEAD..)?.get(..len as usize)?;
                take(RingRecord::NativeStack {
                    number: u32_at(record, 4)?,
                    registers,
                    stack,
                    is_cut: len < wanted,
                });
            }
            CODE_FREED => take(RingRecord::CodeFreed { code: u64_at(record, 8)? }),
            _ => take(RingRecord::Event(event(record)?)),
        }
        Some(())
    }
}

fn event(record: &[u8]) -> Option<RawEvent> {
    let [kind, memory_kind, device, source, flags, mark] = *record.first_chunk::<6>()?;
    let change = match kind {
        ALLOCATED => EventKind::Allocated {
            memory_kind: self::memory_kind(memory_kind, device)?,
            address: u64_at(record, WHO)?,
            size: u64_at(record, WHO + 8)?,
            levels: (flags & LEVELS != 0).then(|| levels(record)).flatten(),
            block: Some(u64_at(record, WHO + 48)?).filter(|bytes| *bytes > 0),
        },
        FREED => EventKind::Freed {
            memory_kind: freed(memory_kind)?,
            address: u64_at(record, WHO)?,
            in_backward: flags & IN_BACKWARD != 0,
        },
        FAILED => EventKind::Failed {
            memory_kind: self::memory_kind(memory_kind, device)?,
            size: u64_at(record, WHO + 8)?,
            code: u16_at(record, 6)?.into(),
        },
        MARKED => EventKind::Marked(match mark {
            0 => DriverEvent::ContextCreated,
            1 => DriverEvent::ModuleLoaded,
            2 => DriverEvent::LibraryLoaded,
            _ => return None,
        }),
        _ => return None,
    };
    let node = (kind == ALLOCATED && flags & NODE != 0).then(|| {
        Some(RawNode {
            vtable: u64_at(record, ALLOCATION)?,
            python_type: u64_at(record, ALLOCATION + 8)?,
            forward: u64_at(record, ALLOCATION + 16)?,
        })
    });
    Some(RawEvent {
        time: u64_at(record, 16)?,
        change,
        os_thread: u32_at(record, 8)?,
        python_id: u64_at(record, 24)?,
        stack: u64_at(record, 32)?,
        source: match source {
            0 => StackSource::Own,
            1 => StackSource::Backward,
            2 => StackSource::Borrowed,
            3 => StackSource::NoPython,
            4 => StackSource::NotTaken,
            _ => StackSource::Unknown,
        },
        truncated: flags & TRUNCATED != 0,
        faulted: flags & FAULTED != 0,
        node: node.flatten(),
        native: match (kind, u32_at(record, 12)?) {
            (ALLOCATED, NATIVE_STACK_LOST) => NativeCopy::Lost,
            (ALLOCATED, number @ 1..) => NativeCopy::Number(number),
            _ => NativeCopy::NotTaken,
        },
    })
}

fn levels(record: &[u8]) -> Option<CounterSnapshot> {
    let at = |index: usize| Some(u64_at(record, WHO + 16 + 8 * index)? as i64);
    Some(CounterSnapshot { allocated: at(0)?, peak: at(1)?, reserved: at(2)?, active: at(3)? })
}

fn memory_kind(code: u8, device: u8) -> Option<MemoryKind> {
    let device = (device != NO_DEVICE).then_some(CudaIndex(device.into()));
    Some(match code {
        0 => MemoryKind::Torch(device?),
        1 => MemoryKind::Driver(device),
        2 => MemoryKind::Physical(device),
        3 => MemoryKind::Mapping,
        4 => MemoryKind::Managed,
        5 => MemoryKind::PinnedHost,
        _ => return None,
    })
}

fn freed(code: u8) -> Option<AddressSpace> {
    Some(match code {
        0 => AddressSpace::Torch,
        1 => AddressSpace::Driver,
        2 => AddressSpace::Physical,
        3 => AddressSpace::Mapping,
        5 => AddressSpace::PinnedHost,
        _ => return None,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native_stack(len: u32, bytes: &[u8]) -> Vec<u8> {
        let mut record = vec![NATIVE_STACK, 0, 0, 0];
        for word in [7, len, 100] {
            record.extend(u32::to_le_bytes(word));
        }
        for register in 0..DWARF_REGISTERS as u64 {
            record.extend((1000 + register).to_le_bytes());
        }
        assert_eq!(record.len(), NATIVE_HEAD);
        record.extend(bytes);
        record
    }

    fn decoded(record: &[u8]) -> Option<(u32, u64, Vec<u8>, bool)> {
        let mut found = None;
        RingDecoder::default().decode(record, &mut |raw| {
            if let RingRecord::NativeStack { number, registers, stack, is_cut } = raw {
                found = Some((number, registers[16], stack.to_vec(), is_cut));
            }
        });
        found
    }

    #[test]
    fn a_stack_copy_has_number_registers_and_bytes() {
        // Records have a few fixed lengths: room is left after the stack.
        let record = native_stack(3, &[1, 2, 3, 4, 5]);
        assert_eq!(decoded(&record), Some((7, 1016, vec![1, 2, 3], true)));
        let whole = native_stack(100, &[9; 128]);
        assert_eq!(decoded(&whole), Some((7, 1016, vec![9; 100], false)));
    }

    #[test]
    fn a_truncated_or_malformed_stack_copy_is_refused() {
        let record = native_stack(3, &[1, 2, 3]);
        for len in 0..record.len() {
            assert_eq!(decoded(&record[..len]), None, "{len}");
        }
        for len in [4, 1 << 20, u32::MAX] {
            assert_eq!(decoded(&native_stack(len, &[1, 2, 3])), None, "{len}");
        }
    }

    #[test]
    fn an_allocation_has_a_stack_copy_or_a_loss() {
        let native = |kind: u8, number: u32| {
            let mut record = vec![0; ALLOCATION];
            (record[0], record[1], record[2]) = (kind, 0, 0);
            record[12..16].copy_from_slice(&number.to_le_bytes());
            event(&record).unwrap().native
        };
        assert_eq!(native(ALLOCATED, 0), NativeCopy::NotTaken);
        assert_eq!(native(ALLOCATED, 5), NativeCopy::Number(5));
        assert_eq!(native(ALLOCATED, u32::MAX), NativeCopy::Lost);
        assert_eq!(native(FREED, 5), NativeCopy::NotTaken);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for round in 0..20_000 {
            let bytes: Vec<u8> = (0..round % 300)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random as u8 % 12
                })
                .collect();
            RingDecoder::default().decode(&bytes, &mut |_| {});
        }
    }
}
