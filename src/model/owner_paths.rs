//! Numbered paths to owners: `[parameters]`, `layers[*].weight`.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Number of a path in an [`OwnerPaths`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub u32);

/// Paths to owners: a parent and a last step each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerPaths {
    nodes: Vec<(Option<OwnerId>, Arc<str>)>,
    ids: FxHashMap<(Option<OwnerId>, Arc<str>), OwnerId>,
}

impl OwnerPaths {
    /// The path's number, added if new; `None` without steps.
    pub fn intern<T: AsRef<str>>(&mut self, steps: &[T]) -> Option<OwnerId> {
        let mut path = None;
        for step in steps {
            let key = (path, Arc::from(step.as_ref()));
            let next = OwnerId(self.nodes.len() as u32);
            path = Some(match self.ids.get(&key) {
                Some(&known) => known,
                None => {
                    self.nodes.push(key.clone());
                    self.ids.insert(key, next);
                    next
                }
            });
        }
        path
    }

    /// The path's number, if known.
    pub fn find(&self, steps: &[Arc<str>]) -> Option<OwnerId> {
        let mut path = None;
        for step in steps {
            path = Some(*self.ids.get(&(path, step.clone()))?);
        }
        path
    }

    /// The last step.
    pub fn text(&self, id: OwnerId) -> Option<&str> {
        self.nodes.get(id.0 as usize).map(|(_, text)| &**text)
    }

    /// Ancestors and itself, outermost first.
    pub fn steps(&self, id: OwnerId) -> Vec<OwnerId> {
        let mut steps = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            let Some((parent, _)) = self.nodes.get(id.0 as usize) else { break };
            steps.push(id);
            next = *parent;
        }
        steps.reverse();
        steps
    }

    /// Text of its steps, outermost first.
    pub fn texts(&self, id: OwnerId) -> Vec<Arc<str>> {
        let steps = self.steps(id).into_iter();
        steps.filter_map(|id| Some(self.nodes.get(id.0 as usize)?.1.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_its_number_and_steps() {
        let mut paths = OwnerPaths::default();
        let weight = paths.intern(&["[parameters]", "weight"]).unwrap();
        let bias = paths.intern(&["[parameters]", "bias"]).unwrap();
        assert_eq!(paths.intern(&["[parameters]", "weight"]), Some(weight));
        assert_ne!(weight, bias);
        assert_eq!(paths.steps(weight)[0], paths.steps(bias)[0]);
        assert_eq!(paths.find(&paths.texts(bias)), Some(bias));
        assert_eq!(paths.text(bias), Some("bias"));
        assert_eq!(paths.intern::<&str>(&[]), None);
    }
}
