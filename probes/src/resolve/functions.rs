//! Every function of a kernel, with a verdict on exit-free probes at the entry.

use address::Gva;
use introspect::PatchKind;
use introspect::optimise::{MAX_REGION_BYTES, Optimisable, WhyNot};

use super::is_function;
use super::place::{Via, at_offset};
use crate::kernel::Kernel;

/// A function, and whether a jump can replace a plant at the entry, by the kernel's file. At link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionVerdict {
    /// The function's name; if several, the preferred name.
    pub name: String,
    /// The probed instruction.
    pub ip: Gva,
    /// The address of the jump: behind the call of ftrace, if any.
    pub at: Gva,
    /// Whether the function begins with an ftrace call.
    pub traced: bool,
    /// Whether a jump can be there, or the reason against a jump.
    pub verdict: Result<Optimisable, WhyNot>,
}

/// All functions of `kernel` that can be probed, by address. The call decodes the whole text.
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
                Via::DebugRegister | Via::Data { .. } => (place.ip, place.ip),
            },
            // For a refused site, the survey gives the reason.
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
