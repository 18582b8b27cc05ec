//! Read-only variables of the BPF program, as bytes.
//!
//! Fields match the structures in cuda/*.bpf.* in order and size; the kernel refuses another
//! length.

use super::driver;
use super::plan::AttachPlan;
use crate::abi::{AutogradInfo, UnwindInfo};
use crate::target::usdt::{ArgumentOperand, ProbeArgument, StaticProbe};

const NOWHERE: u32 = u32::MAX;
pub(super) const MAX_SITES: usize = 8;
const ARGUMENTS: usize = 3;
const WAYS: u32 = 1024;
const NO_INDEX: u8 = 0xff;

#[derive(Debug, Default)]
pub(super) struct BpfConstants {
    values: Vec<(&'static str, Vec<u8>)>,
}

impl BpfConstants {
    pub(super) fn new(
        plan: &AttachPlan,
        mallocs: &[StaticProbe],
        frees: &[StaticProbe],
    ) -> BpfConstants {
        let mut constants = BpfConstants::default();
        if let Some(walk) = &plan.walk {
            constants.set("WALK", unwind_bytes(walk, plan.native_from.is_some()));
        }
        constants.set("HAS_PYTHON", u32::from(plan.walk.is_some()).to_le_bytes());
        constants.set("MALLOC_SITES", sites(mallocs));
        constants.set("FREE_SITES", sites(frees));
        constants.set("CALLS", driver::table());
        constants.set("STACKS_FROM", plan.stacks_from.to_le_bytes());
        constants.set("STACKS_EVERY", u32::from(plan.stacks_every > 0).to_le_bytes());
        constants.set("WAY", intervals(plan.stacks_every));
        // In the program 0 means none, so 1 means all sizes.
        let native_from = plan.native_from.map_or(0, |from| from.max(1));
        constants.set("NATIVE_FROM", native_from.to_le_bytes());
        constants.set("WATCHES", u32::from(plan.watches).to_le_bytes());
        if let Some(walk) = &plan.backward {
            constants.backward(walk);
            constants.set("BW_LINES", u32::from(plan.backward_lines).to_le_bytes());
        }
        constants
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.values.iter().map(|(name, bytes)| (*name, bytes.as_slice()))
    }

    fn set(&mut self, name: &'static str, bytes: impl AsRef<[u8]>) {
        self.values.push((name, bytes.as_ref().to_vec()));
    }

    fn backward(&mut self, walk: &AutogradInfo) {
        self.set("BW_MODULE", walk.module.to_le_bytes());
        self.set("BW_NODE", walk.node.to_le_bytes());
        self.set("BW_HAS_GRAPH_TASK", u32::from(walk.graph_task.is_some()).to_le_bytes());
        self.set("BW_GRAPH_TASK", walk.graph_task.unwrap_or(0).to_le_bytes());
        self.set("BW_SEQUENCE", walk.sequence.to_le_bytes());
        self.set("BW_THREAD_NUMBER", walk.thread_number.to_le_bytes());
        self.set("BW_NODE_SEQUENCE", walk.node_sequence.to_le_bytes());
        self.set("BW_NODE_THREAD", walk.node_thread.to_le_bytes());
        self.set("BW_NODE_OBJECT", walk.node_object.to_le_bytes());
        let register = walk.execute.map(|(_, argument)| driver::register(argument.into()));
        self.set("BW_TASK_REGISTER", u32::from(register.unwrap_or_default()).to_le_bytes());
    }
}

fn unwind_bytes(walk: &UnwindInfo, is_native: bool) -> Vec<u8> {
    let or_nowhere = |offset: Option<u32>| offset.unwrap_or(NOWHERE);
    // Either way a byte of a frame says where the interpreter was called.
    let frame_owner = walk.frame_owner.or(walk.frame_entry.filter(|_| is_native));
    let ends = [
        walk.frame_code + 8,
        walk.frame_previous + 8,
        walk.frame_instruction + if walk.instruction_is_offset { 4 } else { 8 },
        frame_owner.map_or(0, |owner| owner + 1),
        walk.frame_copy.map_or(0, |copy| copy + 4),
        walk.frame_argument.map_or(0, |argument| argument + 8),
    ];
    let frame_len = ends.into_iter().max().unwrap_or(0).next_multiple_of(8);
    let mut bytes = Vec::new();
    for word in [walk.threads_head, walk.main_thread] {
        bytes.extend(word.to_le_bytes());
    }
    for word in [
        walk.own_thread_slot.unwrap_or(0),
        walk.thread_next,
        walk.thread_id,
        walk.thread_head,
        or_nowhere(walk.head_through),
        walk.frame_code,
        walk.frame_previous,
        walk.frame_instruction,
        u32::from(walk.instruction_is_offset),
        or_nowhere(frame_owner),
        or_nowhere(walk.frame_copy),
        or_nowhere(walk.code_copies),
        walk.code_bytecode,
        u32::from(walk.contiguous),
        frame_len,
        walk.code_name,
        walk.code_file,
        walk.code_line_table,
        walk.code_len,
        walk.object_class,
        walk.frame_argument.unwrap_or(0),
    ] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn sites(sites: &[StaticProbe]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for index in 0..MAX_SITES {
        let arguments = sites.get(index).map_or(&[][..], |site| &site.arguments[..]);
        for argument in 0..ARGUMENTS {
            bytes.extend(self::argument(arguments.get(argument)));
        }
    }
    bytes
}

/// `struct argument`.
fn argument(argument: Option<&ProbeArgument>) -> [u8; 16] {
    let (operand, base, index, scale, value) = match argument.map(|a| a.operand) {
        None => (0, 0, NO_INDEX, 0, 0),
        Some(ArgumentOperand::Constant(value)) => (1, 0, NO_INDEX, 0, value),
        Some(ArgumentOperand::Register(register)) => (2, register.pt_regs_index(), NO_INDEX, 0, 0),
        Some(ArgumentOperand::Memory { base, index, displacement }) => {
            let (index, scale) = index.map_or((NO_INDEX, 0), |(r, s)| (r.pt_regs_index(), s));
            (3, base.pt_regs_index(), index, scale, displacement)
        }
    };
    let size = argument.map_or(0, |a| a.size);
    let signed = argument.is_some_and(|a| a.signed);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&[operand, size, u8::from(signed), base, index, scale]);
    bytes[8..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// Intervals of a Poisson process, one sample per `mean` bytes: exponential quantiles at the
/// middles of equal parts, scaled to that mean.
fn intervals(mean: u64) -> Vec<u8> {
    let parts = f64::from(WAYS);
    let quantiles: Vec<f64> =
        (0..WAYS).map(|i| -(1.0 - (f64::from(i) + 0.5) / parts).ln()).collect();
    let scale = mean as f64 * parts / quantiles.iter().sum::<f64>();
    quantiles.into_iter().flat_map(|q| ((q * scale).round() as u64).max(1).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_intervals_have_the_requested_mean() {
        let bytes = intervals(1 << 20);
        let intervals: Vec<u64> =
            bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
        let mean = intervals.iter().sum::<u64>() as f64 / intervals.len() as f64;
        assert!((mean / f64::from(1 << 20) - 1.0).abs() < 1e-3, "{mean}");
        // A third of them (1/e) is longer than the mean.
        let longer =
            intervals.iter().filter(|&&w| w > 1 << 20).count() as f64 / intervals.len() as f64;
        assert!((longer - (-1f64).exp()).abs() < 0.01, "{longer}");
    }
}
