//! All or no effects: faults, atomic accesses, instructions decoded elsewhere.

use address::Gva;
use hyprobe_introspect::insn::{Access, Fault, Gpr, Outcome, Reason, decode, emulate_decoded};
use reference::{Machine, Region};

use super::{CODE, DATA, DATA_BYTES, STACK, kernel};

const END: u64 = DATA + DATA_BYTES as u64;

#[test]
fn a_failed_write_leaves_registers_alone() {
    let at = Gva(DATA - 8);
    let outcome = kernel().with(Gpr::Rsp, DATA).refused("push rax", "50");
    assert_eq!(
        outcome,
        Outcome::Fault(Fault::NotMapped {
            at,
            access: Access::Write
        })
    );
    let outcome = kernel().with(Gpr::Rsp, DATA).refused("call rax", "ff d0");
    assert_eq!(
        outcome,
        Outcome::Fault(Fault::NotMapped {
            at,
            access: Access::Write
        })
    );
}

#[test]
fn a_write_across_a_boundary_happens_entirely_or_not_at_all() {
    let machine = kernel().with(Gpr::Rdi, END - 4).with(Gpr::Rax, u64::MAX);
    let outcome = machine.refused("mov [rdi], rax", "48 89 07");
    assert_eq!(
        outcome,
        Outcome::Fault(Fault::NotMapped {
            at: Gva(END),
            access: Access::Write
        })
    );
    let mut machine = kernel().with(Gpr::Rdi, END - 4).with(Gpr::Rax, u64::MAX);
    machine.memory.push(Region {
        start: END,
        bytes: vec![0; 8],
        writable: false,
    });
    let outcome = machine.refused("stosq [rdi], rax", "48 ab");
    assert_eq!(
        outcome,
        Outcome::Fault(Fault::Forbidden {
            at: Gva(END),
            access: Access::Write
        })
    );
}

#[test]
fn read_modify_write_faults_as_a_write() {
    let absent = |code: &str, hex: &str| {
        let machine = kernel().with(Gpr::Rbx, END).with(Gpr::Rax, 5);
        match machine.refused(code, hex) {
            Outcome::Fault(Fault::NotMapped { access, .. }) => access,
            other => panic!("{code}: {other:?}"),
        }
    };
    for (code, hex) in [
        ("add [rbx], eax", "01 03"),
        ("inc byte ptr [rbx]", "fe 03"),
        ("xadd [rbx], eax", "0f c1 03"),
        ("cmpxchg [rbx], ecx", "0f b1 0b"),
        ("lock sub [rbx], eax", "f0 29 03"),
        ("not qword ptr [rbx]", "48 f7 13"),
        ("and [rbx], al", "20 03"),
        ("rol dword ptr [rbx], 0x20", "c1 03 20"),
        ("shld [rbx], eax, 0x3", "0f a4 03 03"),
        ("bts [rbx], eax", "0f ab 03"),
        ("btr dword ptr [rbx], 0x3", "0f ba 33 03"),
        ("xchg [rbx], eax", "87 03"),
    ] {
        assert_eq!(absent(code, hex), Access::Write, "{code}");
    }
    for (code, hex) in [
        ("cmp [rbx], eax", "39 03"),
        ("add eax, [rbx]", "03 03"),
        ("test [rbx], eax", "85 03"),
        ("bt [rbx], eax", "0f a3 03"),
        ("push qword ptr [rbx]", "ff 33"),
    ] {
        assert_eq!(absent(code, hex), Access::Read, "{code}");
    }
}

#[test]
fn a_read_to_be_written_faults_at_the_first_page_that_forbids_it() {
    let mut machine = kernel().with(Gpr::Rbx, END + 6);
    machine.memory.push(Region {
        start: END,
        bytes: vec![0; 8],
        writable: false,
    });
    let outcome = machine.refused("add [rbx], eax", "01 03");
    let at = Gva(END + 6);
    let access = Access::Write;
    assert_eq!(outcome, Outcome::Fault(Fault::Forbidden { at, access }));
}

#[test]
fn a_repeated_move_that_faults_on_the_way_is_the_hardwares() {
    // The hardware has moved the elements before the fault; RCX holds the number left.
    let machine = kernel()
        .with(Gpr::Rsi, DATA)
        .with(Gpr::Rdi, END - 4)
        .with(Gpr::Rcx, 8);
    let outcome = machine.refused("rep movsb [rdi], [rsi]", "f3 a4");
    assert_eq!(outcome, Outcome::Unsupported(Reason::Repeated));
    let machine = kernel()
        .with(Gpr::Rsi, END - 4)
        .with(Gpr::Rdi, DATA)
        .with(Gpr::Rcx, 8);
    let outcome = machine.refused("rep movsb [rdi], [rsi]", "f3 a4");
    assert_eq!(outcome, Outcome::Unsupported(Reason::Repeated));
    let machine = kernel().with(Gpr::Rdi, END - 4).with(Gpr::Rcx, 8);
    let outcome = machine.refused("rep stosb [rdi], al", "f3 aa");
    assert_eq!(outcome, Outcome::Unsupported(Reason::Repeated));
}

