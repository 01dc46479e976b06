//! A return probe on open reports failures and the duration of each call: the second sample module.
//!
//! `cargo run --example kretprobe_open -- KERNEL INITRD`

mod guest;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use address::Gva;
use probes::{EngineAction, EntryOutcome, HitContext, ReturnHandler};

/// The maximum number of bytes read of a name.
const MAX_NAME_BYTES: u64 = 64;

struct ReportFailures;

/// The data kept from the entry of a call to the return.
struct Call {
    name: String,
    entered: Instant,
}

impl ReturnHandler for ReportFailures {
    fn entry(&self, hit: &mut HitContext<'_>) -> EntryOutcome {
        // do_sys_openat2(int dfd, const char __user *filename, struct open_how *how)
        let filename = Gva(hit.regs().rsi);
        let mut name = Vec::new();
        for at in (0..MAX_NAME_BYTES).map(|i| filename.wrapping_add(i)) {
            let mut byte = [0];
            if hit.read(at, &mut byte).is_err() || byte == [0] {
                break;
            }
            name.extend(byte);
        }
        if name.is_empty() {
            return EntryOutcome::Decline;
        }
        let name = String::from_utf8_lossy(&name).into_owned();
        EntryOutcome::Track(Box::new(Call {
            name,
            entered: Instant::now(),
        }))
    }

    fn ret(&self, hit: &mut HitContext<'_>, data: Box<dyn Any + Send>) {
        let Ok(call) = data.downcast::<Call>() else {
            return;
        };
        // An int: the upper half of RAX does not count.
        let [a, b, c, d, ..] = hit.regs().rax.to_le_bytes();
        let result = i32::from_le_bytes([a, b, c, d]);
        if result < 0 {
            println!(
                "open({:?}) = {result} after {:?}",
                call.name,
                call.entered.elapsed()
            );
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    guest::run(&[(
        "kretprobe:do_sys_openat2",
        EngineAction::HandleReturn(Arc::new(ReportFailures)),
    )])
}
