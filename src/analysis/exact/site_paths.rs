//! The paths of accounts, from the stacks of their sites.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ExactProfile;
use super::live_blocks::{BEFORE, NO_EVENT, NO_SITE, OWNED, SITES, SMALL};
use super::native_frames::{is_engine_main, is_forwarding};
use crate::analysis::folded::{FoldOptions, PseudoFrame, StackLabel, before_path};
use crate::model::{AllocationSite, SiteId, StackId, StackSource, StackTable};

/// The first site of each class of nodes: its id stands for all nodes of the class.
pub(super) type FirstNodes = FxHashMap<Arc<str>, SiteId>;

/// A path in the making, outermost frame first.
struct PathLabels<'a> {
    table: &'a StackTable,
    labels: Vec<StackLabel>,
}

impl PathLabels<'_> {
    fn pseudo(&mut self, frame: PseudoFrame) {
        self.labels.push(StackLabel::Pseudo(frame));
    }

    fn stack(&mut self, stack: StackId) {
        let table = self.table;
        let from = self.labels.len();
        self.labels.extend(table.frames(stack).filter_map(|frame| {
            let native = table.get_function(frame.function).filter(|it| it.is_native);
            match native.map(is_forwarding) {
                None => Some(StackLabel::Frame(frame)),
                Some(false) => Some(StackLabel::Native(frame)),
                Some(true) => None,
            }
        }));
        self.labels[from..].reverse();
    }

    /// The engine, and the line that made its node.
    fn autograd(&mut self, forward: Option<StackId>) {
        self.pseudo(PseudoFrame::AutogradThread);
        if let Some(forward) = forward {
            self.pseudo(PseudoFrame::BackwardOf);
            self.stack(forward);
        }
    }

    /// From the engine's main function on, if the stack has it.
    fn native_in_engine(&mut self, native: StackId) {
        let from = self.labels.len();
        self.stack(native);
        let is_main = |label: &StackLabel| match label {
            StackLabel::Native(frame) => {
                self.table.get_function(frame.function).is_some_and(is_engine_main)
            }
            _ => false,
        };
        let started = self.labels[from..].iter().position(is_main).unwrap_or(0);
        self.labels.drain(from..from + started);
    }
}

impl ExactProfile {
    /// Outermost frame first.
    pub(crate) fn account_path(&self, account: usize, table: &StackTable) -> Vec<StackLabel> {
        self.path_of(account, FoldOptions::default(), table, &mut FirstNodes::default())
    }

    pub(super) fn path_of(
        &self,
        account: usize,
        options: FoldOptions,
        table: &StackTable,
        nodes: &mut FirstNodes,
    ) -> Vec<StackLabel> {
        match account {
            BEFORE => vec![StackLabel::Pseudo(PseudoFrame::BeforeRecording)],
            NO_EVENT => vec![StackLabel::Pseudo(PseudoFrame::NoEvent)],
            NO_SITE => vec![StackLabel::Pseudo(PseudoFrame::UnknownStack)],
            SMALL => vec![StackLabel::Pseudo(PseudoFrame::StackNotTaken)],
            owned @ OWNED.. => {
                let owners = self.before_owners.get(owned - OWNED);
                let most = owners.and_then(|owners| owners.iter().max_by_key(|owner| owner.1));
                before_path(most.map(|(owner, _)| *owner), table)
            }
            site => {
                let id = SiteId((site - SITES) as u32);
                match table.get_site(id) {
                    Some(site) if options.by_module => vec![module_of(site, table)],
                    Some(site) => {
                        let node = self.node(id, site, nodes);
                        site_path(site, node, options, table)
                    }
                    None => vec![StackLabel::Pseudo(PseudoFrame::UnknownStack)],
                }
            }
        }
    }

    fn node(
        &self,
        id: SiteId,
        site: &AllocationSite,
        nodes: &mut FirstNodes,
    ) -> Option<StackLabel> {
        let first = *nodes.entry(site.node.clone()?).or_insert(id);
        let knows_forward = site.forward.is_some() || !self.exact.backward_lines;
        Some(match knows_forward {
            true => StackLabel::Node(first),
            false => StackLabel::NodeOfUnknownLine(first),
        })
    }
}

/// The module whose call allocated: of the forward call, if a node did.
fn module_of(site: &AllocationSite, table: &StackTable) -> StackLabel {
    let own = match site.source {
        StackSource::Own => site.stack,
        // The stack is that of `backward()`, or only probable.
        _ => None,
    };
    let stacks = [own, site.forward.filter(|_| site.node.is_some())];
    let known = stacks.into_iter().flatten().find_map(|stack| table.module(stack));
    match known {
        Some(Some(name)) => StackLabel::Module(name),
        Some(None) => StackLabel::Pseudo(PseudoFrame::UnknownModule),
        None => {
            let is_whole = match site.node {
                Some(_) => site.forward.is_some(),
                None => own.is_some() && !site.truncated,
            };
            StackLabel::Pseudo(match is_whole {
                true => PseudoFrame::OutsideModules,
                false => PseudoFrame::UnknownModule,
            })
        }
    }
}

/// `node`: the autograd node that allocated.
fn site_path(
    site: &AllocationSite,
    node: Option<StackLabel>,
    options: FoldOptions,
    table: &StackTable,
) -> Vec<StackLabel> {
    let mut path = PathLabels { table, labels: Vec::new() };
    if options.by_thread && site.source != StackSource::NoPython {
        path.labels.push(StackLabel::Thread(site.thread));
    }
    if site.truncated {
        path.pseudo(PseudoFrame::DeeperFrames);
    }
    let native = site.native.stack().filter(|_| options.native);
    match site.source {
        StackSource::NoPython => {
            path.pseudo(PseudoFrame::NoPython);
            path.labels.push(StackLabel::Thread(site.thread));
            path.labels.extend(node);
        }
        StackSource::NotTaken => path.pseudo(PseudoFrame::StackNotTaken),
        StackSource::Unknown => {
            path.pseudo(PseudoFrame::UnknownStack);
            path.labels.extend(node);
        }
        StackSource::Backward | StackSource::Borrowed => {
            if let Some(stack) = site.stack {
                path.stack(stack);
            }
            path.autograd(site.forward);
            path.labels.extend(node);
        }
        StackSource::Own | StackSource::Sampled => {
            // Python called in a node: recomputation, hooks, custom functions.
            if let Some(node) = node {
                path.autograd(site.forward);
                path.labels.push(node);
            }
            if let Some(stack) = native.or(site.stack) {
                path.stack(stack);
            }
            return path.labels;
        }
    }
    // The Python stack is absent or another thread's; the native one is its own.
    if let Some(native) = native {
        path.native_in_engine(native);
    }
    path.labels
}
