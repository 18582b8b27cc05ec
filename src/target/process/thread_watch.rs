//! Rereads a thread's state through open files.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::Process;
use crate::target::KernelWait;
use crate::target::proc_files;

const MAX_TEXT: usize = 256;

/// Run time, waiting time and number of turns on a processor (`schedstat`).
///
/// A thread that was off the processor at a moment after the first of two equal readings did not
/// run between them: a turn would have been counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadTurns([u64; 3]);

/// One thread of a process.
#[derive(Debug)]
pub struct ThreadWatch {
    turns: File,
    call: File,
}

impl ThreadWatch {
    /// Opens thread `id`, in memspy's pid namespace; `None`: no thread, or no statistics.
    pub fn open(process: &Process, id: u32) -> Option<ThreadWatch> {
        process.live()?;
        let open = |name| proc_files::open_for_thread(process.pid, id, name).ok();
        Some(ThreadWatch { turns: open("schedstat")?, call: open("syscall")? })
    }

    /// Its turns so far.
    pub fn turns(&self) -> Option<ThreadTurns> {
        let mut text = [0; MAX_TEXT];
        let mut numbers = read(&self.turns, &mut text)?.split_ascii_whitespace();
        let mut next = || numbers.next()?.parse().ok();
        let turns = [next()?, next()?, next()?];
        // A kernel that does not count gives 0.
        (turns[2] > 0).then_some(ThreadTurns(turns))
    }

    /// What it waits for, if off the processor during the whole read.
    pub fn wait(&self) -> Option<KernelWait> {
        let mut text = [0; MAX_TEXT];
        KernelWait::parse(read(&self.call, &mut text)?)
    }
}

fn read<'t>(file: &File, text: &'t mut [u8]) -> Option<&'t str> {
    let len = file.read_at(text, 0).ok()?;
    std::str::from_utf8(text.get(..len)?).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn turns_of_a_waiting_thread_change_only_when_it_runs() {
        let mut command = Command::new("sh");
        command.args(["-c", "while read line; do echo $line; done"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let process = Process::open(child.id()).unwrap();
        let watch = ThreadWatch::open(&process, child.id()).unwrap();
        let waiting = || {
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                let turns = watch.turns().unwrap();
                // Its run time is counted when it leaves the processor.
                let waits = watch.wait() == Some(KernelWait::External);
                if waits && watch.turns() == Some(turns) {
                    return turns;
                }
                assert!(Instant::now() < end, "it does not come to wait");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let mut turns = waiting();
        for _ in 0..200 {
            assert_eq!(watch.turns(), Some(turns));
            input.write_all(b"go on\n").unwrap();
            output.read_line(&mut String::new()).unwrap();
            let after = waiting();
            assert_ne!(after, turns, "it ran");
            turns = after;
        }
        drop(input);
        child.wait().unwrap();
        assert_eq!((watch.turns(), watch.wait()), (None, None), "it has ended");
        assert!(ThreadWatch::open(&process, 1 << 30).is_none());
    }
}
