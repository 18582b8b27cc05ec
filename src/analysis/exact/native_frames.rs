//! Hides C and C++ frames that only pass a call on.

use crate::model::Function;

/// Name prefixes of CPython functions that only pass calls on.
const INTERPRETER: [&str; 19] = [
    "PyObject_Call",
    "PyObject_Vectorcall",
    "_PyObject_Call",
    "_PyObject_MakeTpCall",
    "_PyObject_Vectorcall",
    "_PyObject_FastCall",
    "_PyFunction_Vectorcall",
    "_PyFunction_FastCall",
    "_PyEval_Vector",
    "_PyEval_EvalCode",
    "PyVectorcall_",
    "_PyVectorcall",
    "cfunction_",
    "function_code_fastcall",
    "method_vectorcall",
    "object_vacall",
    "slot_tp_call",
    "vectorcall_",
    "call_function",
];
/// PyTorch's dispatcher, whose template name repeats the callee's at great length.
const DISPATCHER: &str = "c10::impl::wrap_kernel_functor_unboxed_";

pub(super) fn is_forwarding(function: &Function) -> bool {
    let is_interpreter = ["python", "libpython"].iter().any(|it| function.file.starts_with(it));
    match is_interpreter {
        true => INTERPRETER.iter().any(|it| function.name.starts_with(it)),
        false => function.name.starts_with(DISPATCHER),
    }
}

/// The autograd engine's outermost function; the frames outside it are always the same.
pub(super) fn is_engine_main(function: &Function) -> bool {
    &*function.name == "torch::autograd::Engine::thread_main"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_forwarding_frames_are_hidden() {
        let passes_on = |name: &str, library: &str| {
            is_forwarding(&Function::native(name.into(), library.into()))
        };
        assert!(passes_on("_PyObject_MakeTpCall", "libpython3.11.so.1.0"));
        assert!(passes_on("cfunction_vectorcall_O", "python3.14t"));
        assert!(passes_on("c10::impl::wrap_kernel_functor_unboxed_<x>::call", "libtorch_cpu.so"));
        for (name, library) in [
            ("builtin_sorted", "libpython3.11.so.1.0"),
            ("list_sort_impl", "python3.14t"),
            ("PyObject_CallMine", "mine.so"),
            ("at::_ops::empty::call", "libtorch_cpu.so"),
        ] {
            assert!(!passes_on(name, library), "{name}");
        }
    }
}
