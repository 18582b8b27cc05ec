//! Reads the target process: memory, mappings, files, ELF symbols.
//!
//! Turns a pid (or a captured image) into [`Memory`], [`Mappings`] and symbol addresses.
//! May import `model`. Only this room reads processes, `/proc` and ELF.
//! Never writes to or signals the target, stops it only by [`PtraceStop`], and never interprets
//! what it reads.
//! Start reading at [`Process`] and [`Memory`].

mod access;
mod bounded_worker;
mod budget;
mod command_pattern;
pub mod core_file;
pub mod elf;
mod elf_file;
pub mod environment;
mod field;
mod function_table;
mod host_pids;
mod image;
mod job_files;
mod kernel_wait;
pub mod left_behind;
mod machine_facts;
mod mappings;
mod memory;
mod page_copy;
mod page_doubts;
mod page_history;
mod page_index;
mod page_precopy;
mod page_reader;
mod page_views;
mod pages;
pub mod proc_files;
mod process;
mod process_memory;
mod processor_time;
mod ptrace_stop;
mod registers;
mod tsc;
pub mod usdt;

pub use access::{AccessFacts, has_no_more_rights, host_name, ignored_signals};
pub use bounded_worker::{BoundedWorker, WorkerError};
pub use budget::{Budget, resident};
pub use command_pattern::CommandPattern;
pub use core_file::CoreError;
pub use elf::{LoadedObject, ObjectError, SymbolError};
pub use field::{Field, Scalar};
pub use function_table::FunctionTable;
pub use host_pids::{FoundProcess, HostPids};
pub use image::{MemoryImage, RecordingMemory};
pub use job_files::{FileError, JobFiles};
pub use kernel_wait::KernelWait;
pub use machine_facts::MachineFacts;
pub use mappings::{Mapping, Mappings};
pub use memory::{Addr, AddressRange, LiveMemory, Memory, MemoryError};
pub use page_copy::{CopyLimit, CopyProgress, PAGE, PagePlan};
pub use page_history::PageHistory;
pub use page_reader::PageReader;
pub use page_views::ViewedPages;
pub use pages::PageCache;
pub use process::{OsThread, Process, ProcessError, ThreadTurns, ThreadWatch};
pub use process_memory::ProcessMemory;
pub(crate) use processor_time::processor_time;
pub use ptrace_stop::{PtraceStop, Resumed, StopError, StoppedProcess};
pub use registers::{DWARF_REGISTERS, ThreadRegisters};
pub use tsc::time_stamp_counter;
