//! Steps over instructions that fault, and instructions for the hardware.

use address::Gva;
use text::testing::{FakeVcpu, Injected};

use super::{DATA, LARGE_PAGE, LOWER, LOWER_DIRECTORY, RDTSC, ROOT, Rig, TABLE, gpa, one, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::TEXT;

/// `mov rax, [rdi]`
const LOAD: [u8; 4] = [0x48, 0x8b, 0x07, 0xc3];
/// `mov [rdi], rax`
const STORE: [u8; 4] = [0x48, 0x89, 0x07, 0xc3];
const UNMAPPED: Gva = Gva(0x4000_0000);

fn hit(code: &[u8], change: impl Fn(&mut FakeVcpu)) -> (FakeVcpu, HitOutcome, Gva) {
    let (kernel, at) = one("probed", code);
    let rig = Rig::new(&kernel, &["kprobe:probed"]);
    let mut vcpu = vcpu(at);
    change(&mut vcpu);
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    (vcpu, outcome, at)
}

#[test]
fn a_page_fault_of_the_operand_is_the_guests() {
    // Bits of the error code: 1 protection, 2 write, 4 user.
    for (code, address, privilege, error_code) in [
        (&LOAD, UNMAPPED, 0, 0),
        (&STORE, UNMAPPED, 0, 2),
        (&STORE, TEXT.wrapping_add(0x8000), 0, 1 | 2),
        (&LOAD, UNMAPPED, 3, 4),
        (&LOAD, Gva(DATA), 3, 1 | 4),
        (&STORE, Gva(DATA), 3, 1 | 2 | 4),
    ] {
        let (vcpu, outcome, at) = hit(code, |vcpu| {
            vcpu.regs.rdi = address.0;
            vcpu.state.privilege = privilege;
        });
        assert_eq!(outcome, HitOutcome::Resume);
        assert_eq!(
            vcpu.injected,
            [Injected::PageFault {
                address,
                error_code
            }]
        );
        assert_eq!(vcpu.regs.rip, at.0, "it is tried again");
    }
}

/// The second page's address is what the hardware would tell.
#[test]
fn an_operand_may_fault_on_its_second_page() {
    let end = 2 << 20;
    let (vcpu, _, _) = hit(&LOAD, |vcpu| vcpu.regs.rdi = end - 4);
    assert_eq!(
        vcpu.injected,
        [Injected::PageFault {
            address: Gva(end),
            error_code: 0
        }]
    );
}

#[test]
fn a_read_only_page_may_be_written_without_write_protection() {
    let (vcpu, outcome, at) = hit(&STORE, |vcpu| {
        vcpu.regs.rdi = TEXT.0 + 0x8000;
        vcpu.state.write_protect = false;
    });
    assert_eq!((outcome, vcpu.regs.rip), (HitOutcome::Resume, at.0 + 3));
    assert_eq!(vcpu.injected, []);
}

/// Virtual pages in a row, as in the kernel's `vmalloc` area, whose stacks are cleared and copied by repeated
/// instructions: each is somewhere else.
#[test]
fn a_string_goes_to_the_pages_that_it_is_mapped_to() {
    const PAGES_TABLE: u64 = 0x7000;
    const SCATTERED: u64 = 2 << 20;
    const FIRST: usize = 0x4_0000;
    const BYTES: usize = 34 * 0x1000;
    const STOS: [u8; 3] = [0xf3, 0xaa, 0xc3];
    const MOVS: [u8; 4] = [0xf3, 0x48, 0xa5, 0xc3];
    // Every other page backwards: none is followed by its neighbour.
    let place = |offset: usize| 0x1000 * (2 * (16 - offset / 0x1000)) + offset % 0x1000;
    let before: Vec<u8> = (0..=250u8)
        .flat_map(|value| [value; 8])
        .cycle()
        .take(BYTES)
        .collect();
    for (code, first, bytes) in [
        (&STOS[..], 0x10, 0x2fe0),
        (&STOS, 0, 0x4000),
        (&MOVS, 0xff8, 0x2010),
        (&MOVS, 0x800, 0x1_0000),
    ] {
        let (kernel, at) = one("probed", code);
        let ran = |from: u64, to: u64| {
            let rig = Rig::new(&kernel, &["kprobe:probed"]);
            let put = |gpa: u64, value: u64| rig.memory.put(gpa, &value.to_le_bytes());
            put(LOWER_DIRECTORY + 8, PAGES_TABLE | TABLE);
            for page in 0..17 {
                let at = FIRST + place(0x1000 * page);
                put(PAGES_TABLE + 8 * page as u64, at as u64 | 0x63);
            }
            rig.memory.put(FIRST as u64, &before);
            rig.memory.put(DATA, &before[..bytes]);
            let mut vcpu = vcpu(at);
            (vcpu.regs.rax, vcpu.regs.rsi, vcpu.regs.rdi) = (0x5a, from, to);
            vcpu.regs.rcx = (if code == STOS { bytes } else { bytes / 8 }) as u64;
            let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
            assert_eq!(outcome, HitOutcome::Resume);
            assert_eq!((vcpu.regs.rcx, vcpu.regs.rdi), (0, to + bytes as u64));
            rig.memory.bytes()
        };
        let what = format!("{code:02x?} of {bytes:#x} bytes at {first:#x}");
        let scattered = SCATTERED + first as u64;
        let mut expected = before.clone();
        for i in 0..bytes {
            expected[place(first + i)] = if code == STOS { 0x5a } else { before[i] };
        }
        let memory = ran(DATA, scattered);
        assert!(memory[FIRST..][..BYTES] == expected, "{what}: written to");
        if code == MOVS {
            let expected: Vec<u8> = (0..bytes).map(|i| before[place(first + i)]).collect();
            let memory = ran(scattered, DATA);
            let data = usize::try_from(DATA).expect("small");
            assert!(memory[data..][..bytes] == expected, "{what}: read from");
        }
    }
}

/// What depends on more than is modelled is left to the hardware: addresses that are not canonical raise another
/// exception, and pages of ring 3 may be out of bounds.
#[test]
fn unmodelled_instruction_is_executed_in_place() {
    let (vcpu, outcome, _) = hit(&LOAD, |vcpu| vcpu.regs.rdi = 1 << 63);
    assert_eq!((outcome, vcpu.injected), (HitOutcome::NeedsPause, vec![]));
    let (vcpu, outcome, _) = hit(&RDTSC, |_| ());
    assert_eq!((outcome, vcpu.injected), (HitOutcome::NeedsPause, vec![]));
}

/// A port access exits anyway: it is made without a step.
#[test]
fn port_accesses_reach_the_devices() {
    let (vcpu, outcome, at) = hit(&[0xe6, 0x80, 0xc3], |vcpu| vcpu.regs.rax = 0x1234);
    assert_eq!(
        (outcome, vcpu.regs.rip),
        (HitOutcome::Resume, at.wrapping_add(2).0)
    );
    assert_eq!(vcpu.ports, [(0x80, vec![0x34])]);
    // in eax, dx
    let (vcpu, outcome, at) = hit(&[0xed, 0xc3], |vcpu| {
        vcpu.regs.rax = u64::MAX;
        vcpu.regs.rdx = 0xffff_0071;
    });
    assert_eq!(
        (outcome, vcpu.regs.rip),
        (HitOutcome::Resume, at.wrapping_add(1).0)
    );
    assert_eq!(vcpu.regs.rax, 0x7171_7171);
    let (_, outcome, _) = hit(&[0xee, 0xc3], |vcpu| vcpu.state.privilege = 3);
    assert_eq!(
        outcome,
        HitOutcome::NeedsPause,
        "ring 3 may not be allowed to"
    );
}

/// Setting accessed and dirty bits, protection keys, SMAP.
#[test]
fn access_that_updates_or_checks_page_tables_is_left_to_the_hardware() {
    const USER: u64 = 4;
    const ALIGNMENT_CHECK: u64 = 1 << 18;
    let passes = |code: &[u8], page: u64, change: &dyn Fn(&mut FakeVcpu)| {
        let (kernel, at) = one("probed", code);
        let rig = Rig::new(&kernel, &["kprobe:probed"]);
        for (entry, flags) in [
            (ROOT, LOWER | TABLE | USER),
            (LOWER, LOWER_DIRECTORY | TABLE | USER),
            (LOWER_DIRECTORY, page),
        ] {
            rig.memory.put(entry, &flags.to_le_bytes());
        }
        let mut vcpu = vcpu(at);
        vcpu.regs.rdi = DATA;
        change(&mut vcpu);
        let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
        assert_eq!(vcpu.injected, []);
        outcome == HitOutcome::Resume
    };
    let (accessed, dirty) = (1 << 5, 1 << 6);
    let ready = LARGE_PAGE;
    assert!(passes(&LOAD, ready, &|_| ()) && passes(&STORE, ready, &|_| ()));
    assert!(!passes(&LOAD, ready & !accessed, &|_| ()));
    assert!(!passes(&STORE, ready & !dirty, &|_| ()));
    assert!(passes(&LOAD, ready & !dirty, &|_| ()));

    let user = ready | USER;
    let smap = |vcpu: &mut FakeVcpu| vcpu.state.smap = true;
    assert!(passes(&LOAD, user, &|_| ()) && passes(&LOAD, ready, &smap));
    assert!(!passes(&LOAD, user, &smap));
    let allowed = |vcpu: &mut FakeVcpu| {
        smap(vcpu);
        vcpu.regs.rflags |= ALIGNMENT_CHECK;
    };
    assert!(passes(&LOAD, user, &allowed));
    // The rights of key 0: no access, or no write.
    let keys = |rights: u32| {
        move |vcpu: &mut FakeVcpu| {
            vcpu.state.protection_keys = true;
            vcpu.pkru = 0x5555_5554 | rights;
        }
    };
    assert!(passes(&LOAD, user, &keys(0)) && passes(&STORE, user, &keys(0)));
    assert!(!passes(&LOAD, user, &keys(1)) && !passes(&STORE, user, &keys(2)));
    assert!(passes(&LOAD, user, &keys(2)) && passes(&LOAD, ready, &keys(3)));
    let key_1 = user | 1 << 59;
    assert!(!passes(&LOAD, key_1, &keys(0)));
}

#[test]
fn an_operand_in_planted_text_is_the_guests_own() {
    // mov rax, [rip - 7]: reads itself.
    let code = [0x48, 0x8b, 0x05, 0xf9, 0xff, 0xff, 0xff, 0xc3];
    let (kernel, at) = one("probed", &code);
    let rig = Rig::new(&kernel, &["kprobe:probed"]);
    let mut vcpu = vcpu(at);
    rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!(vcpu.regs.rax, u64::from_le_bytes(code));
    assert_ne!(rig.word(gpa(at)), vcpu.regs.rax);
}
