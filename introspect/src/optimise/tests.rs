use address::{Gpa, Gva};
use proptest::prelude::*;

use super::{Fixed, MAX_REGION_BYTES, Optimisable, Survey, Unfit, WhyNot};
use crate::image::synthetic::elf;
use crate::{KernelImage, PatchKind, PatchSite, PatchSites, SymbolTableBuilder, image::Segment};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const TEXT_BYTES: usize = 0x1000;

/// `push rbp; mov rbp, rsp; push rbx`, five bytes; `xor eax, eax; ret`.
const PLAIN: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x31, 0xc0, 0xc3];
/// `mov eax, 1; ret`.
const ONE: [u8; 6] = [0xb8, 1, 0, 0, 0, 0xc3];

/// A kernel with a page of code and tables behind the code.
struct Kernel {
    code: Vec<u8>,
    data: Vec<u8>,
    symbols: SymbolTableBuilder,
    sites: Vec<PatchSite>,
}

impl Kernel {
    fn new() -> Self {
        let mut symbols = SymbolTableBuilder::new();
        symbols.push(Gva(TEXT), 'T', "_text");
        symbols.push(Gva(TEXT + TEXT_BYTES as u64), 'T', "_etext");
        let mut kernel = Self {
            code: Vec::new(),
            data: Vec::new(),
            symbols,
            sites: Vec::new(),
        };
        kernel.function("first", &[0xc3; 16]);
        kernel
    }

    /// A kernel with one function and an empty exception table.
    fn of(code: &[u8]) -> (Self, Gva) {
        let mut kernel = Self::new();
        let at = kernel.function("f", code);
        kernel.table("___ex_table", |_| ());
        (kernel, at)
    }

    fn function(&mut self, name: &str, code: &[u8]) -> Gva {
        let at = Gva(TEXT + self.code.len() as u64);
        self.symbols.push(at, 't', name);
        self.code.extend(code);
        at
    }

    /// A jump to `target`, in a separate function.
    fn jump(&mut self, name: &str, target: Gva) {
        let behind = TEXT + self.code.len() as u64 + 5;
        let distance = target.0.wrapping_sub(behind).to_le_bytes();
        self.function(name, &[&[0xe9], &distance[..4]].concat());
    }

    fn here(&self) -> Gva {
        Gva(TEXT + (TEXT_BYTES + self.data.len()) as u64)
    }

    fn relative(&mut self, target: Gva) {
        let distance = target.0.wrapping_sub(self.here().0);
        self.data.extend(&distance.to_le_bytes()[..4]);
    }

    fn table(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        self.symbols
            .push(self.here(), 'R', &format!("__start{name}"));
        write(self);
        self.symbols
            .push(self.here(), 'R', &format!("__stop{name}"));
    }

    fn site(&mut self, address: Gva, len: u8, kind: PatchKind) {
        self.sites.push(PatchSite {
            address,
            len,
            kind,
            target: None,
        });
    }

    fn image(&self) -> KernelImage {
        let mut bytes = self.code.clone();
        bytes.resize(TEXT_BYTES, 0xcc);
        bytes.extend(&self.data);
        let segment = Segment {
            file_offset: 0,
            file_size: 0,
            memory_size: bytes.len() as u64,
            physical: Gpa(0x100_0000),
            virt: Gva(TEXT),
        };
        KernelImage::parse(elf(0x100_0000, &[(segment, &bytes)])).expect("an ELF file")
    }

    fn verdict(self, at: Gva) -> Result<Optimisable, WhyNot> {
        let image = self.image();
        let survey = Survey::of_kernel(&image, &self.symbols.build());
        let code = image.bytes_at(at, MAX_REGION_BYTES).expect("code");
        let sites: PatchSites = self.sites.into_iter().collect();
        survey.verdict(&sites, at, code)
    }
}

fn verdict(code: &[u8]) -> Result<Optimisable, WhyNot> {
    let (kernel, at) = Kernel::of(code);
    kernel.verdict(at)
}

const fn yes(region_len: usize, instructions: usize) -> Result<Optimisable, WhyNot> {
    Ok(Optimisable {
        region_len,
        instructions,
        ends: false,
        boot_patched: false,
    })
}

