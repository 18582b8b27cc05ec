//! The parts of a room (a folder or file directly in it) form no circle of imports. Calls of
//! methods that another part defines are not seen.

use std::collections::{BTreeMap, BTreeSet};

use super::floors::Sources;
use super::source::UsedPath;

/// Rooms large enough to have an order of their own.
const ROOMS: [&str; 5] = ["analysis", "render", "python", "sampler", "cli"];

/// Circles still there: their room and parts. Only shorter ones may replace them.
const CIRCLES: &[(&str, &[&str])] = &[("python", &["code", "follow", "heap", "stacks"])];

/// Which parts of a room import which.
type Arrows<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Circles that are not listed, and listed ones that are gone.
pub fn complaints(sources: &Sources) -> Vec<String> {
    let found: BTreeSet<(&str, Vec<&str>)> = ROOMS
        .into_iter()
        .flat_map(|room| circles(&arrows(sources, room)).into_iter().map(move |it| (room, it)))
        .collect();
    let listed: BTreeSet<(&str, Vec<&str>)> =
        CIRCLES.iter().map(|(room, parts)| (*room, parts.to_vec())).collect();
    let text = |(room, parts): &(&str, Vec<&str>)| format!("{room}: {}", parts.join(", "));
    let new = found.difference(&listed).map(|it| format!("a circle of parts in {}", text(it)));
    let gone = listed.difference(&found).map(|it| format!("no circle any more in {}", text(it)));
    new.chain(gone).collect()
}

/// Of the files below `src/ROOM`, by part; through the room's re-exports.
fn arrows<'a>(sources: &'a Sources, room: &str) -> Arrows<'a> {
    let of_room: Vec<_> = sources.values().filter(|source| source.room() == room).collect();
    let parts: BTreeSet<&str> =
        of_room.iter().filter_map(|source| source.module.get(1)).map(String::as_str).collect();
    let opening = of_room.iter().find(|source| source.module.len() == 1);
    let mut arrows: Arrows<'a> = parts.iter().map(|part| (*part, BTreeSet::new())).collect();
    for source in &of_room {
        let Some(from) = source.module.get(1).map(String::as_str) else { continue };
        for path in &source.paths {
            let UsedPath::Own(names) = path else { continue };
            let [first, name, ..] = &names[..] else { continue };
            if first != room {
                continue;
            }
            let handed_on = opening.and_then(|opening| opening.exports.get(name));
            let to = match handed_on {
                Some(UsedPath::Own(names)) if !parts.contains(name.as_str()) => names.get(1),
                // `pub use part::Name`, without `self`.
                Some(UsedPath::External(names)) if !parts.contains(name.as_str()) => names.first(),
                _ => Some(name),
            };
            let to = to.and_then(|to| parts.get(to.as_str()));
            if let (Some(to), Some(arrows)) = (to, arrows.get_mut(from))
                && *to != from
            {
                arrows.insert(to);
            }
        }
    }
    arrows
}

/// Parts that reach each other, as sorted groups of two or more.
fn circles<'a>(arrows: &Arrows<'a>) -> BTreeSet<Vec<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&'a str>> =
        arrows.keys().map(|part| (*part, reached(arrows, part))).collect();
    let circle = |part: &&'a str| -> Vec<&'a str> {
        arrows
            .keys()
            .filter(|other| reached[*part].contains(**other) && reached[**other].contains(*part))
            .copied()
            .collect()
    };
    arrows.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

fn reached<'a>(arrows: &Arrows<'a>, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut left = vec![from];
    while let Some(part) = left.pop() {
        let next = arrows.get(part).into_iter().flatten();
        left.extend(next.filter(|next| found.insert(**next)).copied());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::*;

    #[test]
    fn a_circle_through_a_reexport_is_found() {
        for reexport in ["pub use two::Two;", "pub use self::two::Two;"] {
            let files: [(&[&str], &str); 3] = [
                (&["analysis"], reexport),
                (&["analysis", "one"], "use crate::analysis::Two;"),
                (&["analysis", "two"], "use crate::analysis::one::One;"),
            ];
            let sources: Sources = files
                .map(|(module, text)| {
                    let names: Vec<String> = module.iter().map(|it| (*it).to_owned()).collect();
                    (names.join("/"), Source::parse(text, names))
                })
                .into();
            let found = circles(&arrows(&sources, "analysis"));
            assert_eq!(found, BTreeSet::from([vec!["one", "two"]]), "{reexport}");
        }
    }

    #[test]
    fn a_circle_of_three_is_found_and_a_chain_is_not() {
        let arrows = |pairs: &[(&'static str, &'static str)]| {
            let mut arrows = Arrows::new();
            for (from, to) in pairs {
                arrows.entry(from).or_default().insert(to);
                arrows.entry(to).or_default();
            }
            arrows
        };
        assert!(circles(&arrows(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
        let circle = arrows(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]);
        assert_eq!(circles(&circle), BTreeSet::from([vec!["a", "b", "c"]]));
    }
}
