//! Privileged instructions, and pairs of instructions: written out, with random registers.

use reference::Random;

use super::super::layout::{Layout, STACK_BYTES};
use super::super::snippet::{RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, State};

const KERNEL_CODE: u64 = 0x10;
const KERNEL_DATA: u64 = 0x18;
const NON_CANONICAL: u64 = 0x8000_0000_0000;
/// The flags that `iret` may load: no trap flag, and no interrupt can come.
const IRET_FLAGS: u64 = 0x27_7ed5;
const TRAP_FLAG: u64 = 0x100;
/// `SYSENTER_*`, `STAR`, `FMASK`, the bases of FS and GS, and an MSR that does not exist.
const MSRS: [u64; 8] = [
    0x174,
    0x175,
    0x176,
    0xc000_0081,
    0xc000_0084,
    0xc000_0100,
    0xc000_0102,
    0x4000_beef,
];
/// Null, code, data, the selectors of programs, the task's, beyond the table, and of the missing local table.
const SELECTORS: [u64; 10] = [0, 3, 0x10, 0x18, 0x23, 0x2b, 0x30, 0x50, 0x1000, 0x1c];
const PORT: u64 = 0x80;

/// Makes a snippet of a kind.
type Make = fn(&mut Maker<'_>) -> Vec<u8>;

/// The context for making a snippet.
struct Maker<'a> {
    random: &'a mut Random,
    layout: &'a Layout,
    slot: u64,
    state: &'a mut State,
}

/// The kinds, and how often each comes up.
const KINDS: [(&str, u64, Make); 19] = [
    ("interrupt flag", 2, interrupt_flag),
    ("flags", 3, flags),
    ("swapgs", 2, swapgs),
    ("bases", 2, bases),
    ("msr", 3, msr),
    ("control register", 3, control_register),
    ("cr2", 1, fault_address),
    ("debug register", 1, debug_register),
    ("tables", 2, tables),
    ("selector", 3, selector),
    ("stack segment", 3, stack_segment),
    ("software interrupt", 3, software_interrupt),
    ("return", 4, interrupt_return),
    ("short return", 1, short_interrupt_return),
    ("far", 3, far),
    ("port", 3, port),
    ("exits", 1, exits),
    ("guest steps", 2, guest_steps),
    ("enter", 2, enter),
];

pub(super) fn code(
    random: &mut Random,
    layout: &Layout,
    slot: u64,
    state: &mut State,
) -> (&'static str, Vec<u8>) {
    let mut left = random.below(KINDS.iter().map(|(_, weight, _)| weight).sum());
    let mut maker = Maker {
        random,
        layout,
        slot,
        state,
    };
    for (name, weight, make) in KINDS {
        if left < weight {
            return (name, make(&mut maker));
        }
        left -= weight;
    }
    ("flags", flags(&mut maker))
}

impl Maker<'_> {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let which = self.random.below(of.len() as u64);
        of[usize::try_from(which).unwrap_or(0)]
    }

    fn one_of(&mut self, of: &[&[u8]]) -> Vec<u8> {
        self.pick(of).to_vec()
    }

    /// Puts `words` of `bytes` bytes each at the address in RSP.
    fn push_words(&mut self, bytes: usize, words: &[u64]) {
        for (number, word) in words.iter().enumerate() {
            let at = self.state.gprs[RSP] + (number * bytes) as u64;
            self.state
                .store(self.layout, at, &word.to_le_bytes()[..bytes]);
        }
    }

    fn selector(&mut self) -> u64 {
        let garbage = self.random.next() & !0xffff;
        self.pick(&SELECTORS) | garbage
    }
}

fn interrupt_flag(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.one_of(&[
        &[0xfa],
        &[0xfb],
        // sti; nop; cli
        &[0xfb, 0x90, 0xfa],
        // sti; pushfq; cli
        &[0xfb, 0x9c, 0xfa],
        // cli; pushfq; sti
        &[0xfa, 0x9c, 0xfb],
        // sti; sti; pop rax
        &[0xfb, 0xfb, 0x58],
    ])
}

