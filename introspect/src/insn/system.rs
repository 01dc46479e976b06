//! Processor state read and changed by system instructions.

/// A segment register, with the processor's copy of the descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRegister {
    /// The selector, as read by `mov r, sreg`.
    pub selector: u16,
    /// The segment's base address.
    pub base: u64,
    /// The offset of the segment's last byte.
    pub limit: u32,
    /// Bits 40–55 of the descriptor, without the bits of the limit: type (0–3), S, privilege level
    /// (5–6), P, AVL (12), L, D/B, G. In an unusable segment only the privilege level counts.
    pub attributes: u16,
    /// Accesses through the segment are possible. The null selector makes a segment unusable; FS
    /// and GS keep their bases even then.
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
    /// The table's linear address.
    pub base: u64,
    /// The offset of the table's last byte.
    pub limit: u32,
}

/// The state of a processor in 64-bit mode read by system instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// The segment registers.
    pub segments: Segments,
    /// The global descriptor table.
    pub gdt: DescriptorTable,
    /// The local descriptor table, if loaded.
    pub ldt: Option<DescriptorTable>,
    /// EFER.SCE: `syscall` and `sysret` are enabled.
    pub fast_calls: bool,
    /// CR4.FSGSBASE: `rdfsbase` and the other instructions on bases are enabled.
    pub base_instructions: bool,
}

/// A model-specific register read by the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Msr {
    /// IA32_STAR (C0000081h): the selectors of `syscall` and `sysret`.
    Star,
    /// IA32_KERNEL_GS_BASE (C0000102h): the base swapped in by `swapgs`.
    KernelGsBase,
}

/// The interrupt shadow of an instruction on the next instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CastShadow {
    /// Interrupts are held back: IF has been set by `sti`.
    Sti,
    /// Interrupts, NMIs and debug traps are held back: SS has been loaded.
    MovSs,
}

/// The changes of a system instruction besides general registers, RIP and the flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemChanges {
    /// The segment registers, if any changes. FS and GS never change here.
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
