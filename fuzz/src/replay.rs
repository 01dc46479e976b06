//! A target on inputs from files.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether any thread or task has panicked. A runtime catches the panic of a task, and the target returns.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

/// Runs `target` on short inputs, and on each file named in the program's arguments, up to the first input with a panic of a thread or
/// task. libFuzzer, too, ends at the first panic.
///
/// The short inputs, the empty one among them, choose among the variants of the valid kernel, file or types. Most change nothing in it.
pub fn replay(target: impl Fn(&[u8])) -> ExitCode {
    run(target, std::env::args_os().skip(1).map(PathBuf::from))
}

fn run(target: impl Fn(&[u8]), paths: impl Iterator<Item = PathBuf>) -> ExitCode {
    note_panics();
    for input in short_inputs() {
        target(&input);
        if HAS_PANICKED.load(Ordering::Acquire) {
            eprintln!("a panic at the input {input:x?}");
            return ExitCode::FAILURE;
        }
    }
    for path in paths {
        match std::fs::read(&path) {
            Ok(bytes) => target(&bytes),
            Err(error) => {
                eprintln!("cannot read {}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
        if HAS_PANICKED.load(Ordering::Acquire) {
            eprintln!("a panic at {}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The empty input, numbers of one byte, and numbers of four bytes: `arbitrary` takes a variant from the top bits of a word, and a flag from
/// the byte before or behind.
fn short_inputs() -> impl Iterator<Item = Vec<u8>> {
    let number = |byte: u8| {
        let word = [0, 0, 0, byte];
        let flagged = [&word[..], &[1]].concat();
        [vec![byte >> 4], word.to_vec(), flagged]
    };
    let flags = [Vec::new(), vec![0, 0, 1]];
    let numbers = (0..=u8::MAX).step_by(16).flat_map(number);
    flags.into_iter().chain(numbers)
}

/// Notes each panic from now on, besides its message.
fn note_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            HAS_PANICKED.store(true, Ordering::Release);
            print(panic);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process notes a panic for good, so both cases are in one test.
    #[test]
    fn panic_of_a_task_fails_the_replay() {
        let code = |code: ExitCode| format!("{code:?}");
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        let target = |task: fn()| {
            runtime.block_on(async {
                // The error is the panic.
                let _ = tokio::spawn(async move { task() }).await;
            });
        };
        let quiet = run(|_| target(|| ()), std::iter::empty());
        assert_eq!(code(quiet), code(ExitCode::SUCCESS));
        let panicked = run(|_| target(|| panic!("a task's")), std::iter::empty());
        assert_eq!(code(panicked), code(ExitCode::FAILURE));
    }
}
