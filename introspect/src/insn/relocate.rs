//! Instructions with exactly the same effect at another address.
//!
//! The guest's processor runs a copy of the instruction, with a jump back behind the copy. The copy
//! must therefore not depend on the address, and must not fault: in the frame, the guest's handler
//! would find an address missing from the exception tables and the table of bugs. The list below
//! holds instructions known to be harmless; all other instructions stay in place.
//!
//! | instructions | no fault at privilege level 0, because |
//! |---|---|
//! | `rdtsc`, `rdtscp`, `rdpid`, `cpuid` | CR4.TSD and CPUID faulting are about the other levels |
//! | `rdrand`, `rdseed`, `serialize`, fences, `pause` | they have no operand to be wrong |
//! | `popcnt`, `crc32` and their kind, in registers | no value is wrong |
//! | reading CR0, CR2, CR3, CR4, CR8, segment registers, `smsw`, `str`, `sldt`; `clts`, `wbinvd` | UMIP is about the other levels |
//! | `rdfsbase`, `rdgsbase` | CR4.FSGSBASE is looked at |
//! | `invlpg` | the operand is an address and not accessed |
//! | `fninit`, `fnclex`, `fnstsw ax` | they do not wait for pending exceptions; CR0.EM and TS are looked at |
//! | moves, logic and integer arithmetic of SSE and AVX, in registers | no numeric exceptions; CR0, CR4, XCR0 are looked at |

use iced_x86::{CpuidFeature, EncodingKind, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::decode::Decoded;

/// Whether a copy can replace an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocation {
    /// A copy has the same effect, if the processor's state meets the needs.
    Relocatable(Needs),
    /// The instruction must run in place.
    Not(Immovable),
}

/// The processor state needed for an instruction not to fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Any state will do.
    Nothing,
    /// The floating-point unit exists and is on.
    Fpu,
    /// SSE has been switched on.
    Sse,
    /// AVX has been switched on.
    Avx,
    /// CR4.FSGSBASE.
    FsGsBase,
}

/// The reason for an instruction to run in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Immovable {
    /// The instruction accesses memory, which may fault, or has an operand relative to RIP.
    Memory,
    /// The instruction does not continue to the next instruction.
    Branch,
    /// The guest's processor lacks the instruction.
    MissingFeature,
    /// The instruction may fault, change address translation, wait, or hold interrupts back; or is
    /// not yet examined.
    MayFault,
}

const CR0_EM: u64 = 1 << 2;
const CR0_TS: u64 = 1 << 3;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_OSXSAVE: u64 = 1 << 18;
/// XCR0: the SSE registers and the upper halves of the AVX registers.
const XCR0_AVX: u64 = 0b110;

impl Needs {
    /// Whether the control registers meet the need. XCR0 counts only for [`Needs::Avx`].
    #[must_use]
    pub const fn are_met(self, cr0: u64, cr4: u64, xcr0: u64) -> bool {
        let fpu = cr0 & (CR0_EM | CR0_TS) == 0;
        match self {
            Self::Nothing => true,
            Self::Fpu => fpu,
            Self::Sse => fpu && cr4 & CR4_OSFXSR != 0,
            // TS counts for AVX too, EM does not; no kernel sets EM beside OSXSAVE.
            Self::Avx => fpu && cr4 & CR4_OSXSAVE != 0 && xcr0 & XCR0_AVX == XCR0_AVX,
            Self::FsGsBase => cr4 & CR4_FSGSBASE != 0,
        }
    }
}

/// The words of CPUID listing the instructions of the guest's processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidWords {
    /// Leaf 1, ECX.
    pub leaf1_ecx: u32,
    /// Leaf 1, EDX.
    pub leaf1_edx: u32,
    /// Leaf 7, subleaf 0, EBX.
    pub leaf7_ebx: u32,
    /// Leaf 7, subleaf 0, ECX.
    pub leaf7_ecx: u32,
    /// Leaf 7, subleaf 0, EDX.
    pub leaf7_edx: u32,
    /// Leaf 8000_0001h, ECX.
    pub extended_ecx: u32,
    /// Leaf 8000_0001h, EDX.
    pub extended_edx: u32,
}

