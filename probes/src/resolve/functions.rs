//! Every function of a kernel, and whether a probe on its entry can do without exits.

use introspect::optimise::{MAX_REGION_BYTES, Optimisable, WhyNot};
use introspect::{Gva, PatchKind};

use super::is_function;
use super::place::{Via, at_offset};
use crate::kernel::Kernel;

/// A function, and whether a jump can stand for a probe on its entry, by the kernel's file. At link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionVerdict {
    /// Its name; of several, the one to show.
    pub name: String,
    /// The probed instruction.
    pub ip: Gva,
    /// Where the jump would be: behind the call of ftrace where there is one.
    pub at: Gva,
    /// It begins with a call that ftrace patches.
    pub traced: bool,
    /// Whether a jump can be there.
    pub verdict: Result<Optimisable, WhyNot>,
}

/// All functions of `kernel` that a probe can be put on, by address. Decodes all of it.
#[must_use]
pub fn functions(kernel: &Kernel) -> Vec<FunctionVerdict> {
    let mut found: Vec<FunctionVerdict> = Vec::new();
    let mut last = None;
    for symbol in kernel.symbols().iter() {
        if !is_function(kernel, &symbol) || last.replace(symbol.address) == Some(symbol.address) {
            continue;
        }
        let (ip, at) = match at_offset(kernel, &symbol, 0) {
            Ok(Ok(place)) => match place.via {
                Via::Plant { at, .. } => (place.ip, at),
                Via::DebugRegister => (place.ip, place.ip),
            },
            // The survey says the same in its own words.
            Ok(Err(_)) | Err(_) => (symbol.address, symbol.address),
        };
        let traced = kernel
            .sites()
            .all_overlapping(ip, 1)
            .any(|site| site.kind == PatchKind::Ftrace);
        let code = (1..=MAX_REGION_BYTES)
            .rev()
            .find_map(|len| kernel.bytes_at(at, len));
        let verdict = kernel
            .survey()
            .verdict(kernel.sites(), at, code.unwrap_or_default());
        found.push(FunctionVerdict {
            name: symbol.name,
            ip,
            at,
            traced,
            verdict,
        });
    }
    found
}
