//! Memory by `torch.nn.Module`.

use std::collections::BTreeMap;

use super::attribution::Moment;
use super::flame;
use super::folded::{FoldError, FoldOptions, FoldedStack, PseudoFrame, StackLabel};
use super::owners::{OwnerPart, OwnerStacks};
use super::profile::Profile;
use crate::model::{CudaIndex, Nanos, TensorCategory};

/// A module, or why none is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModulePlace {
    /// Its path in the model: names, numbers, `*` for all of a container. Empty: the model itself.
    Module(Vec<String>),
    /// Memory without one.
    Mark(PseudoFrame),
    /// Memory of tensors without one.
    Owned(String),
}

/// What says which module memory belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleEvidence {
    /// The innermost call of a module in the allocating stack: its `self`.
    Calls,
    /// The owner snapshot of this time: parameters, buffers, gradients and optimizer state.
    Owners(Nanos),
}

/// Bytes by module; they add up to `total`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct ModuleBytes {
    pub evidence: ModuleEvidence,
    pub total: u64,
    pub rows: Vec<(ModulePlace, u64)>,
}

impl ModuleBytes {
    fn new(evidence: ModuleEvidence, parts: impl Iterator<Item = (ModulePlace, u64)>) -> Self {
        let mut rows: BTreeMap<ModulePlace, u64> = BTreeMap::new();
        for (place, bytes) in parts.filter(|(_, bytes)| *bytes > 0) {
            *rows.entry(place).or_default() += bytes;
        }
        let total = rows.values().sum();
        ModuleBytes { evidence, total, rows: rows.into_iter().collect() }
    }

    fn has_modules(&self) -> bool {
        self.rows.iter().any(|(place, _)| matches!(place, ModulePlace::Module(_)))
    }
}

/// Bytes that are live at a moment; `None` if the recording tells no module.
///
/// # Errors
///
/// As of a fold by stack.
pub fn live(
    profile: &Profile,
    device: CudaIndex,
    moment: Moment,
) -> Result<Option<ModuleBytes>, FoldError> {
    let options = FoldOptions { by_module: true, ..FoldOptions::default() };
    let folded = flame::fold(profile, device, moment, options)?;
    let parts = folded.stacks.iter().map(|stack| part(profile, stack));
    let by_calls = ModuleBytes::new(ModuleEvidence::Calls, parts);
    // At the peak all may be older.
    if by_calls.has_modules() && profile.exact().is_some() || allocated(profile, device).is_some() {
        return Ok(Some(by_calls));
    }
    let by_owners = profile.owners(device, moment).as_ref().map(of_owners);
    Ok([by_owners, Some(by_calls)].into_iter().flatten().find(ModuleBytes::has_modules))
}

/// All that was allocated while recording; `None` if no stack tells its module.
pub fn allocated(profile: &Profile, device: CudaIndex) -> Option<ModuleBytes> {
    profile.exact()?;
    let options = FoldOptions { by_module: true, churn: true, ..FoldOptions::default() };
    let folded = flame::fold(profile, device, Moment::End, options).ok()?;
    let parts = folded.stacks.iter().map(|stack| part(profile, stack));
    Some(ModuleBytes::new(ModuleEvidence::Calls, parts)).filter(ModuleBytes::has_modules)
}

fn part(profile: &Profile, stack: &FoldedStack) -> (ModulePlace, u64) {
    let stacks = profile.stacks();
    let place = match stack.path[..] {
        [StackLabel::Module(name)] => {
            let name = stacks.get_function(name).map(|function| &*function.name);
            ModulePlace::Module(steps(name.unwrap_or_default()))
        }
        [StackLabel::Pseudo(mark), StackLabel::Owner(category), .., StackLabel::Owner(name)] => {
            let text = |owner| stacks.owners.text(owner).unwrap_or_default();
            let category = text(category).trim_matches(['[', ']']);
            let module = of_tensor(category, text(name));
            module.map_or(ModulePlace::Mark(mark), ModulePlace::Module)
        }
        [StackLabel::Pseudo(mark), ..] if !is_stack(&stack.path) => ModulePlace::Mark(mark),
        _ => ModulePlace::Mark(PseudoFrame::UnknownModule),
    };
    (place, stack.bytes)
}

fn is_stack(path: &[StackLabel]) -> bool {
    path.iter().any(|label| matches!(label, StackLabel::Frame(_) | StackLabel::Native(_)))
}