#[test]
fn whole_instructions_of_five_bytes_or_more() {
    assert_eq!(verdict(&PLAIN), yes(5, 3));
    assert_eq!(verdict(&ONE), yes(5, 1));
    // mov rax, [rip+0x10]; ret
    assert_eq!(verdict(&[0x48, 0x8b, 5, 0x10, 0, 0, 0, 0xc3]), yes(7, 1));
    // test edi, edi; je +4; mov rax, gs:[0x28]: fourteen bytes
    let code = [
        0x85, 0xff, 0x74, 0x09, 0x65, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0, 0xc3, 0xc3,
    ];
    assert_eq!(verdict(&code), yes(13, 3));
    // lock cmpxchg16b [rdi]; rdtsc: unknown to the emulator, allowed in a detour.
    let code = [0xf0, 0x48, 0x0f, 0xc7, 0x0f, 0xc3];
    assert_eq!(verdict(&code), yes(5, 1));
    let code = [0x0f, 0x31, 0xf3, 0x48, 0xa5, 0xc3];
    assert_eq!(verdict(&code), yes(5, 2));
}

#[test]
fn padding_behind_the_end_may_be_under_the_jump() {
    let ends = |region_len, instructions| {
        Ok(Optimisable {
            ends: true,
            ..yes(region_len, instructions).expect("yes")
        })
    };
    assert_eq!(verdict(&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc]), ends(5, 1));
    // xor eax, eax; ret; a nop of seven bytes
    let code = [0x31, 0xc0, 0xc3, 0x0f, 0x1f, 0x80, 0, 0, 0, 0];
    assert_eq!(verdict(&code), ends(10, 2));
    // jmp rel32
    assert_eq!(verdict(&[0xe9, 0, 0, 0, 0, 0xc3]), ends(5, 1));
    // The next function is not padding, nor is code.
    let (mut kernel, at) = Kernel::of(&[0xc3, 0xcc]);
    kernel.function("g", &ONE);
    assert_eq!(kernel.verdict(at), Err(WhyNot::TooShort { bytes: 2 }));
    let short = Err(WhyNot::TooShort { bytes: 1 });
    assert_eq!(verdict(&[0xc3, 0x31, 0xc0, 0xc3, 0xcc, 0xcc]), short);
}

#[test]
fn nothing_branches_into_it() {
    let into = |to| Err(WhyNot::BranchInto { to });
    // ..; jne f+4
    let code = [&PLAIN[..7], &[0x75, 0xfb, 0xc3]].concat();
    let (kernel, at) = Kernel::of(&code);
    assert_eq!(kernel.verdict(at), into(at.wrapping_add(4)));
    // ..; jne f; the address behind the region is outside.
    let code = [&PLAIN[..7], &[0x75, 0xf7, 0xc3]].concat();
    assert_eq!(verdict(&code), yes(5, 3));
    let code = [&PLAIN[..7], &[0x75, 0xfc, 0xc3]].concat();
    assert_eq!(verdict(&code), yes(5, 3));
    // From another function, as compilers split them.
    let (mut kernel, at) = Kernel::of(&PLAIN);
    kernel.jump("f.cold", at.wrapping_add(1));
    assert_eq!(kernel.verdict(at), into(at.wrapping_add(1)));
}

#[test]
fn no_table_of_the_kernel_leads_into_it() {
    let inside = |at: Gva| at.wrapping_add(4);
    let into = |at| Err(WhyNot::BranchInto { to: inside(at) });
    // A jump label elsewhere.
    let (mut kernel, at) = Kernel::of(&PLAIN);
    kernel.table("___jump_table", |kernel| {
        kernel.relative(Gva(TEXT));
        kernel.relative(inside(at));
        kernel.data.extend([0; 8]);
    });
    assert_eq!(kernel.verdict(at), into(at));
    // Where the kernel goes on after a fault.
    let mut kernel = Kernel::new();
    let at = kernel.function("f", &PLAIN);
    kernel.table("___ex_table", |kernel| {
        kernel.relative(Gva(TEXT));
        kernel.relative(inside(at));
        kernel.data.extend([0; 4]);
    });
    assert_eq!(kernel.verdict(at), into(at));
    // A table of addresses.
    let (mut kernel, at) = Kernel::of(&PLAIN);
    kernel.data.extend([0; 4]);
    kernel.data.extend(inside(at).0.to_le_bytes());
    assert_eq!(kernel.verdict(at), into(at));
    // An address in an instruction: push imm32.
    let (mut kernel, at) = Kernel::of(&PLAIN);
    let low = &inside(at).0.to_le_bytes()[..4];
    kernel.function("g", &[&[0x68], low, &[0xc3]].concat());
    assert_eq!(kernel.verdict(at), into(at));
}

