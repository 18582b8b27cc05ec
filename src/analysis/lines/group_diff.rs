//! Compares two moments by function, stack or owner.

use crate::analysis::folded::StackLabel;
use crate::analysis::lines::line_diff::{
    ChangedPlace, ComparedMoment, MemoryChange, StackStep, UNKNOWN_FUNCTION, charged, joined,
    mark_of, ranked,
};
use crate::analysis::owners::{OwnerPart, OwnerStacks};
use crate::analysis::profile::Profile;

const UNKNOWN_OWNER: &str = "[owner unknown]";

/// By function of the attributed line; functions of one name in one file count as one.
pub fn function_changes(
    before: ComparedMoment<'_>,
    after: ComparedMoment<'_>,
    file: &dyn Fn(&Profile, &str) -> String,
) -> Vec<MemoryChange> {
    let rows = |ComparedMoment { profile, folded }| {
        folded.stacks.iter().map(move |stack| {
            let Some(frame) = charged(profile, &stack.path) else {
                return (ChangedPlace::Without(mark_of(&stack.path)), stack.bytes);
            };
            let place = match profile.stacks().get_function(frame.function) {
                None => ChangedPlace::Without(UNKNOWN_FUNCTION.to_owned()),
                Some(function) => ChangedPlace::Function {
                    file: file(profile, &function.file),
                    function: function.name.to_string(),
                },
            };
            (place, stack.bytes)
        })
    };
    ranked(joined(rows(before), rows(after)))
}

/// By stack; stacks are equal if all frames have equal `text`.
pub fn stack_changes(
    before: ComparedMoment<'_>,
    after: ComparedMoment<'_>,
    text: &dyn Fn(&Profile, StackLabel) -> String,
) -> Vec<MemoryChange> {
    let rows = |ComparedMoment { profile, folded }| {
        folded.stacks.iter().map(move |stack| {
            let step = |label: &StackLabel| StackStep {
                text: text(profile, *label),
                library: is_of_library(profile, *label),
            };
            (ChangedPlace::Stack(stack.path.iter().rev().map(step).collect()), stack.bytes)
        })
    };
    ranked(joined(rows(before), rows(after)))
}

fn is_of_library(profile: &Profile, label: StackLabel) -> bool {
    let StackLabel::Frame(frame) = label else { return false };
    profile.stacks().get_function(frame.function).is_some_and(|f| f.is_of_library())
}

/// By owner; names that differ only in numbers (layers of a model) count as one.
pub fn ownership_changes(before: &OwnerStacks, after: &OwnerStacks) -> Vec<MemoryChange> {
    ranked(joined(owner_rows(before).into_iter(), owner_rows(after).into_iter()))
}

/// The rows add up to all allocated bytes.
fn owner_rows(stacks: &OwnerStacks) -> Vec<(ChangedPlace, u64)> {
    let row = |(path, bytes): &(Vec<OwnerPart>, u64)| {
        let texts = path.iter().filter_map(|part| match part {
            OwnerPart::Text(text) => Some(text),
            OwnerPart::AllocatedAt(_) => None,
        });
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let texts = texts.map(|t| if is_number(t) { "*".to_owned() } else { t.clone() });
        (ChangedPlace::Owner(texts.collect()), *bytes)
    };
    let mut rows: Vec<_> = stacks.paths.iter().map(row).collect();
    let known: u64 = rows.iter().map(|(_, bytes)| bytes).sum();
    rows.push((
        ChangedPlace::Without(UNKNOWN_OWNER.to_owned()),
        stacks.allocated.saturating_sub(known),
    ));
    rows
}