fn flags(maker: &mut Maker<'_>) -> Vec<u8> {
    let image = maker.random.next() & IRET_FLAGS;
    maker.push_words(8, &[image]);
    maker.one_of(&[
        // popfq; pushfq
        &[0x9d, 0x9c],
        // popfq; pushfq; pop rax
        &[0x9d, 0x9c, 0x58],
        // popf of 16 bits
        &[0x66, 0x9d],
        &[0x66, 0x9c],
        // lahf; std; pushfq; cld; sahf
        &[0x9f, 0xfd, 0x9c, 0xfc, 0x9e],
        // cmc; pushfq; stc; pushfq
        &[0xf5, 0x9c, 0xf9, 0x9c],
        // clac; stac
        &[0x0f, 0x01, 0xca],
        &[0x0f, 0x01, 0xcb],
    ])
}

fn swapgs(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.state.gprs[RDI] = maker.random.below(64);
    maker.one_of(&[
        &[0x0f, 0x01, 0xf8],
        &[0x0f, 0x01, 0xf8, 0x0f, 0x01, 0xf8],
        // swapgs; mov rax, gs:[rdi]; swapgs; mov gs:[rdi], rbx
        &[
            0x0f, 0x01, 0xf8, 0x65, 0x48, 0x8b, 0x07, 0x0f, 0x01, 0xf8, 0x65, 0x48, 0x89, 0x1f,
        ],
    ])
}

fn bases(maker: &mut Maker<'_>) -> Vec<u8> {
    // A canonical address: TCG accepts other addresses, too.
    let base = maker.random.value().cast_signed() >> 17;
    maker.state.gprs[RAX] = base.cast_unsigned();
    // rdfsbase, rdgsbase, wrfsbase, wrgsbase of RAX.
    let modrm = maker.pick(&[0xc0, 0xc8, 0xd0, 0xd8]);
    match maker.random.one_in(4) {
        true => vec![0xf3, 0x0f, 0xae, modrm],
        false => vec![0xf3, 0x48, 0x0f, 0xae, modrm],
    }
}

fn msr(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.state.gprs[RCX] = maker.pick(&MSRS);
    // The bases are canonical: TCG accepts other addresses, too.
    maker.state.gprs[RDX] = maker.random.below(0x8000);
    // rdmsr; wrmsr and rdmsr
    maker.one_of(&[&[0x0f, 0x32], &[0x0f, 0x30, 0x0f, 0x32]])
}

fn control_register(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.one_of(&[
        // mov rax, crN
        &[0x0f, 0x20, 0xc0],
        &[0x0f, 0x20, 0xe0],
        &[0x44, 0x0f, 0x20, 0xc0],
        // The same value back into CR3, CR4, CR0.
        &[0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8],
        &[0x0f, 0x20, 0xe0, 0x0f, 0x22, 0xe0],
        &[0x0f, 0x20, 0xc0, 0x0f, 0x22, 0xc0],
        // CR1 and CR5 do not exist.
        &[0x0f, 0x20, 0xc8],
        &[0x0f, 0x20, 0xe8],
        // clts
        &[0x0f, 0x06],
        // smsw eax; lmsw ax
        &[0x0f, 0x01, 0xe0, 0x0f, 0x01, 0xf0],
        // invlpg [rdi], for any page
        &[0x0f, 0x01, 0x3f],
    ])
}

/// Writes CR2, and reads the value back.
fn fault_address(_: &mut Maker<'_>) -> Vec<u8> {
    vec![0x0f, 0x22, 0xd0, 0x0f, 0x20, 0xd3]
}

fn debug_register(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.one_of(&[
        // mov rax, dr0; dr7; dr6
        &[0x0f, 0x21, 0xc0],
        &[0x0f, 0x21, 0xf8],
        &[0x0f, 0x21, 0xf0],
        // mov dr2, rax; mov rbx, dr2
        &[0x0f, 0x23, 0xd0, 0x0f, 0x21, 0xd3],
    ])
}

fn tables(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.state.gprs[RDI] = maker.layout.middle() - maker.random.below(12);
    maker.one_of(&[
        // sgdt, sidt, smsw, str, sldt to [rdi]
        &[0x0f, 0x01, 0x07],
        &[0x0f, 0x01, 0x0f],
        &[0x0f, 0x01, 0x27],
        &[0x0f, 0x00, 0x0f],
        &[0x0f, 0x00, 0x07],
        // smsw, str, sldt to rax, eax
        &[0x48, 0x0f, 0x01, 0xe0],
        &[0x0f, 0x00, 0xc8],
        &[0x0f, 0x00, 0xc0],
    ])
}

