//! Tells functions of frameworks that only call another one.

use super::source_file::is_library;
use super::stack::Function;

/// The last part of the names of decorators' inner functions.
const WRAPPERS: [&str; 14] = [
    "_fn",
    "_use_grad",
    "_wrapped",
    "_wrapper",
    "compile_wrapper",
    "decorate_autocast",
    "decorate_bwd",
    "decorate_context",
    "decorate_fwd",
    "inner",
    "inner_fn",
    "wrapped",
    "wrapped_func",
    "wrapper",
];

/// Functions of one file: the end of its path, the last part of the name.
const CALLERS: [(&str, &str); 12] = [
    ("/accelerate/utils/operations.py", "__call__"),
    ("/accelerate/utils/operations.py", "forward"),
    ("/torch/_dynamo/eval_frame.py", "__call__"),
    ("/torch/_functorch/_aot_autograd/runtime_wrappers.py", "runtime_wrapper"),
    ("/torch/_functorch/aot_autograd.py", "forward"),
    ("/torch/_inductor/output_code.py", "__call__"),
    ("/torch/_inductor/utils.py", "run"),
    ("/torch/autograd/function.py", "apply"),
    ("/torch/nn/modules/module.py", "_call_impl"),
    ("/torch/nn/modules/module.py", "_slow_forward"),
    ("/torch/nn/modules/module.py", "_wrapped_call_impl"),
    ("/torch/utils/_contextlib.py", "_wrap_generator"),
];

const MODULE_FILE: &str = "/torch/nn/modules/module.py";
/// In `torch.nn.Module`: their first argument is a module, which they call, or whose tensors they
/// move.
pub(crate) const MODULE_CALLS: [&str; 2] = ["_wrapped_call_impl", "_apply"];

/// Start of the program and imports: frames that Python itself leaves out of tracebacks.
const INTERPRETER: [&str; 3] =
    ["<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen runpy>"];

impl Function {
    /// Whether it is a library's function around a call: of modules, decorators, compiled code.
    pub fn is_wrapper(&self) -> bool {
        if INTERPRETER.contains(&&*self.file) {
            return true;
        }
        let name = self.name.rsplit('.').next().unwrap_or_default();
        let is_caller =
            |(file, caller): &(&str, &str)| *caller == name && self.file.ends_with(file);
        is_library(&self.file) && (WRAPPERS.contains(&name) || CALLERS.iter().any(is_caller))
    }

    /// Whether its first argument is a `torch.nn.Module`, which it calls, or whose tensors it
    /// moves.
    pub fn calls_module(&self) -> bool {
        self.module_call().is_some()
    }

    /// Which of these functions it is, from 0.
    pub fn module_call(&self) -> Option<usize> {
        let name = self.name.rsplit('.').next().unwrap_or_default();
        let number = MODULE_CALLS.iter().position(|known| *known == name);
        number.filter(|_| self.file.ends_with(MODULE_FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_wrapper(name: &str, file: &str) -> bool {
        let function = Function {
            name: name.into(),
            file: file.into(),
            first_line: 1,
            last_line: 2,
            is_native: false,
        };
        function.is_wrapper()
    }

    #[test]
    fn frameworks_wrap_calls_and_programs_do_not() {
        let torch = |file: &str| format!("/v/lib/python3.11/site-packages/torch/{file}");
        for (name, file) in [
            ("Module._call_impl", "nn/modules/module.py"),
            ("_wrapped_call_impl", "nn/modules/module.py"),
            ("context_decorator.<locals>.decorate_context", "utils/_contextlib.py"),
            ("wrapper", "optim/optimizer.py"),
            ("_TorchDynamoContext.__call__.<locals>.compile_wrapper", "_dynamo/eval_frame.py"),
            ("CompiledFxGraph.__call__", "_inductor/output_code.py"),
        ] {
            assert!(is_wrapper(name, &torch(file)), "{name}");
        }
        for (name, file) in [
            ("Linear.forward", "nn/modules/linear.py"),
            ("Module.apply", "nn/modules/module.py"),
            ("Adam.step", "optim/adam.py"),
        ] {
            assert!(!is_wrapper(name, &torch(file)), "{name}");
        }
        assert!(is_wrapper("_run_code", "<frozen runpy>"));
        assert!(!is_wrapper("timed.<locals>.wrapper", "/home/me/job/train.py"));
        assert!(!is_wrapper("_call_impl", "/home/me/job/torch/nn/modules/module.py"));
    }
}
