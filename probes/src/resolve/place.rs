//! Where a probe's plant sits.

use std::sync::Arc;

use introspect::insn::{Decoded, check_boundary, decode};
use introspect::{Gva, PatchKind, PatchTime, Symbol};

use super::ResolveProblem;
use super::Text;

/// How execution is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// By a plant at this address.
    Plant {
        /// Where the plant sits.
        at: Gva,
        /// Bytes of the instruction there.
        len: usize,
    },
    /// By a debug register: the kernel patches this instruction at run time and checks its bytes.
    DebugRegister,
}

/// When the plant can be put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as the text is in memory.
    TextPresent,
    /// Once the kernel has patched itself at boot: it rewrites this instruction then, and reads it before.
    BootPatched,
}

/// A place that can be probed, at link-time addresses if it is in the kernel proper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The probed instruction.
    pub ip: Gva,
    /// The same as `symbol+0xoffset`.
    pub symbol: Arc<str>,
    /// How execution is noticed.
    pub via: Via,
    /// When the plant can be put there.
    pub when: When,
    /// The text is freed after boot, or after the module's init function.
    pub init: bool,
    /// The module that it is in, by the address of its `struct module`; all addresses are then run-time ones.
    pub module: Option<Gva>,
}

/// Why a place cannot be probed, although it exists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kernel patches the instruction at run time and no debug register is left.
    #[error(
        "the kernel itself patches this instruction at run time ({0:?}), and all four debug registers are taken"
    )]
    SelfPatched(PatchKind),
    /// Where it is will be known when its module is loaded.
    #[error("the module `{module}` is not loaded")]
    NotLoaded {
        /// The module.
        module: String,
    },
    /// A return probe in the code by which the kernel is entered. What an interrupt leaves on the stack there is the address
    /// of the interrupted instruction, and nothing returns to it with the stack pointer above that.
    #[error(
        "it is entry code of the kernel, which is not called: no return address is on the stack there; probe its entry, or the return of the C function that it calls"
    )]
    NoReturnAddress,
    /// The function has no instruction that could be probed.
    #[error("{0}")]
    Unsuitable(String),
}

/// `endbr64`, which begins functions of kernels with indirect branch tracking.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// `offset` bytes into `symbol`; at 0, the function's entry, which is behind an `endbr64`, as for the kernel's own
/// kprobes.
pub(super) fn at_offset(
    text: &dyn Text,
    symbol: &Symbol,
    offset: u64,
) -> Result<Result<Place, Refusal>, ResolveProblem> {
    let skip = if offset == 0 && text.function_bytes(symbol).starts_with(&ENDBR64) {
        ENDBR64.len() as u64
    } else {
        offset
    };
    at_exact_offset(text, symbol, skip)
}

pub(super) fn at_exact_offset(
    text: &dyn Text,
    symbol: &Symbol,
    offset: u64,
) -> Result<Result<Place, Refusal>, ResolveProblem> {
    let code = &*text.function_bytes(symbol);
    let decoded = check_boundary(code, symbol.address, offset)?;
    let ip = decoded.at();
    let place = |via, when| Place {
        ip,
        symbol: match &symbol.module {
            Some(module) => format!("{}+{offset:#x} [{module}]", symbol.name).into(),
            None => format!("{}+{offset:#x}", symbol.name).into(),
        },
        via,
        when,
        init: text.is_init(ip),
        module: text.module(),
    };
    let here = Via::Plant {
        at: ip,
        len: decoded.len(),
    };
    Ok(Ok(match patched(text, &decoded) {
        None => place(here, When::TextPresent),
        Some((_, PatchTime::BootOnly)) => place(here, When::BootPatched),
        Some((kind, PatchTime::Runtime)) => match behind(text, symbol, code, &decoded, kind) {
            Some((via, when)) => place(via, when),
            None => place(Via::DebugRegister, When::TextPresent),
        },
    }))
}

fn patched(text: &dyn Text, decoded: &Decoded) -> Option<(PatchKind, PatchTime)> {
    let site = text.patched(decoded.at(), decoded.len() as u64)?;
    Some((site.kind, site.kind.when()))
}

/// The instruction behind an ftrace call, if everything that gets there has come through the call, and the kernel
/// does not patch that one at run time too.
fn behind(
    text: &dyn Text,
    symbol: &Symbol,
    code: &[u8],
    call: &Decoded,
    kind: PatchKind,
) -> Option<(Via, When)> {
    if kind != PatchKind::Ftrace {
        return None;
    }
    let next = call.next();
    let offset = usize::try_from(next.offset_from(symbol.address)?).ok()?;
    let decoded = decode(code.get(offset..)?, next).ok()?;
    let between = Gva(call.at().0 + 1)..Gva(next.0 + 1);
    if text.may_branch_into(symbol, &between) {
        return None;
    }
    let via = Via::Plant {
        at: next,
        len: decoded.len(),
    };
    match patched(text, &decoded) {
        None => Some((via, When::TextPresent)),
        Some((_, PatchTime::BootOnly)) => Some((via, When::BootPatched)),
        Some((_, PatchTime::Runtime)) => None,
    }
}
