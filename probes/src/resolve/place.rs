//! Sites: the addresses of probes and their plants.

use std::sync::Arc;

use address::Gva;
use events::{AwaitsModule, NotLoaded};
use introspect::insn::{Decoded, check_boundary, decode};
use introspect::{PatchKind, PatchTime, Symbol};
use manifest::WatchedAccess;

use super::ResolveProblem;
use super::clock;
use super::task_member::TaskMember;
use super::words::words;
use crate::arguments::ArgumentSource;
use crate::code::KernelCode;

/// The means by which a probe notices execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// A plant at this address.
    Plant {
        /// The address of the plant.
        at: Gva,
        /// The length of the instruction there.
        len: usize,
    },
    /// A debug register: the kernel patches this instruction at run time and checks its bytes.
    DebugRegister,
    /// The pages of the data are protected, or the data has a debug register.
    Data {
        /// The number of watched bytes, at most [`MAX_WATCHED_BYTES`](manifest::MAX_WATCHED_BYTES).
        len: usize,
        /// The accesses that are hits.
        access: WatchedAccess,
    },
}

/// The earliest time of the plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantTime {
    /// As soon as the text is in memory.
    TextPresent,
    /// Once the kernel has patched itself at boot: until then the kernel reads and rewrites this instruction.
    BootPatched,
}

/// The owner of a site's memory: the memory is the site's as long as the owner lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOwner {
    /// The kernel proper. Addresses are link-time addresses.
    Kernel,
    /// Each processor has a copy of the kernel's per-CPU data. Addresses are link-time addresses of the section with the initial values.
    Processors,
    /// The module with the `struct module` at the address. Addresses are run-time addresses.
    Module(Gva),
    /// The task with the `struct task_struct` at the address. Addresses are run-time addresses.
    Task(Gva),
    /// Nobody: the kernel may put the memory to any use. Addresses are run-time addresses in the kernel's map of all memory.
    Nobody,
}

/// A site that can be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The probed instruction, or the watched data.
    pub ip: Gva,
    /// The address as `symbol+0xoffset`.
    pub symbol: Arc<str>,
    /// The means by which the probe notices execution.
    pub via: Via,
    /// The earliest time of the plant.
    pub when: PlantTime,
    /// Whether the text is freed after boot, or after the module's init function.
    pub init: bool,
    /// The owner of the site's memory.
    pub owner: MemoryOwner,
    /// Where the arguments are.
    pub arguments: ArgumentSource,
}

impl Place {
    /// The address of the module's `struct module`, for a site in a module.
    pub(crate) const fn module(&self) -> Option<Gva> {
        match self.owner {
            MemoryOwner::Module(module) => Some(module),
            MemoryOwner::Kernel
            | MemoryOwner::Processors
            | MemoryOwner::Task(_)
            | MemoryOwner::Nobody => None,
        }
    }

    /// The most words of the watched data; 0 at an instruction.
    pub(crate) const fn words(&self) -> usize {
        match self.via {
            Via::Data { len, .. } => words(len),
            Via::Plant { .. } | Via::DebugRegister => 0,
        }
    }
}

