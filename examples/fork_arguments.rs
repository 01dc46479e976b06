//! The arguments of fork, as the jprobe sample module printed them.
//!
//! `cargo run --example fork_arguments -- KERNEL INITRD`

mod guest;

use std::sync::Arc;

use address::Gva;
use probes::{EngineAction, Handler, HitContext, PreOutcome};

struct PrintArguments;

impl Handler for PrintArguments {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        // kernel_clone(struct kernel_clone_args *args); the first member of the struct is u64 flags.
        let args = Gva(hit.regs().rdi);
        match hit.read_u64(args) {
            Ok(flags) => println!("kernel_clone: args {args}, clone_flags {flags:#x}"),
            Err(error) => println!("kernel_clone: args {args}: {error}"),
        }
        PreOutcome::Continue
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    guest::run(&[(
        "kprobe:kernel_clone",
        EngineAction::Handle(Arc::new(PrintArguments)),
    )])
}