#[test]
fn no_replacement_of_an_alternative_leads_into_it() {
    let (mut kernel, at) = Kernel::of(&PLAIN);
    let site = kernel.function("g", &[0x0f, 0x1f, 0x44, 0, 0, 0xc3]);
    kernel.jump("replacement", at.wrapping_add(1));
    let replacement = Gva(TEXT + kernel.code.len() as u64 - 5);
    kernel
        .symbols
        .push(kernel.here(), 'R', "__alt_instructions");
    kernel.relative(site);
    kernel.relative(replacement);
    kernel.data.extend([0, 0, 0, 0, 5, 5]);
    let end = kernel.here();
    kernel.symbols.push(end, 'R', "__alt_instructions_end");
    let to = at.wrapping_add(1);
    assert_eq!(kernel.verdict(at), Err(WhyNot::BranchInto { to }));
}

/// A function with an indirect jump through the table of distances at `table`. Returns the
/// function's address.
fn jump_through_table(kernel: &mut Kernel, table: Gva) -> Gva {
    // push rbp; mov rbp, rsp; push rbx; lea rdx, [rip+table]; movsxd rax, [rdx+4*rax]; add rax, rdx; jmp rax
    let at = TEXT + kernel.code.len() as u64;
    let distance = table.0.wrapping_sub(at + 12).to_le_bytes();
    let code = [
        &PLAIN[..5],
        &[0x48, 0x8d, 0x15],
        &distance[..4],
        &[0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0],
        &[0xc3; 16],
    ];
    kernel.function("switch", &code.concat())
}

#[test]
fn indirect_jump_targets_the_addresses_of_its_table() {
    for (offset, expected) in [(21, Ok(())), (1, Err(()))] {
        let (mut kernel, _) = Kernel::of(&ONE);
        let table = kernel.here();
        let at = jump_through_table(&mut kernel, table);
        for target in [20, offset] {
            let distance = (at.0 + target).wrapping_sub(table.0);
            kernel.data.extend(&distance.to_le_bytes()[..4]);
        }
        let to = at.wrapping_add(1);
        let expected = match expected {
            Ok(()) => yes(5, 3),
            Err(()) => Err(WhyNot::BranchInto { to }),
        };
        assert_eq!(kernel.verdict(at), expected);
    }
}

#[test]
fn indirect_jump_relative_to_code_has_unknown_targets() {
    let (mut kernel, _) = Kernel::of(&ONE);
    let label = Gva(TEXT + kernel.code.len() as u64 + 20);
    let at = jump_through_table(&mut kernel, label);
    assert_eq!(at.wrapping_add(20), label);
    let unknown = Err(WhyNot::ComputedJump { from: label });
    assert_eq!(kernel.verdict(at), unknown);
    // Without the jump, the label is an ordinary address.
    let (mut kernel, _) = Kernel::of(&ONE);
    let at = jump_through_table(&mut kernel, label);
    let jump = usize::try_from(at.0 - TEXT).expect("small") + 19;
    kernel.code[jump..jump + 2].fill(0x90);
    assert_eq!(kernel.verdict(at), yes(5, 3));
}

#[test]
fn a_jump_to_a_retpoline_is_an_indirect_one() {
    let (mut kernel, _) = Kernel::of(&ONE);
    let label = Gva(TEXT + kernel.code.len() as u64 + 20);
    let at = jump_through_table(&mut kernel, label);
    let jump = usize::try_from(at.0 - TEXT).expect("small") + 19;
    let thunk = kernel.function("__x86_indirect_thunk_rax", &[0xff, 0xe0]);
    let distance = thunk.0.wrapping_sub(at.0 + 19 + 5).to_le_bytes();
    kernel.code[jump] = 0xe9;
    kernel.code[jump + 1..jump + 5].copy_from_slice(&distance[..4]);
    let unknown = Err(WhyNot::ComputedJump { from: label });
    assert_eq!(kernel.verdict(at), unknown);
}

