//! What a training program does at an allocation: one rule for dry runs and recordings.

use crate::model::{AllocationSite, StackId, StackSource, StackTable};

/// What a training program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunPhase {
    /// Before the first call of a module.
    Loading,
    /// From the first call of a module to the backward pass.
    Forward,
    /// Backward pass.
    Backward,
    /// An optimizer's step.
    Optimizer,
    /// With the model in evaluation mode.
    Evaluation,
}

impl RunPhase {
    /// Its name in text.
    pub fn name(self) -> &'static str {
        match self {
            RunPhase::Loading => "loading",
            RunPhase::Forward => "forward",
            RunPhase::Backward => "backward",
            RunPhase::Optimizer => "optimizer step",
            RunPhase::Evaluation => "evaluation",
        }
    }
}

/// What tells the phase: functions on the stack, and marks of a watched program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PhaseSigns {
    pub(crate) is_optimizer: bool,
    pub(crate) is_backward: bool,
    pub(crate) is_evaluation: bool,
    /// A module is called.
    pub(crate) is_call: bool,
    /// Weights are made, read or moved, or no module was called yet.
    pub(crate) is_loading: bool,
    /// Temporary tensors of an optimizer that works on all parameters at once.
    pub(crate) is_foreach: bool,
}

const MODULE: &str = "torch/nn/modules/module.py";
/// They move or load weights.
const LOADERS: [&str; 2] = ["_apply", "load_state_dict"];
/// torch.save's counterpart.
const SERIALIZATION: &str = "torch/serialization.py";
const OPTIMIZERS: &str = "torch/optim/";
/// Its wrapper is around the step of each optimizer, also of other libraries.
const OPTIMIZER: &str = "torch/optim/optimizer.py";
const SCHEDULERS: &str = "torch/optim/lr_scheduler.py";
const FOREACH: &str = "_multi_tensor_";
/// Function and file: they wait for the engine, or are the backward pass.
const BACKWARD: [(&str, &str); 4] = [
    ("_engine_run_backward", "torch/autograd/graph.py"),
    ("backward", "torch/autograd/__init__.py"),
    ("grad", "torch/autograd/__init__.py"),
    ("backward", "torch/_tensor.py"),
];
/// Function and file: loops that only evaluate.
const EVALUATION: [(&str, &str); 3] = [
    ("evaluation_loop", "transformers/trainer.py"),
    ("prediction_loop", "transformers/trainer.py"),
    ("run", "loops/evaluation_loop.py"),
];

impl PhaseSigns {
    /// Of a stack's functions, as (name, file).
    pub(crate) fn of_functions<'a>(
        functions: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> PhaseSigns {
        let mut signs = PhaseSigns::default();
        for (name, file) in functions {
            let name = name.rsplit('.').next().unwrap_or(name);
            let is_one_of = |all: &[(&str, &str)]| {
                all.iter().any(|(function, of)| *function == name && file.ends_with(of))
            };
            signs.is_call |= name == "_call_impl" && file.ends_with(MODULE);
            signs.is_loading |= file.ends_with(SERIALIZATION)
                || LOADERS.contains(&name) && file.ends_with(MODULE)
                || name == "__init__" && file.contains("torch/nn/modules/");
            signs.is_backward |= is_one_of(&BACKWARD);
            signs.is_evaluation |= is_one_of(&EVALUATION);
            if file.contains(OPTIMIZERS) && !file.ends_with(SCHEDULERS) {
                let is_wrapper = name == "wrapper" && file.ends_with(OPTIMIZER);
                signs.is_foreach |= name.starts_with(FOREACH);
                signs.is_optimizer |= name == "step" || is_wrapper || signs.is_foreach;
            }
        }
        signs
    }

    pub(crate) fn of_stack(stacks: &StackTable, stack: StackId) -> PhaseSigns {
        let functions =
            stacks.frames(stack).filter_map(|frame| stacks.get_function(frame.function));
        PhaseSigns::of_functions(functions.map(|function| (&*function.name, &*function.file)))
    }

    /// Of the stack that allocated; `None` unless that is proven.
    pub(crate) fn of_site(stacks: &StackTable, site: &AllocationSite) -> Option<PhaseSigns> {
        let of_stack = || Some(PhaseSigns::of_stack(stacks, site.stack?));
        match (&site.node, site.source) {
            (Some(_), _) => Some(PhaseSigns { is_backward: true, ..PhaseSigns::default() }),
            (None, StackSource::Own | StackSource::Backward) => of_stack(),
            _ => None,
        }
    }

    pub(crate) fn and(self, other: PhaseSigns) -> PhaseSigns {
        PhaseSigns {
            is_optimizer: self.is_optimizer || other.is_optimizer,
            is_backward: self.is_backward || other.is_backward,
            is_evaluation: self.is_evaluation || other.is_evaluation,
            is_call: self.is_call || other.is_call,
            is_loading: self.is_loading || other.is_loading,
            is_foreach: self.is_foreach || other.is_foreach,
        }
    }

    /// `None`: nothing tells it.
    pub(crate) fn phase(self) -> Option<RunPhase> {
        match () {
            () if self.is_optimizer => Some(RunPhase::Optimizer),
            () if self.is_backward => Some(RunPhase::Backward),
            () if self.is_evaluation => Some(RunPhase::Evaluation),
            () if self.is_call => Some(RunPhase::Forward),
            () if self.is_loading => Some(RunPhase::Loading),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(functions: &[(&str, &str)]) -> Option<RunPhase> {
        let of = |&(name, file)| (name, file);
        PhaseSigns::of_functions(functions.iter().map(of)).phase()
    }

    #[test]
    fn phase_follows_from_the_functions_on_the_stack() {
        let site = "/v/site-packages/";
        let file = |path: &str| format!("{site}{path}");
        let (module, graph) = (file(MODULE), file("torch/autograd/graph.py"));
        let (adam, wrapper, scheduler) =
            (file("torch/optim/adamw.py"), file(OPTIMIZER), file(SCHEDULERS));
        let main = ("main", "/job/train.py");
        let call = ("Module._call_impl", &*module);
        let engine = ("_engine_run_backward", &*graph);
        assert_eq!(phase(&[main]), None);
        assert_eq!(phase(&[call, main]), Some(RunPhase::Forward));
        assert_eq!(phase(&[call, engine, main]), Some(RunPhase::Backward), "recomputed");
        assert_eq!(phase(&[("Module._apply", &module), main]), Some(RunPhase::Loading));
        assert_eq!(phase(&[("AdamW.step", &adam), main]), Some(RunPhase::Optimizer));
        assert_eq!(
            phase(&[("step", "/job/lion.py"), ("wrapper", &wrapper)]),
            Some(RunPhase::Optimizer)
        );
        assert_eq!(phase(&[("step", &scheduler), ("wrapper", &scheduler), main]), None);
        assert_eq!(phase(&[("step", "/job/train.py")]), None);
        let loop_file = file("transformers/trainer.py");
        assert_eq!(
            phase(&[call, ("Trainer.evaluation_loop", &loop_file)]),
            Some(RunPhase::Evaluation)
        );
        let foreach = PhaseSigns::of_functions([("_multi_tensor_adamw", &*adam)]);
        assert!(foreach.is_foreach && foreach.is_optimizer);
    }
}