impl CpuidWords {
    /// All instructions; for tests.
    pub const ALL: Self = Self {
        leaf1_ecx: !0,
        leaf1_edx: !0,
        leaf7_ebx: !0,
        leaf7_ecx: !0,
        leaf7_edx: !0,
        extended_ecx: !0,
        extended_edx: !0,
    };

    const fn has(&self, feature: CpuidFeature) -> bool {
        use CpuidFeature as F;
        let (word, bit) = match feature {
            // Features of every 64-bit processor.
            F::INTEL8086
            | F::INTEL186
            | F::INTEL286
            | F::INTEL386
            | F::INTEL486
            | F::X64
            | F::CPUID
            | F::SMM
            | F::PAUSE => return true,
            F::FPU | F::FPU287 | F::FPU387 => (self.leaf1_edx, 0),
            F::TSC => (self.leaf1_edx, 4),
            F::SSE => (self.leaf1_edx, 25),
            F::SSE2 => (self.leaf1_edx, 26),
            F::SSE3 => (self.leaf1_ecx, 0),
            F::PCLMULQDQ => (self.leaf1_ecx, 1),
            F::SSSE3 => (self.leaf1_ecx, 9),
            F::SSE4_1 => (self.leaf1_ecx, 19),
            F::SSE4_2 => (self.leaf1_ecx, 20),
            F::POPCNT => (self.leaf1_ecx, 23),
            F::AES => (self.leaf1_ecx, 25),
            F::AVX => (self.leaf1_ecx, 28),
            F::RDRAND => (self.leaf1_ecx, 30),
            F::FSGSBASE => (self.leaf7_ebx, 0),
            F::BMI1 => (self.leaf7_ebx, 3),
            F::AVX2 => (self.leaf7_ebx, 5),
            F::BMI2 => (self.leaf7_ebx, 8),
            F::RDSEED => (self.leaf7_ebx, 18),
            F::ADX => (self.leaf7_ebx, 19),
            F::SHA => (self.leaf7_ebx, 29),
            F::GFNI => (self.leaf7_ecx, 8),
            F::VAES => (self.leaf7_ecx, 9),
            F::VPCLMULQDQ => (self.leaf7_ecx, 10),
            F::RDPID => (self.leaf7_ecx, 22),
            F::SERIALIZE => (self.leaf7_edx, 14),
            F::LZCNT => (self.extended_ecx, 5),
            F::RDTSCP => (self.extended_edx, 27),
            _ => return false,
        };
        word & (1 << bit) != 0
    }
}

/// Whether a copy of `decoded`, run at privilege level 0 of a processor with `cpuid`, has the same
/// effect as the original.
#[must_use]
pub fn relocation(decoded: &Decoded, cpuid: &CpuidWords) -> Relocation {
    match needs(decoded.instruction(), cpuid) {
        Ok(needs) => Relocation::Relocatable(needs),
        Err(why) => Relocation::Not(why),
    }
}

fn needs(insn: &Instruction, cpuid: &CpuidWords) -> Result<Needs, Immovable> {
    use Mnemonic as M;
    if insn.flow_control() != FlowControl::Next {
        return Err(Immovable::Branch);
    }
    let address_only = insn.mnemonic() == M::Invlpg && !insn.is_ip_rel_memory_operand();
    if insn.op_kinds().any(is_memory) && !address_only {
        return Err(Immovable::Memory);
    }
    let needs = match insn.mnemonic() {
        M::Rdtsc
        | M::Rdtscp
        | M::Rdpid
        | M::Cpuid
        | M::Rdrand
        | M::Rdseed
        | M::Serialize
        | M::Lfence
        | M::Mfence
        | M::Sfence
        | M::Pause
        | M::Clts
        | M::Wbinvd
        | M::Invlpg
        | M::Smsw
        | M::Str
        | M::Sldt
        | M::Popcnt
        | M::Lzcnt
        | M::Tzcnt
        | M::Crc32
        | M::Andn
        | M::Bextr
        | M::Blsi
        | M::Blsmsk
        | M::Blsr
        | M::Bzhi
        | M::Mulx
        | M::Pdep
        | M::Pext
        | M::Rorx
        | M::Sarx
        | M::Shlx
        | M::Shrx
        | M::Adcx
        | M::Adox => Needs::Nothing,
        M::Mov if reads_system_register(insn) => Needs::Nothing,
        M::Rdfsbase | M::Rdgsbase => Needs::FsGsBase,
        M::Fninit | M::Fnclex | M::Fnstsw => Needs::Fpu,
        other if is_integer_vector(other) && !touches_mmx(insn) => match insn.encoding() {
            EncodingKind::Legacy => Needs::Sse,
            EncodingKind::VEX => Needs::Avx,
            _ => return Err(Immovable::MayFault),
        },
        _ => return Err(Immovable::MayFault),
    };
    if insn
        .cpuid_features()
        .iter()
        .all(|&feature| cpuid.has(feature))
    {
        Ok(needs)
    } else {
        Err(Immovable::MissingFeature)
    }
}