fn selector(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.state.gprs[RAX] = maker.selector();
    let image = maker.selector();
    maker.push_words(8, &[image]);
    maker.one_of(&[
        // lar, lsl ebx, eax; verr, verw ax
        &[0x0f, 0x02, 0xd8],
        &[0x0f, 0x03, 0xd8],
        &[0x48, 0x0f, 0x02, 0xd8],
        &[0x48, 0x0f, 0x03, 0xd8],
        &[0x0f, 0x00, 0xe0],
        &[0x0f, 0x00, 0xe8],
        // mov ds, es, fs, gs, ax
        &[0x8e, 0xd8],
        &[0x8e, 0xc0],
        &[0x8e, 0xe0],
        &[0x8e, 0xe8],
        // mov eax, ds; mov rax, ss
        &[0x8c, 0xd8],
        &[0x48, 0x8c, 0xd0],
        // pop and push fs, gs
        &[0x0f, 0xa1],
        &[0x0f, 0xa9],
        &[0x0f, 0xa0],
        &[0x0f, 0xa8],
    ])
}

fn stack_segment(maker: &mut Maker<'_>) -> Vec<u8> {
    let rsp = maker.state.gprs[RSP];
    maker.state.gprs[RAX] = match maker.random.below(4) {
        0 => maker.selector(),
        _ => KERNEL_DATA,
    };
    maker.state.gprs[RBX] = rsp - 16;
    maker.state.gprs[RDI] = maker.layout.middle() - maker.random.below(8);
    let (at, selector) = (maker.state.gprs[RDI], maker.state.gprs[RAX]);
    let mut far = rsp.to_le_bytes()[..4].to_vec();
    far.extend(&selector.to_le_bytes()[..2]);
    maker.state.store(maker.layout, at, &far);
    maker.one_of(&[
        // mov ss, eax
        &[0x8e, 0xd0],
        // mov ss, eax; mov rsp, rbx
        &[0x8e, 0xd0, 0x48, 0x89, 0xdc],
        // mov ss, eax; mov rsp, rbx; push rcx
        &[0x8e, 0xd0, 0x48, 0x89, 0xdc, 0x51],
        // mov ss, eax; pushfq
        &[0x8e, 0xd0, 0x9c],
        // mov ss, eax; int3; the exception is held back on no processor
        &[0x8e, 0xd0, 0xcc],
        // mov ss, eax; mov ss, eax; nop
        &[0x8e, 0xd0, 0x8e, 0xd0, 0x90],
        // lss esp, [rdi]
        &[0x0f, 0xb2, 0x27],
    ])
}

fn software_interrupt(maker: &mut Maker<'_>) -> Vec<u8> {
    let vector = maker.pick(&[
        0u8, 1, 3, 4, 5, 6, 7, 9, 16, 18, 19, 29, 31, 0x20, 0x80, 0xff,
    ]);
    match maker.random.below(4) {
        0 => vec![0xcc],
        1 => vec![0xf1],
        _ => vec![0xcd, vector],
    }
}

fn interrupt_return(maker: &mut Maker<'_>) -> Vec<u8> {
    interrupt_frame(maker, 8);
    maker.one_of(&[&[0x48, 0xcf], &[0x48, 0xcf], &[0x90, 0x48, 0xcf]])
}

/// With operands of 32 bits; RSP and SS are popped all the same.
fn short_interrupt_return(maker: &mut Maker<'_>) -> Vec<u8> {
    interrupt_frame(maker, 4);
    vec![0xcf]
}

/// Mostly a frame that returns to the branch target.
fn interrupt_frame(maker: &mut Maker<'_>, bytes: usize) {
    let rip = match maker.random.below(10) {
        0 => NON_CANONICAL,
        1 => maker.layout.absent(),
        _ => Layout::target(maker.slot),
    };
    let cs = match maker.random.below(10) {
        0 => maker.pick(&[0, 0x18, 0x50, 0x30]),
        _ => KERNEL_CODE,
    };
    let ss = match maker.random.below(10) {
        0 => maker.pick(&[0, 0x10, 0x50, 0x23]),
        _ => KERNEL_DATA,
    };
    let stack = maker.layout.stack() + maker.random.below(STACK_BYTES as u64);
    let flags = maker.random.next() & IRET_FLAGS;
    maker.state.gprs[RSP] = (maker.layout.stack() + STACK_BYTES as u64 / 2) & !7;
    if maker.random.one_in(20) {
        // The frame continues in unmapped memory.
        maker.state.gprs[RSP] = maker.layout.absent() - 8 * (1 + maker.random.below(4));
    }
    maker.push_words(bytes, &[rip, cs, flags, stack, ss]);
}