fn of_owners(stacks: &OwnerStacks) -> ModuleBytes {
    let parts = stacks.paths.iter().map(|(path, bytes)| {
        let texts: Vec<&str> = path
            .iter()
            .filter_map(|part| match part {
                OwnerPart::Text(text) => Some(&**text),
                OwnerPart::AllocatedAt(_) => None,
            })
            .collect();
        (of_owner_path(&texts), *bytes)
    });
    ModuleBytes::new(ModuleEvidence::Owners(stacks.time), parts)
}

/// The path of [`OwnerStacks`]: category, optimizer's state, modules, tensor.
fn of_owner_path(path: &[&str]) -> ModulePlace {
    let Some((&category, rest)) = path.split_first() else {
        return ModulePlace::Mark(PseudoFrame::UnknownModule);
    };
    let owned = || ModulePlace::Owned(category.to_owned());
    let skipped = usize::from(category == TensorCategory::OptimizerState.name());
    let is_variable = |text: &&str| text.contains(": ") || text.starts_with('[');
    match rest.get(skipped..).unwrap_or_default() {
        [modules @ .., _] if has_module(category) && !rest.iter().any(is_variable) => {
            ModulePlace::Module(modules.iter().map(|text| (*text).to_owned()).collect())
        }
        _ => owned(),
    }
}

fn has_module(category: &str) -> bool {
    [
        TensorCategory::Parameter,
        TensorCategory::Buffer,
        TensorCategory::Gradient,
        TensorCategory::OptimizerState,
    ]
    .iter()
    .any(|known| known.name() == category)
}

/// The module of a tensor named `layers.*.weight` or `Adam.exp_avg[layers.*.weight]`.
fn of_tensor(category: &str, name: &str) -> Option<Vec<String>> {
    if !has_module(category) {
        return None;
    }
    let name = match category == TensorCategory::OptimizerState.name() {
        true => name.split_once('[')?.1.strip_suffix(']')?,
        false => name,
    };
    // A pattern of whole names tells no module.
    if name == "*" || name.contains(": ") || name.contains('[') {
        return None;
    }
    let mut steps = steps(name);
    steps.pop();
    Some(steps)
}

fn steps(path: &str) -> Vec<String> {
    path.split('.').map(str::to_owned).collect()
}

/// Modules that are shown as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleGroup {
    /// `layers[*].mlp`, `layers.3`, or a mark.
    pub name: String,
    /// Different modules in it; 0 if they are not told apart.
    pub modules: u64,
    /// Bytes in each list that was grouped.
    pub bytes: Vec<u64>,
}

