//! The py-spy crate, for unknown CPythons.

use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};

use crate::model::{
    Frame, Function, StackId, StackTable, Thread, ThreadActivity, ThreadId, ThreadSample,
};
use crate::python::error::InterpreterError;
use crate::python::stacks::stack_sampler::SampleStats;
use crate::target::Process;

pub(in crate::python) struct FallbackReader {
    process: Process,
    spy: PythonSpy,
    version: String,
    pid_in_target: Option<u64>,
    threads: Vec<ThreadId>,
}

impl FallbackReader {
    pub(in crate::python) fn attach(process: &Process) -> Result<FallbackReader, InterpreterError> {
        let pid = process.pid();
        let process = process.reopen()?;
        let failed = |error: &dyn std::fmt::Display| InterpreterError::Fallback {
            pid,
            why: error.to_string(),
        };
        let number = py_spy::Pid::try_from(pid).map_err(|e| failed(&e))?;
        let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
        let spy = PythonSpy::new(number, &config).map_err(|e| failed(&e))?;
        let version = spy.version.to_string();
        let pid_in_target = process.pids().last().map(|&pid| u64::from(pid));
        Ok(FallbackReader { process, spy, version, pid_in_target, threads: Vec::new() })
    }

    pub(in crate::python) fn version(&self) -> &str {
        &self.version
    }

    pub(in crate::python) fn threads(&self) -> &[ThreadId] {
        &self.threads
    }

    pub(in crate::python) fn sample(
        &mut self,
        table: &mut StackTable,
        out: &mut Vec<ThreadSample>,
    ) -> Result<SampleStats, InterpreterError> {
        out.clear();
        let pid = self.process.pid();
        let traces = match self.spy.get_stack_traces() {
            Ok(traces) => traces,
            Err(_) if !self.process.is_alive() => return Err(InterpreterError::Gone { pid }),
            // py-spy fails when the target changes during the read.
            Err(_) => return Ok(SampleStats { torn: 1, reads: 1, ..SampleStats::default() }),
        };
        self.threads.clear();
        let mut stats = SampleStats { reads: 1, ..SampleStats::default() };
        for trace in &traces {
            let id = table.thread(Thread {
                os_id: trace.os_thread_id,
                python_id: trace.thread_id,
                name: trace.thread_name.as_deref().map(Into::into),
                main: trace.os_thread_id.is_some() && trace.os_thread_id == self.pid_in_target,
            });
            self.threads.push(id);
            let Some(stack) = stack(trace, table) else { continue };
            stats.stacks += 1;
            let activity =
                if trace.active { ThreadActivity::Active } else { ThreadActivity::Unknown };
            out.push(ThreadSample { thread: id, stack, gil: trace.owns_gil, activity });
        }
        Ok(stats)
    }
}

fn stack(trace: &StackTrace, table: &mut StackTable) -> Option<StackId> {
    trace.frames.iter().rev().fold(None, |parent, frame| {
        let function = table.function(Function {
            name: frame.name.as_str().into(),
            file: frame.filename.as_str().into(),
            first_line: 0,
            last_line: 0,
            is_native: false,
        });
        let line = u32::try_from(frame.line).unwrap_or(0);
        let frame = table.frame(Frame { function, line });
        Some(table.stack(parent, frame))
    })
}
