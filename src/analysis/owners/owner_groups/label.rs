//! The names of groups.

use super::{OwnerGroup, OwnerKind};
use crate::model::{TensorCategory, count};
use crate::ownership::with_attributes;

/// `parameters of main: model`, `server: sessions[*].keys`; with the job's own characters.
pub fn raw_group_label(group: &OwnerGroup) -> String {
    let members = |what: &str| match group.members {
        0 | 1 => String::new(),
        members => format!(" ({} {what})", count(members)),
    };
    let of = |what: &str| match group.owner.is_empty() {
        true => group.category.name().to_owned(),
        false => format!("{} of {}{}", group.category.name(), group.owner, members(what)),
    };
    let category = group.category.name();
    let label = match &group.kind {
        OwnerKind::Model => of("models"),
        OwnerKind::Optimizer => of("optimizers"),
        OwnerKind::Graph => format!("{category}, alive by {}{}", group.owner, members("graphs")),
        OwnerKind::UnknownGraph if group.owner.is_empty() => {
            format!("{category}, no variable leads to the graph")
        }
        OwnerKind::UnknownGraph => format!("{category}, {}", group.owner),
        OwnerKind::Garbage if group.owner.is_empty() => "garbage in reference cycles".to_owned(),
        OwnerKind::Garbage => {
            format!("garbage in reference cycles of {}: {category}", group.owner)
        }
        OwnerKind::NoTensor => group.owner.clone(),
        OwnerKind::Variable => {
            let tail = match group.patterns.as_slice() {
                [only] => only.tail.as_str(),
                _ => "",
            };
            let prefix = match group.category {
                TensorCategory::Other => String::new(),
                _ => format!("{category}: "),
            };
            let shape = match &group.largest_shape {
                Some(shape) if group.owner.starts_with('[') => format!(", largest {shape}"),
                _ => String::new(),
            };
            format!("{prefix}{}{tail}{shape}", group.owner)
        }
    };
    with_attributes(&label)
}