#[test]
fn instruction_with_an_exception_entry_stays() {
    for (offset, expected) in [(1, false), (4, false), (5, true)] {
        let mut kernel = Kernel::new();
        let at = kernel.function("f", &PLAIN);
        let entry = at.wrapping_add(offset);
        kernel.table("___ex_table", |kernel| {
            kernel.relative(entry);
            kernel.relative(Gva(TEXT));
            kernel.data.extend([0; 4]);
        });
        let no = Err(WhyNot::MayFault { at: entry });
        assert_eq!(kernel.verdict(at), if expected { yes(5, 3) } else { no });
    }
    let mut kernel = Kernel::new();
    let at = kernel.function("f", &PLAIN);
    assert_eq!(kernel.verdict(at), Err(WhyNot::NoExceptionTable));
}

#[test]
fn disabled_call_is_judged_with_the_next_instructions() {
    let nop = [0x0f, 0x1f, 0x44, 0, 0];
    let judge = |mut kernel: Kernel, call: Gva| {
        kernel.site(call, 5, PatchKind::Ftrace);
        let image = kernel.image();
        let survey = Survey::of_kernel(&image, &kernel.symbols.build());
        let then = call.wrapping_add(5);
        let code = image.bytes_at(then, MAX_REGION_BYTES).expect("code");
        let sites: PatchSites = kernel.sites.into_iter().collect();
        survey.verdict_on_call(&sites, call, code)
    };
    let (kernel, call) = Kernel::of(&[&nop[..], &PLAIN].concat());
    let then = call.wrapping_add(5);
    assert_eq!(judge(kernel, call), Ok(()));
    // A jump to the address behind the call does not go to the middle of the call.
    for (offset, is_good) in [(0, true), (2, false), (5, true)] {
        let (mut kernel, call) = Kernel::of(&[&nop[..], &PLAIN].concat());
        let to = call.wrapping_add(offset);
        kernel.jump("elsewhere", to);
        let no = Err(WhyNot::BranchInto { to });
        assert_eq!(judge(kernel, call), if is_good { Ok(()) } else { no });
    }
    for (code, why) in [
        (&[0xe8, 0, 0, 0, 0, 0xc3][..], WhyNot::Call { at: then }),
        (
            &[0xf4, 0xc3],
            WhyNot::Fixed {
                at: then,
                why: Fixed::System,
            },
        ),
    ] {
        let (kernel, call) = Kernel::of(&[&nop[..], code].concat());
        assert_eq!(judge(kernel, call), Err(why));
    }
    let mut kernel = Kernel::new();
    let call = kernel.function("f", &[&nop[..], &PLAIN].concat());
    kernel.table("___ex_table", |kernel| {
        kernel.relative(then);
        kernel.relative(Gva(TEXT));
        kernel.data.extend([0; 4]);
    });
    assert_eq!(judge(kernel, call), Err(WhyNot::MayFault { at: then }));
}

#[test]
fn patch_site_stays_unless_it_is_patched_at_boot() {
    for kind in [
        PatchKind::Ftrace,
        PatchKind::JumpLabel,
        PatchKind::StaticCall,
        PatchKind::SmpLock,
    ] {
        let (mut kernel, at) = Kernel::of(&PLAIN);
        let patched = at.wrapping_add(4);
        kernel.site(patched, 1, kind);
        let no = WhyNot::Patched { at: patched, kind };
        assert_eq!(kernel.verdict(at), Err(no));
        let (mut kernel, at) = Kernel::of(&PLAIN);
        kernel.site(at.wrapping_add(5), 1, kind);
        assert_eq!(kernel.verdict(at), yes(5, 3));
    }
    let (mut kernel, at) = Kernel::of(&PLAIN);
    kernel.site(at, 3, PatchKind::Alternative);
    assert!(kernel.verdict(at).expect("optimisable").boot_patched);
}

#[test]
fn a_call_stands_alone() {
    let call = [0xe8, 0, 0, 0, 0, 0xc3];
    assert_eq!(verdict(&call), yes(5, 1));
    let (kernel, at) = Kernel::of(&[&[0x53], &call[..]].concat());
    let no = Err(WhyNot::Call {
        at: at.wrapping_add(1),
    });
    assert_eq!(kernel.verdict(at), no);
}

