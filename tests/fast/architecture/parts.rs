//! The parts of a room (a folder or file directly in it) form no circle of imports, and a type's
//! methods are in its own part. So calls of methods form no circle either: who gets a value imports
//! its type's part, or a part that does. A part's modules are private: others import what its
//! `mod.rs` exports, and the compiler sees to it.

use std::collections::{BTreeMap, BTreeSet};

use super::floors::Sources;
use super::source::{Source, UsedPath};

/// Rooms large enough to have an order of their own.
const ROOMS: [&str; 5] = ["analysis", "render", "python", "sampler", "cli"];

/// Modules whose functions need the module's name to be understood, such as `line_notes::why`.
const NAMED_WITH_FUNCTIONS: [&str; 4] = [
    "analysis::flame::paths",
    "python::layouts::interpreter",
    "python::layouts::layout_tables",
    "render::shared::line_notes",
];

/// Which parts of a room import which.
type Arrows<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Circles, methods outside a type's part, and modules of a part that others may import.
pub fn complaints(sources: &Sources) -> Vec<String> {
    let circles = ROOMS.into_iter().flat_map(|room| {
        let circles = circles(&arrows(sources, room)).into_iter();
        circles.map(move |parts| format!("a circle of parts in {room}: {}", parts.join(", ")))
    });
    circles.chain(outside_methods(sources)).chain(open_modules(sources)).collect()
}

fn open_modules(sources: &Sources) -> Vec<String> {
    let mut complaints = Vec::new();
    for (file, source) in sources {
        let [room, part] = &source.module[..] else { continue };
        for module in source.open_modules.iter().filter(|_| ROOMS.contains(&room.as_str())) {
            let name = format!("{room}::{part}::{module}");
            if !NAMED_WITH_FUNCTIONS.contains(&name.as_str()) {
                complaints.push(format!("{file}: {name} is open; export its items instead"));
            }
        }
    }
    complaints
}

/// A room's parts, and what it re-exports.
struct Parts<'a> {
    names: BTreeSet<&'a str>,
    opening: Option<&'a Source>,
}

impl<'a> Parts<'a> {
    fn of(sources: &'a Sources, room: &str) -> Parts<'a> {
        let of_room = || sources.values().filter(move |source| source.room() == room);
        let names = of_room().filter_map(|source| source.module.get(1)).map(String::as_str);
        Parts { names: names.collect(), opening: of_room().find(|source| source.module.len() == 1) }
    }

    /// The part that defines `name`, perhaps through a re-export; or the part of that name.
    fn home(&self, name: &str) -> Option<&'a str> {
        let handed_on = self.opening.and_then(|opening| opening.exports.get(name));
        let home = match handed_on {
            Some(UsedPath::Own(names)) if !self.names.contains(name) => names.get(1)?,
            // `pub use part::Name`, without `self`.
            Some(UsedPath::External(names)) if !self.names.contains(name) => names.first()?,
            _ => name,
        };
        self.names.get(home).copied()
    }
}

/// Of the files below `src/ROOM`, by part; through the room's re-exports.
fn arrows<'a>(sources: &'a Sources, room: &str) -> Arrows<'a> {
    let parts = Parts::of(sources, room);
    let mut arrows: Arrows<'a> = parts.names.iter().map(|part| (*part, BTreeSet::new())).collect();
    for source in sources.values().filter(|source| source.room() == room) {
        let Some(from) = source.module.get(1).map(String::as_str) else { continue };
        for path in &source.paths {
            let UsedPath::Own(names) = path else { continue };
            let [first, name, ..] = &names[..] else { continue };
            if first != room {
                continue;
            }
            if let (Some(to), Some(arrows)) = (parts.home(name), arrows.get_mut(from))
                && to != from
            {
                arrows.insert(to);
            }
        }
    }
    arrows
}

/// Methods of a part's type that are outside that part.
fn outside_methods(sources: &Sources) -> Vec<String> {
    let rooms: BTreeMap<&str, Parts<'_>> =
        ROOMS.into_iter().map(|room| (room, Parts::of(sources, room))).collect();
    let mut complaints = Vec::new();
    for (file, source) in sources {
        for path in &source.extended {
            let UsedPath::Own(names) = path else { continue };
            let [room, name, ..] = &names[..] else { continue };
            let Some(home) = rooms.get(room.as_str()).and_then(|parts| parts.home(name)) else {
                continue;
            };
            if source.module.get(..2) != Some(&[room.clone(), home.to_owned()][..]) {
                complaints.push(format!("{file}: methods of {} outside {home}", names.join("::")));
            }
        }
    }
    complaints
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
    use super::*;

    fn sources(files: [(&[&str], &str); 3]) -> Sources {
        files
            .map(|(module, text)| {
                let names: Vec<String> = module.iter().map(|it| (*it).to_owned()).collect();
                (names.join("/"), Source::parse(text, names))
            })
            .into()
    }

    #[test]
    fn a_circle_through_a_reexport_is_found() {
        for reexport in ["pub use two::Two;", "pub use self::two::Two;"] {
            let sources = sources([
                (&["analysis"], reexport),
                (&["analysis", "one"], "use crate::analysis::Two;"),
                (&["analysis", "two"], "use crate::analysis::one::One;"),
            ]);
            let found = circles(&arrows(&sources, "analysis"));
            assert_eq!(found, BTreeSet::from([vec!["one", "two"]]), "{reexport}");
        }
    }

    #[test]
    fn methods_outside_the_part_of_their_type_are_found() {
        let of_two = |user: &str| {
            let own = "struct Two; impl Two { fn own(&self) {} }";
            let files: [(&[&str], &str); 3] = [
                (&["analysis"], "pub use two::Two;"),
                (&["analysis", "one"], user),
                (&["analysis", "two"], own),
            ];
            outside_methods(&sources(files)).len()
        };
        for import in ["use crate::analysis::Two;", "use super::two::Two;"] {
            assert_eq!(of_two(&format!("{import} impl Two {{ fn more(&self) {{}} }}")), 1);
            assert_eq!(of_two(&format!("{import} impl Clone for Two {{}}")), 0);
        }
    }

    #[test]
    fn an_open_module_of_a_part_is_found() {
        let of_mod = |text: &str| {
            let one: (&[&str], &str) = (&["analysis", "one"], text);
            let other: (&[&str], &str) = (&["analysis", "one", "inner"], "pub mod tables;");
            open_modules(&sources([(&["analysis"], "pub mod one;"), one, other])).len()
        };
        assert_eq!(of_mod("mod inner; pub use inner::Item;"), 0);
        for text in ["pub mod inner;", "pub(super) mod inner;"] {
            assert_eq!(of_mod(text), 1, "{text}");
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
