//! The kinds of patch sites, and the times of patching.

/// The kind of a patch site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PatchKind {
    /// The call or nop switched on and off by dynamic ftrace.
    Ftrace,
    /// A static key's jump or nop.
    JumpLabel,
    /// A static call's direct call or jump.
    StaticCall,
    /// An alternative for some processor feature.
    Alternative,
    /// A lock prefix, dropped by a kernel with one processor, and restored for a second processor.
    SmpLock,
    /// An indirect branch through a retpoline.
    Retpoline,
    /// A jump to the return thunk.
    ReturnThunk,
    /// A paravirtual operation.
    Paravirt,
    /// An `endbr64` without any use.
    Endbr,
    /// A direct call redirected by call-depth tracking.
    CallThunk,
    /// An indirect call's control-flow check, or the hash in front of a function.
    Cfi,
    /// An immediate set once, to a pointer or a shift known at boot only.
    RuntimeConst,
}

/// The time at which a site may be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PatchTime {
    /// While the kernel boots, and not again.
    BootOnly,
    /// At any time.
    Runtime,
}

impl PatchKind {
    /// The time at which sites of this kind are patched.
    #[must_use]
    pub const fn when(self) -> PatchTime {
        match self {
            Self::Ftrace | Self::JumpLabel | Self::StaticCall => PatchTime::Runtime,
            Self::Alternative
            | Self::SmpLock
            | Self::Retpoline
            | Self::ReturnThunk
            | Self::Paravirt
            | Self::Endbr
            | Self::CallThunk
            | Self::Cfi
            | Self::RuntimeConst => PatchTime::BootOnly,
        }
    }
}
