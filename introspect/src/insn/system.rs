//! What system instructions need of a processor, and what they change.

/// A segment register, with what the processor keeps of its descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRegister {
    /// What `mov r, sreg` reads.
    pub selector: u16,
    /// Where the segment begins.
    pub base: u64,
    /// The offset of its last byte.
    pub limit: u32,
    /// Bits 40–55 of the descriptor, those of the limit left out: type (0–3), S, privilege level
    /// (5–6), P, AVL (12), L, D/B, G. Of an unusable one only the privilege level counts.
    pub attributes: u16,
    /// It can be accessed through. The null selector makes a segment unusable; FS and GS have
    /// their bases even so.
    pub usable: bool,
}

impl SegmentRegister {
    /// The privilege level of the descriptor.
    #[must_use]
    pub const fn privilege_level(&self) -> u16 {
        (self.attributes >> 5) & 3
    }
}

/// The segment registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub struct Segments {
    pub cs: SegmentRegister,
    pub ss: SegmentRegister,
    pub ds: SegmentRegister,
    pub es: SegmentRegister,
    pub fs: SegmentRegister,
    pub gs: SegmentRegister,
}

/// A table of descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorTable {
    /// Its linear address.
    pub base: u64,
    /// The offset of its last byte.
    pub limit: u32,
}

/// The state of a processor in 64-bit mode that system instructions go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// The segment registers.
    pub segments: Segments,
    /// The global descriptor table.
    pub gdt: DescriptorTable,
    /// The local one, if one is loaded.
    pub ldt: Option<DescriptorTable>,
    /// EFER.SCE: there are `syscall` and `sysret`.
    pub fast_calls: bool,
    /// CR4.FSGSBASE: there are `rdfsbase` and its kind.
    pub base_instructions: bool,
}

/// A model-specific register that the emulator reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Msr {
    /// IA32_STAR (C0000081h): the selectors of `syscall` and `sysret`.
    Star,
    /// IA32_KERNEL_GS_BASE (C0000102h): what `swapgs` swaps in.
    KernelGsBase,
}

/// The interrupt shadow that an instruction casts on the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CastShadow {
    /// Interrupts are held back: IF has been set by `sti`.
    Sti,
    /// Interrupts, NMIs and debug traps are: SS has been loaded.
    MovSs,
}

/// What a system instruction changes besides general registers, RIP and the flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemChanges {
    /// The segment registers, if one of them changes. FS and GS never do here.
    pub segments: Option<Segments>,
    /// The base of FS.
    pub fs_base: Option<u64>,
    /// The base of GS.
    pub gs_base: Option<u64>,
    /// IA32_KERNEL_GS_BASE.
    pub kernel_gs_base: Option<u64>,
    /// NMIs are no longer masked.
    pub unmasks_nmis: bool,
    /// A shadow is cast on the next instruction.
    pub shadow: Option<CastShadow>,
    /// The processor waits for an interrupt before the next instruction.
    pub halts: bool,
}