fn far(maker: &mut Maker<'_>) -> Vec<u8> {
    let selector = match maker.random.below(4) {
        0 => maker.selector(),
        _ => KERNEL_CODE,
    };
    let target = Layout::target(maker.slot);
    match maker.random.below(4) {
        // retfq, retf, retf with something to drop
        0 => {
            maker.push_words(8, &[target, selector]);
            maker.one_of(&[&[0x48, 0xcb], &[0x48, 0xca, 0x10, 0x00]])
        }
        1 => {
            maker.push_words(4, &[target, selector]);
            vec![0xcb]
        }
        // jmp and call through [rdi]
        _ => {
            maker.state.gprs[RDI] = maker.layout.middle() - maker.random.below(8);
            let at = maker.state.gprs[RDI];
            let mut pointer = target.to_le_bytes()[..4].to_vec();
            pointer.extend(&selector.to_le_bytes()[..2]);
            maker.state.store(maker.layout, at, &pointer);
            maker.one_of(&[&[0xff, 0x2f], &[0xff, 0x1f]])
        }
    }
}

fn port(maker: &mut Maker<'_>) -> Vec<u8> {
    let garbage = maker.random.next() & !0xffff;
    maker.state.gprs[RDX] = PORT | garbage;
    maker.state.gprs[RSI] = maker.layout.middle() - maker.random.below(8);
    maker.state.gprs[RDI] = maker.layout.middle() + maker.random.below(8);
    maker.state.gprs[RCX] = maker.random.below(4);
    maker.one_of(&[
        &[0xec],
        &[0xed],
        &[0x66, 0xed],
        &[0xee],
        &[0xef],
        &[0x66, 0xef],
        &[0xe4, 0x80],
        &[0xe5, 0x80],
        &[0xe6, 0x80],
        &[0xe7, 0x80],
        &[0x6c],
        &[0x6d],
        &[0x6e],
        &[0x6f],
        &[0xf3, 0x6c],
        &[0xf3, 0x6e],
        &[0xf3, 0x66, 0x6f],
    ])
}

/// They leave the guest for KVM to answer.
fn exits(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.state.gprs[RAX] = maker.pick(&[0, 0x8000_0000, 0x8000_0002]);
    maker.state.gprs[RCX] = 0;
    // cpuid; xgetbv; wbinvd
    maker.one_of(&[&[0x0f, 0xa2], &[0x0f, 0x01, 0xd0], &[0x0f, 0x09]])
}

/// The guest's own trap flag: popfq loads the flag, and #DB comes behind the next instruction.
fn guest_steps(maker: &mut Maker<'_>) -> Vec<u8> {
    let flags = maker.random.next() & 0x8d5 | TRAP_FLAG | 2;
    maker.state.gprs[RSP] = (maker.layout.stack() + STACK_BYTES as u64 / 2) & !7;
    maker.push_words(8, &[flags]);
    maker.state.gprs[RSI] = maker.layout.middle() - 32;
    maker.state.gprs[RDI] = maker.layout.middle();
    maker.state.gprs[RCX] = 3;
    maker.one_of(&[
        &[0x9d],
        // add rax, rbx
        &[0x9d, 0x48, 0x01, 0xd8],
        // pushfq
        &[0x9d, 0x9c],
        // addps xmm0, xmm1
        &[0x9d, 0x0f, 0x58, 0xc1],
        // rep movsb
        &[0x9d, 0xf3, 0xa4],
        // popfq
        &[0x9d, 0x9d],
        // mov rax, [rsi]
        &[0x9d, 0x48, 0x8b, 0x06],
    ])
}

fn enter(maker: &mut Maker<'_>) -> Vec<u8> {
    maker.state.gprs[RBP] = maker.layout.stack() + STACK_BYTES as u64 - 64;
    let [size, ..] = maker.random.below(64).to_le_bytes();
    let [level, ..] = maker.random.below(4).to_le_bytes();
    match maker.random.one_in(6) {
        true => vec![0x66, 0xc8, size, 0, level],
        false => vec![0xc8, size, 0, level],
    }
}
