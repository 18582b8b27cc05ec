//! Who held the memory, out of a recording's looks: the one at the highest level, and the last.

use std::collections::BTreeMap;

use super::device::Moment;
use crate::model::{Category, CudaIndex, HeldOnDevice, HolderSnapshot, Nanos};

/// A device's memory by holder, as paths for a flamegraph: category, then modules down to the tensor, or its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderStacks {
    /// When the look was.
    pub time: Nanos,
    /// For how long the process stood still for it; `None` when it ran on.
    pub pause: Option<Nanos>,
    /// `allocated_bytes` then: the sum of all paths.
    pub allocated: u64,
    /// How many looks the recording has.
    pub looks: u64,
    /// Paths and their bytes.
    pub paths: Vec<(Vec<String>, u64)>,
}

/// A look at one device.
#[derive(Debug, Clone)]
struct Look {
    time: Nanos,
    pause: Option<Nanos>,
    held: HeldOnDevice,
}

/// The looks that reports are made of.
#[derive(Debug, Default)]
pub(crate) struct HolderLooks {
    highest: BTreeMap<CudaIndex, Look>,
    last: BTreeMap<CudaIndex, Look>,
    looks: u64,
}

impl HolderLooks {
    pub(crate) fn take(&mut self, snapshot: &HolderSnapshot) {
        self.looks += 1;
        for held in &snapshot.devices {
            let look = Look { time: snapshot.time, pause: snapshot.pause, held: held.clone() };
            let highest = self.highest.get(&held.device);
            if highest.is_none_or(|highest| highest.held.allocated < held.allocated) {
                self.highest.insert(held.device, look.clone());
            }
            self.last.insert(held.device, look);
        }
    }

    /// The memory of a device by holder; `None` when no look saw it.
    pub(crate) fn stacks(&self, device: CudaIndex, moment: Moment) -> Option<HolderStacks> {
        let look = match moment {
            Moment::Peak => &self.highest,
            Moment::End => &self.last,
        }
        .get(&device)?;
        let mut paths: Vec<(Vec<String>, u64)> = look
            .held
            .held
            .iter()
            .map(|held| (path(held.category, &held.holder), held.bytes))
            .collect();
        for (name, bytes) in
            [("[rounding]", look.held.rounding), ("[in no tensor]", look.held.without_tensor)]
        {
            if bytes > 0 {
                paths.push((vec![name.to_owned()], bytes));
            }
        }
        Some(HolderStacks {
            time: look.time,
            pause: look.pause,
            allocated: look.held.allocated,
            looks: self.looks,
            paths,
        })
    }
}

/// `layers.0.weight` is a weight in layer 0 in the layers; optimizer state lies where its parameter does.
fn path(category: Category, holder: &str) -> Vec<String> {
    let mut path = vec![category.name().to_owned()];
    let whole = match category {
        Category::Parameter | Category::Buffer | Category::Gradient => Some((holder, "")),
        // AdamW.exp_avg[layers.0.weight]
        Category::OptimizerState => {
            holder.split_once('[').and_then(|(state, rest)| Some((rest.strip_suffix(']')?, state)))
        }
        Category::Saved | Category::Other => None,
    };
    match whole {
        // A variable is no path of modules.
        Some((name, state)) if !name.contains(": ") && !name.starts_with("[") => {
            if !state.is_empty() {
                path.push(state.to_owned());
            }
            path.extend(name.split('.').map(str::to_owned));
        }
        _ => path.push(holder.to_owned()),
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_down_the_modules() {
        let text = |category, holder| path(category, holder).join(";");
        assert_eq!(text(Category::Parameter, "a.0.weight"), "parameters;a;0;weight");
        assert_eq!(
            text(Category::OptimizerState, "AdamW.exp_avg[a.0.weight]"),
            "optimizer state;AdamW.exp_avg;a;0;weight"
        );
        assert_eq!(text(Category::Saved, "[saved by X]"), "saved for backward;[saved by X]");
        assert_eq!(text(Category::Parameter, "main: a.b"), "parameters;main: a.b");
    }
}