/// Groups lists of bytes by module, the most of the first list first. Without a `depth`, numbers
/// of containers become `[*]`; else the first `depth` steps of each path are shown as they are.
pub fn groups(lists: &[&[(ModulePlace, u64)]], depth: Option<usize>) -> Vec<ModuleGroup> {
    type GroupedModules<'a> = BTreeMap<&'a ModulePlace, ()>;
    let mut groups: BTreeMap<String, (GroupedModules<'_>, Vec<u64>)> = BTreeMap::new();
    for (number, list) in lists.iter().enumerate() {
        for (place, bytes) in *list {
            let (members, sums) = groups
                .entry(group_name(place, depth))
                .or_insert_with(|| (GroupedModules::new(), vec![0; lists.len()]));
            // A pattern is not one more module.
            let is_one =
                |steps: &[String]| !steps.is_empty() && steps.iter().all(|step| step != "*");
            if matches!(place, ModulePlace::Module(steps) if is_one(steps)) {
                members.insert(place, ());
            }
            sums[number] += bytes;
        }
    }
    let group = |(name, (members, bytes)): (String, (GroupedModules<'_>, Vec<u64>))| ModuleGroup {
        name,
        modules: members.len() as u64,
        bytes,
    };
    let mut groups: Vec<ModuleGroup> = groups.into_iter().map(group).collect();
    groups.sort_by(|a, b| (&b.bytes, &a.name).cmp(&(&a.bytes, &b.name)));
    groups
}

fn group_name(place: &ModulePlace, depth: Option<usize>) -> String {
    match place {
        ModulePlace::Module(steps) if steps.is_empty() => "(the model)".to_owned(),
        ModulePlace::Module(steps) => {
            let shown = &steps[..depth.unwrap_or(usize::MAX).min(steps.len())];
            joined(shown, depth.is_none())
        }
        ModulePlace::Mark(mark) => mark.text().to_owned(),
        ModulePlace::Owned(category) => format!("[{category}, no module]"),
    }
}

fn joined(steps: &[String], merges: bool) -> String {
    let mut text = String::new();
    for step in steps {
        match is_member(step) && (merges || step == "*") {
            true => text += "[*]",
            false => {
                if !text.is_empty() {
                    text.push('.');
                }
                text += step;
            }
        }
    }
    text
}

/// Whether it is one of a container's modules.
fn is_member(step: &str) -> bool {
    step == "*" || !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit())
}

/// The steps of a picture: `layers[*]` contains `3`.
pub fn nested_steps(place: &ModulePlace, depth: Option<usize>) -> Vec<String> {
    let ModulePlace::Module(steps) = place else { return vec![group_name(place, None)] };
    if steps.is_empty() {
        return vec![group_name(place, None)];
    }
    let mut nested: Vec<String> = Vec::new();
    for step in steps.iter().take(depth.unwrap_or(usize::MAX)) {
        if !is_member(step) {
            nested.push(step.clone());
            continue;
        }
        // The model may be a container itself.
        match nested.last_mut() {
            Some(container) => container.push_str("[*]"),
            None => nested.push("[*]".to_owned()),
        }
        nested.extend((step != "*").then(|| step.clone()));
    }
    nested
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> ModulePlace {
        ModulePlace::Module(steps(path))
    }

    #[test]
    fn alike_layers_are_one_group_that_opens() {
        let list = [
            (module("h.0.mlp.fc"), 40),
            (module("h.1.mlp.fc"), 50),
            (module("h.*.attn"), 20),
            (module("wte"), 30),
            (ModulePlace::Mark(PseudoFrame::OutsideModules), 7),
        ];
        let shown = |depth| -> Vec<(String, u64, u64)> {
            let groups = groups(&[&list], depth).into_iter();
            groups.map(|group| (group.name, group.modules, group.bytes[0])).collect()
        };
        let row = |name: &str, modules, bytes| (name.to_owned(), modules, bytes);
        assert_eq!(
            shown(None),
            [
                row("h[*].mlp.fc", 2, 90),
                row("wte", 1, 30),
                row("h[*].attn", 0, 20),
                row("[outside modules]", 0, 7),
            ]
        );
        assert_eq!(
            shown(Some(2)),
            [
                row("h.1", 1, 50),
                row("h.0", 1, 40),
                row("wte", 1, 30),
                row("h[*]", 0, 20),
                row("[outside modules]", 0, 7),
            ]
        );
        assert_eq!(shown(Some(1))[0], row("h", 2, 110));
        assert_eq!(nested_steps(&list[0].0, None), ["h[*]", "0", "mlp", "fc"]);
        assert_eq!(nested_steps(&list[2].0, None), ["h[*]", "attn"]);
        assert_eq!(nested_steps(&list[0].0, Some(2)), ["h[*]", "0"]);
        assert_eq!(nested_steps(&module("1.0.fc"), None), ["[*]", "1[*]", "0", "fc"]);
        assert_eq!(groups(&[&[(module("1.0.fc"), 1)]], None)[0].name, "[*][*].fc");
    }

    #[test]
    fn tensors_belong_to_the_module_before_their_last_step() {
        let of = |category: &str, name| of_tensor(category, name).map(|steps| steps.join("."));
        assert_eq!(of("parameters", "h.*.fc.weight").as_deref(), Some("h.*.fc"));
        assert_eq!(of("optimizer state", "AdamW.exp_avg[h.*.bias]").as_deref(), Some("h.*"));
        assert_eq!(of("optimizer state", "AdamW.exp_avg[*]"), None);
        assert_eq!(of("parameters", "main: weights"), None);
        assert_eq!(of("saved for backward", "[saved by X]"), None);
        let owned = |path: &[&str]| of_owner_path(path);
        assert_eq!(owned(&["gradients", "h", "0", "weight"]), module("h.0"));
        assert_eq!(owned(&["optimizer state", "Adam.exp_avg", "h", "0", "bias"]), module("h.0"));
        let other = ModulePlace::Owned("other tensors".to_owned());
        assert_eq!(owned(&["other tensors", "main: kept"]), other);
    }
}
