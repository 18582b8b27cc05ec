//! What the kernel says of one thread, asked often: the files stay open.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::Process;
use crate::target::kernel_wait::KernelWait;
use crate::target::proc_files;

/// Longer than what either file holds.
const MAX_TEXT: usize = 256;

/// How long a thread has run, has waited for a processor, and how often it was given one (`schedstat`).
///
/// The last of these grows whenever it comes back to a processor. So a thread that was off the processor at some moment behind
/// one reading has not run between that moment and a second reading that says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadTurns([u64; 3]);

/// One thread of a process.
#[derive(Debug)]
pub struct ThreadWatch {
    turns: File,
    call: File,
}

impl ThreadWatch {
    /// Of thread `id` of `process`, counted in memspy's pid namespace. `None` when there is no such thread (any more), or the kernel
    /// does not tell.
    pub fn open(process: &Process, id: u32) -> Option<ThreadWatch> {
        process.live()?;
        let open = |name| proc_files::open_for_thread(process.pid, id, name).ok();
        Some(ThreadWatch { turns: open("schedstat")?, call: open("syscall")? })
    }

    /// How often it has run so far.
    pub fn turns(&self) -> Option<ThreadTurns> {
        let mut text = [0; MAX_TEXT];
        let mut numbers = read(&self.turns, &mut text)?.split_ascii_whitespace();
        let mut next = || numbers.next()?.parse().ok();
        let turns = [next()?, next()?, next()?];
        // A kernel that does not count says 0.
        (turns[2] > 0).then_some(ThreadTurns(turns))
    }

    /// What it waits for. The kernel tells of a system call only where the thread is off the processor all the while it looks.
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

    /// A shell that waits for its next line: it runs between two readings just where it got one.
    #[test]
    fn a_thread_that_waits_has_the_same_turns_until_it_runs() {
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
                if watch.wait() == Some(KernelWait::Others) {
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
