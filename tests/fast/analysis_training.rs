//! How well bytes find their stacks in a training loop with temporaries and few samples.

use std::collections::BTreeMap;

use crate::analysis_script::Script;
use memspy::analysis::{FoldOptions, Moment, StackLabel, flame};
use memspy::model::*;

/// A deterministic source of numbers below `n`.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A loop of `iterations`, each with 6 layers of 12 lines. Returns which share of the peak's bytes
/// with known birth the fold attributes to the right stack, and to the right layer.
fn accuracy(per_tick: u64, per_map: u64, iterations: u32) -> (f64, f64) {
    let mut dice = Dice(7);
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "<module>", 1);
    s.enter(0, "train", 1);
    for i in 0..40 {
        s.alloc(0, 0, 400_000 + 100_000 * i);
    }
    s.tick();
    s.map(0);
    let mut steps = 0;
    let mut highest = 0;
    let mut truth = BTreeMap::new();
    let mut poll = |s: &mut Script, truth: &mut BTreeMap<(u32, u64), StackId>, dice: &mut Dice| {
        steps += 1;
        if dice.roll(per_tick) == 0 {
            s.tick();
            let now = s.gpus[&0].counters.allocated();
            if now > highest || dice.roll(per_map) == 0 {
                s.map(0);
                if now > highest {
                    highest = now;
                    truth.clone_from(&s.owner);
                }
            }
        }
    };
    for _ in 0..iterations {
        let mut activations = Vec::new();
        for layer in 0..6u32 {
            for op in 0..12u32 {
                s.line(0, 2);
                s.enter(0, "Block.forward", 100 + layer);
                s.enter(0, "op", 10 + op);
                poll(&mut s, &mut truth, &mut dice);
                let temporary = s.alloc(0, 0, 3_000_000 + 1000 * u64::from(op));
                poll(&mut s, &mut truth, &mut dice);
                activations.push(s.alloc(0, 0, 800_000 + 250_000 * u64::from(op)));
                s.free(0, temporary);
                poll(&mut s, &mut truth, &mut dice);
                s.leave(0);
                s.leave(0);
            }
        }
        s.line(0, 3);
        while let Some(block) = activations.pop() {
            let gradient = s.alloc(0, 0, 900_000 + 1000 * dice.roll(50));
            poll(&mut s, &mut truth, &mut dice);
            s.free(0, block);
            s.free(0, gradient);
        }
        s.line(0, 4);
        poll(&mut s, &mut truth, &mut dice);
    }
    s.end();
    let profile = s.profile();
    let fold = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    // Truth by stack; the kept moment may be another iteration's equal peak, with the same stacks.
    let right = |depth: usize| {
        let cut = |mut path: Vec<(FunctionId, u32)>| {
            path.truncate(depth);
            path
        };
        let mut true_bytes: BTreeMap<Vec<(FunctionId, u32)>, u64> = BTreeMap::new();
        for (&(device, address), &stack) in &truth {
            let frames = profile.stacks().frames(stack);
            let mut path: Vec<_> = frames.map(|f| (f.function, f.line)).collect();
            path.reverse();
            *true_bytes.entry(cut(path)).or_default() += size_at_peak(&s, device, address);
        }
        let mut folded: BTreeMap<Vec<(FunctionId, u32)>, u64> = BTreeMap::new();
        for stack in &fold.stacks {
            let frames = stack.path.iter().filter_map(|l| match l {
                StackLabel::Frame(f) => Some((f.function, f.line)),
                _ => None,
            });
            *folded.entry(cut(frames.collect())).or_default() += stack.bytes;
        }
        folded.remove(&Vec::new());
        let right = |(path, bytes): (&Vec<_>, &u64)| {
            let truly = true_bytes.get(path).copied().unwrap_or(0);
            (*bytes).min(truly)
        };
        folded.iter().map(right).sum::<u64>() as f64 / fold.resolution.seen as f64
    };
    (right(4), right(3))
}

/// A block's size by address, from any snapshot.
fn size_at_peak(s: &Script, device: u32, address: u64) -> u64 {
    s.records
        .iter()
        .filter_map(|r| match r {
            Record::Snapshot(map) if map.device.0 == device => Some(map),
            _ => None,
        })
        .find_map(|map| map.blocks().find(|(_, b)| b.address == address))
        .map_or(0, |(_, b)| b.size)
}

#[test]
fn bytes_find_their_stacks_as_sharply_as_the_polls_allow() {
    // One operation is three steps, one layer 36.
    for (per_tick, per_map, leaf, caller) in
        [(1, 50, 0.98, 0.98), (3, 50, 0.5, 0.9), (8, 20, 0.25, 0.85)]
    {
        let (at_leaf, at_caller) = accuracy(per_tick, per_map, 60);
        println!(
            "a poll per {per_tick} steps, a map per {per_map} polls: {:.1} % of bytes at the right line, {:.1} % below the right layer",
            at_leaf * 100.0,
            at_caller * 100.0
        );
        assert!(at_leaf >= leaf && at_caller >= caller);
    }
}