#[test]
fn instruction_that_a_detour_cannot_hold_stays() {
    for (code, why) in [
        (&[0xe2, 0x00][..], Fixed::ShortBranch),          // loop
        (&[0xe3, 0x00], Fixed::ShortBranch),              // jrcxz
        (&[0xff, 0xd0], Fixed::IndirectCall),             // call rax
        (&[0xff, 0x15, 0, 0, 0, 0], Fixed::IndirectCall), // call [rip]
        (&[0x0f, 0x0b], Fixed::Trap),                     // ud2
        (&[0xcc], Fixed::Trap),                           // int3
        (&[0xcd, 0x80], Fixed::Trap),                     // int 0x80
        (&[0xf3, 0x0f, 0x1e, 0xfa], Fixed::Landing),      // endbr64
        (&[0xfb], Fixed::System),                         // sti
        (&[0xf4], Fixed::System),                         // hlt
        (&[0x0f, 0x30], Fixed::System),                   // wrmsr
        (&[0x0f, 0x01, 0xf8], Fixed::System),             // swapgs
        (&[0x48, 0xcf], Fixed::System),                   // iretq
        (&[0x0f, 0x05], Fixed::System),                   // syscall
        (&[0x8e, 0xd8], Fixed::System),                   // mov ds, eax
        (&[0x0f, 0xa1], Fixed::System),                   // pop fs
        (&[0x0f, 0x22, 0xd8], Fixed::System),             // mov cr3, rax
        (&[0x67, 0x8b, 0x05, 0, 0, 0, 0], Fixed::System), // mov eax, [eip]
        (&[0x66, 0xe9, 0, 0, 0, 0], Fixed::System),       // jmp, as processors differ on
        (&[0xd9, 0xc0], Fixed::System),                   // fld st(0)
    ] {
        let code = [&[0x53], code, &[0x90; 8]].concat();
        let (kernel, at) = Kernel::of(&code);
        let at_fault = at.wrapping_add(1);
        assert_eq!(
            kernel.verdict(at),
            Err(WhyNot::Fixed { at: at_fault, why }),
            "{code:02x?}"
        );
    }
}

#[test]
fn code_that_is_entered_from_programs_or_laid_out_on_purpose_is_left_alone() {
    let (mut kernel, at) = Kernel::of(&PLAIN);
    kernel.symbols.push(at, 'T', "__entry_text_start");
    let end = at.wrapping_add(PLAIN.len() as u64);
    kernel.symbols.push(end, 'T', "__entry_text_end");
    assert_eq!(kernel.verdict(at), Err(WhyNot::Unfit(Unfit::Entry)));
    for (name, why) in [
        ("secondary_startup_64_no_verify", Unfit::Start),
        ("relocate_kernel", Unfit::Template),
        ("__x86_indirect_thunk_rax", Unfit::Thunk),
    ] {
        let (mut kernel, _) = Kernel::of(&PLAIN);
        let at = kernel.function(name, &ONE);
        assert_eq!(kernel.verdict(at), Err(WhyNot::Unfit(why)), "{name}");
    }
}

#[test]
fn retpoline_is_optimisable_and_other_thunks_are_not() {
    let thunk = [0xe8, 1, 0, 0, 0, 0xcc, 0x48, 0x89, 0x04, 0x24, 0xc3];
    let (mut kernel, _) = Kernel::of(&PLAIN);
    let at = kernel.function("__x86_indirect_thunk_rax", &thunk);
    let image = kernel.image();
    let survey = Survey::of_kernel(&image, &kernel.symbols.build());
    let sites = PatchSites::default();
    let found = survey.verdict(&sites, at, &thunk).expect("optimisable");
    assert_eq!(found, yes(5, 1).expect("optimisable"));
    assert_eq!(survey.verdict_on_byte(&sites, at, &thunk), Ok(()));
    // lfence; jmp rax; int3
    let fenced = [0x0f, 0xae, 0xe8, 0xff, 0xe0, 0xcc];
    let no = WhyNot::Unfit(Unfit::Thunk);
    assert_eq!(survey.verdict(&sites, at, &fenced), Err(no));
    assert_eq!(survey.verdict_on_byte(&sites, at, &fenced), Err(no));
    // The same bytes elsewhere: a call among a function's instructions.
    let (kernel, at) = Kernel::of(&thunk);
    let image = kernel.image();
    let survey = Survey::of_kernel(&image, &kernel.symbols.build());
    let call = survey.verdict_on_byte(&sites, at, &thunk);
    assert_eq!(call, Err(WhyNot::Call { at }));
}

