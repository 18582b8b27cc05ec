//! A differential flamegraph: each frame has the colour of its own and its callees' difference.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Write;

use super::collapsed::{NameStyle, stacks};
use super::frame_tree::{DrawnStack, drawn_stacks};
use super::picture::{FlamePicture, PictureHeads, draw};
use crate::analysis::ComparedMoment;
use crate::render::shared::{EscapeGuard, OutputError, bytes};

/// Frames have no lines, as these may have moved.
fn both(
    before: ComparedMoment<'_>,
    after: ComparedMoment<'_>,
    style: NameStyle,
) -> BTreeMap<String, (u64, u64)> {
    let style = NameStyle { functions_only: true, ..style };
    let mut both: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (stack, bytes) in stacks(before.profile, before.folded, style) {
        both.entry(stack).or_default().0 += bytes;
    }
    for (stack, bytes) in stacks(after.profile, after.folded, style) {
        both.entry(stack).or_default().1 += bytes;
    }
    both.retain(|_, (before, after)| *before > 0 || *after > 0);
    both
}

/// Draws `after`, coloured by the difference from `before`.
pub fn flame_diff(
    out: &mut dyn Write,
    before: ComparedMoment<'_>,
    after: ComparedMoment<'_>,
    style: NameStyle,
    picture: &FlamePicture,
) -> Result<(), OutputError> {
    let both = both(before, after, style);
    let drawn_style = NameStyle { functions_only: true, ..style };
    let stacks = |moment: ComparedMoment<'_>| {
        drawn_stacks(moment.profile, moment.folded, drawn_style).into_iter()
    };
    let earlier = stacks(before).map(|stack| DrawnStack { size: stack.size.earlier(), ..stack });
    let stacks: Vec<DrawnStack> = stacks(after).chain(earlier).collect();
    let gone: u64 = both.values().filter(|(_, after)| *after == 0).map(|(before, _)| before).sum();
    let (old, new) = (before.folded.total, after.folded.total);
    let difference = match new.cmp(&old) {
        Ordering::Greater => format!("{} more", bytes(new - old)),
        Ordering::Less => format!("{} less", bytes(old - new)),
        Ordering::Equal => "no difference in total".to_owned(),
    };
    let title =
        format!("GPU memory: {} now, {} in the other, {difference}", bytes(new), bytes(old));
    let mut subtitle = "width: now; colour: the difference".to_owned();
    if gone > 0 {
        subtitle += &format!("; {} of the other are in stacks that hold nothing now", bytes(gone));
    }
    let heads =
        PictureHeads { is_difference: true, ..PictureHeads::new(title, subtitle, "Function:") };
    draw(out, &stacks, heads, picture)
}

/// Writes both counts, as `difffolded.pl` and inferno do.
pub fn collapsed_diff(
    out: &mut dyn Write,
    before: ComparedMoment<'_>,
    after: ComparedMoment<'_>,
    style: NameStyle,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for (stack, (before, after)) in both(before, after, style) {
        writeln!(out, "{stack} {before} {after}")?;
    }
    Ok(())
}
