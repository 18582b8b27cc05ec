//! Two moments by function, by stack or by owner: what grew and what shrank.

use crate::analysis::flame::fold::StackLabel;
use crate::analysis::lines::line_diff::{
    ChangedPlace, ComparedMoment, MemoryChange, StackStep, UNKNOWN_FUNCTION, charged, joined,
    mark_of, ranked,
};
use crate::analysis::owners::ownership::{OwnerPart, OwnerStacks};
use crate::analysis::profile::Profile;

/// Bytes of a snapshot that none of its owners has.
const UNKNOWN_OWNER: &str = "[owner unknown]";

/// What two moments hold by function of the program, the greatest change first. The function is that of the line that is
/// charged; functions of one name in one file are one.
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

/// What two moments hold by stack, the greatest change first. Stacks are the same where `text` says the same of every step.
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

/// What two snapshots of the owners hold by owner, the greatest change first. Owners whose names differ in numbers only, such as
/// the layers of a model, are one.
pub fn ownership_changes(before: &OwnerStacks, after: &OwnerStacks) -> Vec<MemoryChange> {
    ranked(joined(owner_rows(before).into_iter(), owner_rows(after).into_iter()))
}

/// The sum of the rows is what the allocator held at the snapshot.
fn owner_rows(stacks: &OwnerStacks) -> Vec<(ChangedPlace, u64)> {
    let row = |(path, bytes): &(Vec<OwnerPart>, u64)| {
        let texts = path.iter().filter_map(|part| match part {
            OwnerPart::Text(text) => Some(text),
            // Where nameless memory was allocated is no part of who owns it.
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
