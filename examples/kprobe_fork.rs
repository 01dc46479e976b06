//! A kprobe on fork prints registers and the top of the stack: the first sample module of the kernel's kprobes documentation, from outside
//! the guest.
//!
//! `cargo run --example kprobe_fork -- KERNEL INITRD`

mod guest;

use std::sync::Arc;

use address::Gva;
use probes::{EngineAction, Handler, HitContext, PreOutcome};

struct PrintStack;

impl Handler for PrintStack {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        let regs = *hit.regs();
        println!(
            "pre:  cpu{} rip {:#x} rsp {:#x} flags {:#x}",
            hit.vcpu(),
            regs.rip,
            regs.rsp,
            regs.rflags
        );
        for slot in (0..4).map(|i| Gva(regs.rsp).wrapping_add(8 * i)) {
            match hit.read_u64(slot) {
                Ok(value) => println!("        {slot}: {value:#018x}"),
                Err(error) => println!("        {error}"),
            }
        }
        PreOutcome::Continue
    }

    fn post(&self, hit: &mut HitContext<'_>) {
        println!("post: cpu{} rip {:#x}", hit.vcpu(), hit.regs().rip);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    guest::run(&[(
        "kprobe:kernel_clone",
        EngineAction::Handle(Arc::new(PrintStack)),
    )])
}