#[test]
fn a_function_that_cannot_be_followed_is_left_alone() {
    // .. and an opcode missing in 64-bit code.
    let (kernel, at) = Kernel::of(&[&PLAIN[..], &[0x06, 0xc3]].concat());
    let stop = at.wrapping_add(PLAIN.len() as u64);
    let no = Err(WhyNot::Undecodable { at: stop });
    assert_eq!(kernel.verdict(at), no);
    // The bytes behind are decoded all the same: jne f+4, in another function.
    let (mut kernel, at) = Kernel::of(&PLAIN);
    kernel.function("g", &[0x06, 0x75, 0xf9, 0xc3]);
    let to = at.wrapping_add(4);
    assert_eq!(kernel.verdict(at), Err(WhyNot::BranchInto { to }));
    let (kernel, _) = Kernel::of(&PLAIN);
    let outside = kernel.here();
    let image = kernel.image();
    let survey = Survey::of_kernel(&image, &kernel.symbols.build());
    let none = survey.verdict(&PatchSites::default(), outside, &PLAIN);
    assert_eq!(none, Err(WhyNot::NoFunction));
}

#[test]
fn bytes_of_now_count_and_few_are_no_region() {
    let (kernel, at) = Kernel::of(&PLAIN);
    let image = kernel.image();
    let survey = Survey::of_kernel(&image, &kernel.symbols.build());
    let sites = PatchSites::default();
    assert_eq!(survey.verdict(&sites, at, &ONE), yes(5, 1));
    let short = survey.verdict(&sites, at, &PLAIN[..4]);
    assert_eq!(short, Err(WhyNot::TooShort { bytes: 4 }));
    let cut = survey.verdict(&sites, at, &ONE[..4]);
    assert_eq!(cut, Err(WhyNot::TooShort { bytes: 0 }));
}

#[test]
fn a_kernel_without_labels_has_no_places() {
    let (kernel, at) = Kernel::of(&PLAIN);
    let image = kernel.image();
    let survey = Survey::of_kernel(&image, &SymbolTableBuilder::new().build());
    let none = survey.verdict(&PatchSites::default(), at, &PLAIN);
    assert_eq!(none, Err(WhyNot::NoFunction));
}

proptest! {
    #[test]
    fn no_bytes_break_it(
        code in proptest::collection::vec(any::<u8>(), 1..600),
        cuts in proptest::collection::vec(1_usize..60, 1..12),
        data in proptest::collection::vec(any::<u8>(), 0..400),
        at in 0_u64..700,
    ) {
        let mut kernel = Kernel::new();
        let mut rest = &code[..];
        for (number, cut) in cuts.into_iter().enumerate() {
            let (head, tail) = rest.split_at(cut.min(rest.len()));
            kernel.function(&format!("f{number}"), head);
            rest = tail;
        }
        kernel.code.extend(rest);
        kernel.table("___ex_table", |kernel| kernel.data.extend(&data));
        kernel.table("___jump_table", |kernel| kernel.data.extend(&data));
        if let Ok(found) = kernel.verdict(Gva(TEXT + at)) {
            prop_assert!((5..=MAX_REGION_BYTES).contains(&found.region_len));
            prop_assert!((1..=5).contains(&found.instructions));
        }
    }

    /// If a region is allowed, a sweep from the function's start finds no branch into the region.
    #[test]
    fn a_region_is_never_branched_into(code in proptest::collection::vec(
        prop_oneof![Just(0x90), Just(0x75), Just(0xeb), Just(0x48), Just(0x89), 0xf0..=0xff_u8, 0..16_u8], 24..200,
    )) {
        let (mut kernel, at) = Kernel::of(&code);
        kernel.function("g", &ONE);
        if let Ok(found) = kernel.verdict(at) {
            let region = at.wrapping_add(1)..at.wrapping_add(found.region_len as u64);
            prop_assert_eq!(crate::insn::branch_into(&code, at, &region), Ok(None));
        }
    }
}
