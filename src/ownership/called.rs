//! Finds tensors by name or address.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::attribute_names::with_attributes;
use super::name_pattern::{NamePart, name_parts};
use crate::model::TensorRow;

/// The tensors that a word names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedTensors {
    /// Their row numbers; may be empty.
    Rows(Vec<usize>),
    /// Several full names match.
    Ambiguous(Vec<Arc<str>>),
}

/// Finds them by full name; by address of object, tensor or memory (`0x…`, or decimal as in `id()`
/// and JSON); by unique name without function or `__main__`; or, for an owner's name
/// (`server: sessions`, `losses[*]`), the largest tensor behind it.
pub fn called(rows: &[TensorRow], word: &str) -> NamedTensors {
    let which = |is_meant: &dyn Fn(&TensorRow) -> bool| -> Vec<usize> {
        (0..).zip(rows).filter(|(_, row)| is_meant(row)).map(|(index, _)| index).collect()
    };
    let is_whole = |name: &Arc<str>| is_shown_or_read(name, &|name| name == word);
    let whole = which(&|row| row.names.iter().any(is_whole));
    if !whole.is_empty() {
        return NamedTensors::Rows(whole);
    }
    let address = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    };
    if let Some(address) = address.filter(|address| *address != 0) {
        return NamedTensors::Rows(which(&|row| {
            let storage = row.tensor.storage.map(|storage| storage.data);
            [row.object, Some(row.tensor.at), storage].contains(&Some(address))
        }));
    }
    let is_short =
        |name: &Arc<str>| is_shown_or_read(name, &|name| without_scope(name) == Some(word));
    let short = which(&|row| row.names.iter().any(is_short));
    let names: BTreeSet<Arc<str>> = short
        .iter()
        .flat_map(|&row| &rows[row].names)
        .filter(|name| is_short(name))
        .cloned()
        .collect();
    // Several names of one tensor are not ambiguous.
    match short.len() > 1 && names.len() > 1 {
        true => NamedTensors::Ambiguous(names.into_iter().collect()),
        false if short.is_empty() => NamedTensors::Rows(largest_of(rows, word)),
        false => NamedTensors::Rows(short),
    }
}

/// The largest tensor of an owner, if any.
fn largest_of(rows: &[TensorRow], owner: &str) -> Vec<usize> {
    let begins = |name: &str| {
        let rest = name.strip_prefix(owner);
        rest.is_some_and(|rest| rest.starts_with(['.', '[', '{', '…']))
    };
    let is_it = |name: &str| begins(name) || fits(owner, name);
    let is_of_owner = |name: &Arc<str>| {
        is_shown_or_read(name, &|name| is_it(name) || without_scope(name).is_some_and(is_it))
    };
    let behind = (0..rows.len()).filter(|&row| rows[row].names.iter().any(is_of_owner));
    let bytes = |&row: &usize| rows[row].tensor.storage.map_or(0, |storage| storage.memory());
    behind.max_by_key(|row| (bytes(row), std::cmp::Reverse(*row))).into_iter().collect()
}

/// Whether a name is meant, as it was read or as tables show it: modules as attributes.
fn is_shown_or_read(name: &str, is_meant: &dyn Fn(&str) -> bool) -> bool {
    is_meant(name) || is_meant(&with_attributes(name))
}

/// Whether a name is of a pattern in which some indices and keys are `*`.
fn fits(pattern: &str, name: &str) -> bool {
    let (of_pattern, of_name) = (name_parts(pattern), name_parts(name));
    let is_part = |(wanted, part): (&NamePart<'_>, &NamePart<'_>)| {
        wanted.text == part.text || part.wildcard == Some(wanted.text)
    };
    pattern.contains('*')
        && of_pattern.len() == of_name.len()
        && of_pattern.iter().zip(&of_name).all(is_part)
}

fn without_scope(name: &str) -> Option<&str> {
    match name.split_once(": ") {
        Some((_, name)) => Some(name),
        None => name.strip_prefix("__main__."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::fixture;

    fn row(at: u64, names: &[&str]) -> TensorRow {
        let names = names.iter().map(|&name| name.into()).collect();
        TensorRow { names, ..fixture::row(at) }
    }

    #[test]
    fn unique_names_need_no_scope() {
        let rows = [
            row(16, &["train: losses[0]", "main: losses[0]"]),
            row(32, &["main: x", "x.y: z"]),
            row(48, &["helper: x"]),
            row(64, &["main: cache[…]"]),
            row(80, &["main: cache[…]"]),
            row(96, &[r#"main: net._modules["fc"]._modules["3"].seen[0]"#]),
        ];
        let rows_of = |word| match called(&rows, word) {
            NamedTensors::Rows(rows) => rows,
            NamedTensors::Ambiguous(names) => panic!("{names:?}"),
        };
        assert_eq!(rows_of("train: losses[0]"), [0]);
        assert_eq!(rows_of("losses[0]"), [0]);
        assert_eq!(rows_of("main: x"), [1]);
        assert_eq!(rows_of("cache[…]"), [3, 4]);
        assert_eq!((rows_of("33"), rows_of("0x20"), rows_of("0")), (vec![1], vec![1], Vec::new()));
        assert!(rows_of("nobody").is_empty());
        assert!(rows_of("main: cac").is_empty());
        assert_eq!(rows_of("main: cache"), [3]);
        assert_eq!(rows_of("cache"), [3]);
        assert_eq!(rows_of("main: losses[*]"), [0]);
        assert_eq!(rows_of("main: net.fc[3].seen[0]"), [5]);
        assert_eq!(rows_of("net.fc[3].seen[*]"), [5]);
        assert_eq!(rows_of("net.fc[3].seen"), [5]);
        assert_eq!(
            called(&rows, "x"),
            NamedTensors::Ambiguous(vec!["helper: x".into(), "main: x".into()])
        );
    }
}