const fn is_memory(kind: OpKind) -> bool {
    !matches!(
        kind,
        OpKind::Register
            | OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// Reading CR1 or CR5 faults; reading a debug register may fault, because debug registers can be
/// guarded.
fn reads_system_register(insn: &Instruction) -> bool {
    let source = insn.op1_register();
    insn.op0_register().is_gpr()
        && (source.is_segment_register()
            || matches!(
                source,
                Register::CR0 | Register::CR2 | Register::CR3 | Register::CR4 | Register::CR8
            ))
}

/// Instructions on MMX registers check for pending exceptions of the floating-point unit.
fn touches_mmx(insn: &Instruction) -> bool {
    (0..insn.op_count()).any(|operand| insn.op_register(operand).is_mm())
}

/// Instructions of SSE and AVX without numeric exceptions for any operands.
#[rustfmt::skip]
const fn is_integer_vector(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Movaps | M::Movapd | M::Movups | M::Movupd | M::Movdqa | M::Movdqu | M::Movd | M::Movq | M::Movss | M::Movsd
        | M::Movhlps | M::Movlhps | M::Movmskps | M::Movmskpd | M::Movddup | M::Movshdup | M::Movsldup
        | M::Andps | M::Andpd | M::Andnps | M::Andnpd | M::Orps | M::Orpd | M::Xorps | M::Xorpd
        | M::Shufps | M::Shufpd | M::Unpckhps | M::Unpckhpd | M::Unpcklps | M::Unpcklpd
        | M::Pand | M::Pandn | M::Por | M::Pxor
        | M::Paddb | M::Paddw | M::Paddd | M::Paddq | M::Psubb | M::Psubw | M::Psubd | M::Psubq
        | M::Pmullw | M::Pmulld | M::Pmuludq | M::Pmuldq | M::Pmulhw | M::Pmulhuw | M::Pmaddwd | M::Pmaddubsw
        | M::Psllw | M::Pslld | M::Psllq | M::Pslldq | M::Psrlw | M::Psrld | M::Psrlq | M::Psrldq | M::Psraw | M::Psrad
        | M::Pcmpeqb | M::Pcmpeqw | M::Pcmpeqd | M::Pcmpeqq | M::Pcmpgtb | M::Pcmpgtw | M::Pcmpgtd | M::Pcmpgtq
        | M::Pshufb | M::Pshufd | M::Pshufhw | M::Pshuflw | M::Palignr | M::Pblendw | M::Pblendvb
        | M::Punpckhbw | M::Punpckhwd | M::Punpckhdq | M::Punpckhqdq
        | M::Punpcklbw | M::Punpcklwd | M::Punpckldq | M::Punpcklqdq
        | M::Packsswb | M::Packssdw | M::Packuswb | M::Packusdw | M::Pmovmskb
        | M::Pextrb | M::Pextrw | M::Pextrd | M::Pextrq | M::Pinsrb | M::Pinsrw | M::Pinsrd | M::Pinsrq
        | M::Pminub | M::Pminsw | M::Pminud | M::Pmaxub | M::Pmaxsw | M::Pmaxud | M::Pavgb | M::Pavgw | M::Psadbw
        | M::Pabsb | M::Pabsw | M::Pabsd | M::Ptest
        | M::Aesenc | M::Aesenclast | M::Aesdec | M::Aesdeclast | M::Aesimc | M::Aeskeygenassist | M::Pclmulqdq
        | M::Sha1msg1 | M::Sha1msg2 | M::Sha1nexte | M::Sha1rnds4 | M::Sha256msg1 | M::Sha256msg2 | M::Sha256rnds2
        | M::Gf2p8affineqb | M::Gf2p8affineinvqb | M::Gf2p8mulb
        | M::Vmovaps | M::Vmovapd | M::Vmovups | M::Vmovupd | M::Vmovdqa | M::Vmovdqu | M::Vmovd | M::Vmovq
        | M::Vandps | M::Vandpd | M::Vorps | M::Vorpd | M::Vxorps | M::Vxorpd | M::Vzeroupper | M::Vzeroall
        | M::Vpand | M::Vpandn | M::Vpor | M::Vpxor
        | M::Vpaddb | M::Vpaddw | M::Vpaddd | M::Vpaddq | M::Vpsubb | M::Vpsubw | M::Vpsubd | M::Vpsubq
        | M::Vpmuludq | M::Vpmulld
        | M::Vpsllw | M::Vpslld | M::Vpsllq | M::Vpslldq | M::Vpsrlw | M::Vpsrld | M::Vpsrlq | M::Vpsrldq
        | M::Vpsraw | M::Vpsrad | M::Vpsllvd | M::Vpsllvq | M::Vpsrlvd | M::Vpsrlvq
        | M::Vpcmpeqb | M::Vpcmpeqd | M::Vpcmpeqq | M::Vpcmpgtb | M::Vpcmpgtd
        | M::Vpshufb | M::Vpshufd | M::Vpalignr | M::Vpblendd | M::Vpblendw | M::Vpermq | M::Vperm2i128 | M::Vperm2f128
        | M::Vpunpckhdq | M::Vpunpckhqdq | M::Vpunpckldq | M::Vpunpcklqdq
        | M::Vpmovmskb | M::Vextracti128 | M::Vextractf128 | M::Vinserti128 | M::Vinsertf128
        | M::Vpextrd | M::Vpextrq | M::Vpinsrd | M::Vpinsrq | M::Vptest
        | M::Vaesenc | M::Vaesenclast | M::Vaesdec | M::Vaesdeclast | M::Vpclmulqdq
        | M::Vgf2p8affineqb | M::Vgf2p8mulb
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::decode;
    use address::Gva;

    const AT: Gva = Gva(0xffff_ffff_8100_0000);

    fn of(bytes: &[u8]) -> Relocation {
        with(bytes, &CpuidWords::ALL)
    }

    fn with(bytes: &[u8], cpuid: &CpuidWords) -> Relocation {
        let decoded = decode(bytes, AT).expect("an instruction");
        assert_eq!(decoded.len(), bytes.len());
        relocation(&decoded, cpuid)
    }

    #[test]
    fn instruction_that_cannot_fault_is_relocatable() {
        for (bytes, needs) in [
            (&[0x0f, 0x31][..], Needs::Nothing),                     // rdtsc
            (&[0x0f, 0x01, 0xf9], Needs::Nothing),                   // rdtscp
            (&[0x0f, 0xa2], Needs::Nothing),                         // cpuid
            (&[0x0f, 0xae, 0xe8], Needs::Nothing),                   // lfence
            (&[0x0f, 0x20, 0xd8], Needs::Nothing),                   // mov rax, cr3
            (&[0x44, 0x0f, 0x20, 0xc0], Needs::Nothing),             // mov rax, cr8
            (&[0x8c, 0xd8], Needs::Nothing),                         // mov eax, ds
            (&[0x0f, 0x06], Needs::Nothing),                         // clts
            (&[0x0f, 0x01, 0x3f], Needs::Nothing),                   // invlpg [rdi]
            (&[0xf3, 0x48, 0x0f, 0xae, 0xc8], Needs::FsGsBase),      // rdgsbase rax
            (&[0xf2, 0x48, 0x0f, 0x38, 0xf1, 0xc7], Needs::Nothing), // crc32 rax, rdi
            (&[0xdb, 0xe3], Needs::Fpu),                             // fninit
            (&[0x66, 0x0f, 0xef, 0xc1], Needs::Sse),                 // pxor xmm0, xmm1
            (&[0xc5, 0xfd, 0xef, 0xc1], Needs::Avx),                 // vpxor ymm0, ymm0, ymm1
        ] {
            assert_eq!(of(bytes), Relocation::Relocatable(needs), "{bytes:02x?}");
        }
    }

    #[test]
    fn faulting_or_relative_instruction_is_immovable() {
        use Immovable as I;
        for (bytes, why) in [
            (&[0x0f, 0x30][..], I::MayFault),             // wrmsr
            (&[0x0f, 0x32], I::MayFault),                 // rdmsr
            (&[0x0f, 0x22, 0xd8], I::MayFault),           // mov cr3, rax
            (&[0x0f, 0x21, 0xf8], I::MayFault),           // mov rax, dr7
            (&[0x8e, 0xd8], I::MayFault),                 // mov ds, eax
            (&[0xfb], I::MayFault),                       // sti
            (&[0x0f, 0x01, 0xf8], I::MayFault),           // swapgs
            (&[0xf4], I::MayFault),                       // hlt
            (&[0x0f, 0x58, 0xc1], I::MayFault),           // addps xmm0, xmm1: numeric exceptions
            (&[0x0f, 0xef, 0xc1], I::MayFault),           // pxor mm0, mm1
            (&[0x9b], I::MayFault),                       // fwait
            (&[0x66, 0x0f, 0x6f, 0x07], I::Memory),       // movdqa xmm0, [rdi]
            (&[0x0f, 0x01, 0x3d, 0, 0, 0, 0], I::Memory), // invlpg [rip]
            (&[0x0f, 0x00, 0x2d, 0, 0, 0, 0], I::Memory), // verw [rip]
            (&[0xf3, 0xa4], I::Memory),                   // rep movsb
            (&[0xeb, 0x00], I::Branch),                   // jmp
            (&[0x48, 0xcf], I::Branch),                   // iretq
            (&[0xcd, 0x80], I::Branch),                   // int 0x80
            (&[0x0f, 0x0b], I::Branch),                   // ud2
            (&[0x0f, 0x05], I::Branch),                   // syscall
            (&[0x0f, 0x01, 0xc1], I::Branch),             // vmcall
        ] {
            assert_eq!(of(bytes), Relocation::Not(why), "{bytes:02x?}");
        }
    }

    #[test]
    fn instruction_of_a_missing_feature_is_immovable() {
        let none = CpuidWords::default();
        let missing = Relocation::Not(Immovable::MissingFeature);
        assert_eq!(with(&[0x0f, 0x01, 0xf9], &none), missing);
        assert_eq!(with(&[0xc5, 0xfd, 0xef, 0xc1], &none), missing);
        let sse2_only = CpuidWords {
            leaf1_edx: 1 << 26,
            ..none
        };
        let pxor = &[0x66, 0x0f, 0xef, 0xc1];
        assert_eq!(with(pxor, &none), missing);
        assert_eq!(with(pxor, &sse2_only), Relocation::Relocatable(Needs::Sse));
        // mov rax, cr3: every processor can.
        assert_eq!(
            with(&[0x0f, 0x20, 0xd8], &none),
            Relocation::Relocatable(Needs::Nothing)
        );
    }

    #[test]
    fn the_state_of_the_processor_counts() {
        let (em, ts, osfxsr, fsgsbase, osxsave) = (1 << 2, 1 << 3, 1 << 9, 1 << 16, 1 << 18);
        assert!(Needs::Nothing.are_met(em | ts, 0, 0));
        assert!(Needs::Fpu.are_met(0, 0, 0) && !Needs::Fpu.are_met(ts, 0, 0));
        assert!(Needs::Sse.are_met(0, osfxsr, 0));
        assert!(!Needs::Sse.are_met(0, 0, 7) && !Needs::Sse.are_met(em, osfxsr, 0));
        assert!(Needs::Avx.are_met(0, osxsave, 7));
        assert!(!Needs::Avx.are_met(0, osxsave, 3) && !Needs::Avx.are_met(0, 0, 7));
        assert!(!Needs::Avx.are_met(ts, osxsave, 7));
        assert!(Needs::FsGsBase.are_met(0, fsgsbase, 0) && !Needs::FsGsBase.are_met(0, 0, 0));
    }
}