#[test]
fn a_pop_to_memory_that_fails_pops_nothing() {
    let machine = kernel().with(Gpr::Rbx, 0x10);
    let outcome = machine.refused("pop qword ptr [rbx]", "8f 03");
    assert!(matches!(outcome, Outcome::Fault(Fault::NotMapped { .. })));
}

#[test]
fn an_address_that_does_not_exist_is_never_asked_for() {
    let at = Gva(0x0000_7fff_ffff_fffc);
    let outcome = kernel()
        .with(Gpr::Rbx, at.0)
        .refused("mov rax, [rbx]", "48 8b 03");
    assert_eq!(
        outcome,
        Outcome::Fault(Fault::NotCanonical {
            at,
            access: Access::Read
        })
    );
}

#[test]
fn addresses_have_57_bits_where_the_page_tables_have_five_levels() {
    // Where Linux with such tables has all memory.
    let at = 0xff11_0000_0000_0000;
    let region = Region {
        start: at,
        bytes: vec![7; 8],
        writable: true,
    };
    let with = |has_57_bits| {
        let mut machine = Machine {
            has_57_bits,
            ..kernel()
        };
        machine.memory.insert(0, region.clone());
        machine.with(Gpr::Rbx, at)
    };
    let after = with(true).after("inc qword ptr [rbx]", "48 ff 03");
    assert_eq!(after.quadword(at), 0x0707_0707_0707_0708);
    let after = with(true).after("jmp rbx", "ff e3");
    assert_eq!(after.rip, at);

    let expected = |at, access| {
        Outcome::Fault(Fault::NotCanonical {
            at: Gva(at),
            access,
        })
    };
    let refused = with(false).refused("inc qword ptr [rbx]", "48 ff 03");
    assert_eq!(refused, expected(at, Access::Write));
    let refused = with(false).refused("jmp rbx", "ff e3");
    assert_eq!(refused, Outcome::Unsupported(Reason::BranchNotCanonical));

    let beyond = 0x0100_0000_0000_0000;
    let machine = with(true).with(Gpr::Rbx, beyond);
    let refused = machine.refused("mov rax, [rbx]", "48 8b 03");
    assert_eq!(refused, expected(beyond, Access::Read));
}

#[test]
fn a_locked_instruction_starts_over_when_it_loses_the_race() {
    let machine = Machine {
        races: 3,
        ..kernel()
    };
    let after = machine
        .with(Gpr::Rbx, STACK)
        .with(Gpr::Rax, 2)
        .holding(STACK, 40)
        .after("lock xadd [rbx], rax", "f0 48 0f c1 03");
    assert_eq!(after.quadword(STACK), 42);
    assert_eq!(after.gpr(Gpr::Rax), 40);
    assert_eq!(after.races, 0);
}

#[test]
fn a_locked_instruction_that_keeps_losing_is_left_to_the_hardware() {
    let mut machine = Machine {
        races: 1000,
        ..kernel()
    }
    .with(Gpr::Rbx, STACK);
    let decoded = decode(&[0x87, 0x03], Gva(CODE)).expect("xchg [rbx],eax");
    let outcome = emulate_decoded(&mut machine, &decoded);
    assert_eq!(outcome, Outcome::Unsupported(Reason::Locked));
    assert_eq!(machine.rip, CODE);
}

#[test]
fn a_misaligned_locked_access_is_left_to_the_hardware() {
    let machine = kernel().with(Gpr::Rbx, STACK + 1);
    let outcome = machine.refused("lock inc dword ptr [rbx]", "f0 ff 03");
    assert_eq!(outcome, Outcome::Unsupported(Reason::Locked));
}

#[test]
fn an_instruction_runs_only_where_it_was_decoded() {
    let mut machine = kernel();
    let decoded = decode(&[0x90], Gva(CODE + 1)).expect("nop");
    let outcome = emulate_decoded(&mut machine, &decoded);
    assert_eq!(outcome, Outcome::Unsupported(Reason::Elsewhere));
    assert_eq!(machine, kernel());
}

#[test]
fn a_program_that_asked_for_aligned_accesses_gets_its_fault() {
    let misaligned = kernel().with(Gpr::Rbx, STACK + 1).with_flags(1 << 18);
    // In the kernel the flag means something else.
    let _ = misaligned.clone().after("mov rax, [rbx]", "48 8b 03");
    let program = Machine {
        privilege_level: 3,
        ..misaligned
    };
    let outcome = program.refused("mov rax, [rbx]", "48 8b 03");
    assert_eq!(outcome, Outcome::Unsupported(Reason::AlignmentCheck));
}