/// The reason why an existing site cannot be probed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kernel patches the instruction at run time and no debug register is left.
    #[error(
        "the kernel itself patches this instruction at run time ({0:?}), and all four debug registers are taken"
    )]
    SelfPatched(PatchKind),
    /// The address is known once the module is loaded.
    #[error(transparent)]
    NotLoaded(#[from] NotLoaded),
    /// The address is known once the process is started.
    #[error("{}", member.not_started())]
    NotStarted {
        /// The data.
        member: TaskMember,
    },
    /// The file is known once a program maps it.
    #[error("no program has mapped {path} yet")]
    NotMapped {
        /// The path.
        path: String,
    },
    /// The sites are known once a module with the tracepoint is loaded.
    #[error(transparent)]
    AwaitsModule(#[from] AwaitsModule),
    /// A return probe in entry code. An interrupt leaves the address of the interrupted instruction on the stack there, and no
    /// return goes to the address with the stack pointer above the slot.
    #[error(
        "it is entry code of the kernel, which is not called: no return address is on the stack there; probe its entry, or the return of the C function that it calls"
    )]
    NoReturnAddress,
    /// A glob matches the kernel's handler of `int3`, which every exit-free `int3` executes.
    #[error(
        "it is the kernel's handler of int3, which hyprobe's own int3s may execute: with a probe on it, hits without an exit would exit; to probe it anyway, name it instead of using a glob"
    )]
    Int3Handler,
    /// An instruction of a loop that KVM's work at an exit can keep going.
    #[error(
        "it is in a loop of a function that reads kvm-clock: if the host's TSC is unstable, each exit changes the clock, and the loop would never end; probe the function's entry, or an instruction outside of its loops"
    )]
    ClockLoop,
    /// The function has no instruction suitable for a probe.
    #[error("{0}")]
    Unsuitable(String),
}

impl Refusal {
    /// Whether the probe is pending until a module is loaded, a process is started, or a program maps a file.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        matches!(
            self,
            Self::NotLoaded(_)
                | Self::AwaitsModule(_)
                | Self::NotMapped { .. }
                | Self::NotStarted { .. }
        )
    }
}

/// `endbr64`, the first instruction of functions in kernels with indirect branch tracking.
pub(crate) const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The site `offset` bytes into `symbol`; at 0, the function's entry, which is behind an `endbr64`, as for the kernel's own
/// kprobes.
pub(super) fn at_offset(
    text: &dyn KernelCode,
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
    text: &dyn KernelCode,
    symbol: &Symbol,
    offset: u64,
) -> Result<Result<Place, Refusal>, ResolveProblem> {
    let code = &*text.function_bytes(symbol);
    let decoded = check_boundary(code, symbol.address, offset)?;
    let ip = decoded.at();
    if clock::is_in_loop(symbol, code, ip) {
        return Ok(Err(Refusal::ClockLoop));
    }
    let place = |via, when| Place {
        ip,
        symbol: match &symbol.module {
            Some(module) => format!("{}+{offset:#x} [{module}]", symbol.name).into(),
            None => format!("{}+{offset:#x}", symbol.name).into(),
        },
        via,
        when,
        init: text.is_init(ip),
        owner: text
            .module()
            .map_or(MemoryOwner::Kernel, MemoryOwner::Module),
        arguments: ArgumentSource::Registers,
    };
    let here = Via::Plant {
        at: ip,
        len: decoded.len(),
    };
    Ok(Ok(match patched(text, &decoded) {
        None => place(here, PlantTime::TextPresent),
        Some((_, PatchTime::BootOnly)) => place(here, PlantTime::BootPatched),
        Some((kind, PatchTime::Runtime)) => match behind(text, symbol, code, &decoded, kind) {
            Some((via, when)) => place(via, when),
            None => place(Via::DebugRegister, PlantTime::TextPresent),
        },
    }))
}

fn patched(text: &dyn KernelCode, decoded: &Decoded) -> Option<(PatchKind, PatchTime)> {
    let site = text.patched(decoded.at(), decoded.len() as u64)?;
    Some((site.kind, site.kind.when()))
}

/// The instruction behind an ftrace call, if every path to the instruction goes through the call, and the kernel does not patch
/// the instruction at run time too.
fn behind(
    text: &dyn KernelCode,
    symbol: &Symbol,
    code: &[u8],
    call: &Decoded,
    kind: PatchKind,
) -> Option<(Via, PlantTime)> {
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
        None => Some((via, PlantTime::TextPresent)),
        Some((_, PatchTime::BootOnly)) => Some((via, PlantTime::BootPatched)),
        Some((_, PatchTime::Runtime)) => None,
    }
}
