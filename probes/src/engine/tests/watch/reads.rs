//! Reads of watched data.

use address::Gpa;
use text::Ran;
use text::testing::FakeVcpu;
use vmm::Protection;

use super::{BEFORE, MOV, Watched, XADD, gpa, watched};
use crate::engine::hits::in_place::PAGE_FAULT;
use crate::engine::hits::outcome::HitOutcome;
use crate::registry::Missed;

/// `mov rax, [rdi]; ret`
const LOAD: [u8; 4] = [0x48, 0x8b, 0x07, 0xc3];
/// `movups xmm0, [rdi]; ret`: for the hardware to execute.
const VECTOR_LOAD: [u8; 4] = [0x0f, 0x10, 0x07, 0xc3];
/// `inc qword [rdi]; ret`
const INC: [u8; 4] = [0x48, 0xff, 0x07, 0xc3];
/// `xrstor [rdi]; ret`: for the hardware to execute; its length is not known.
const XRSTOR: [u8; 4] = [0x0f, 0xae, 0x2f, 0xc3];

#[test]
fn load_is_a_hit_of_reads_and_not_of_writes() {
    let watched = watched(
        &LOAD,
        &[
            "watch:counter:8:r",
            "watch:counter:8",
            "watch:neighbour:8:rw",
        ],
    );
    let pages = watched.rig.paused.protected.lock().expect("lock").clone();
    let page = Gpa(watched.data & !0xfff);
    assert_eq!(pages, [(page, Protection::Accesses)].into());
    let mut vcpu = watched.vcpu(watched.data, 0);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::Resume);
    assert_eq!((vcpu.regs.rax, vcpu.regs.rip), (BEFORE, watched.at.0 + 3));
    let hits = watched.rig.hits();
    let [hit] = &hits[..] else {
        panic!("{hits:?}");
    };
    assert_eq!((hit.ip.0, &*hit.symbol), (watched.at.0, "writer+0x0"));
    let read = hit.read.expect("a read");
    assert_eq!((read.bytes, read.offset, read.value.0), (8, 0, BEFORE));
    assert_eq!((hit.write, &*hit.probe), (None, "watch:counter:8:r"));
    // Each exit at the page is counted.
    let counts = [0, 1, 2].map(|probe| watched.counts(probe));
    assert_eq!(counts, [(1, 1), (0, 1), (0, 1)]);
    watched.exit(&mut watched.vcpu(watched.data + 8, 0));
    let counts = [0, 1, 2].map(|probe| watched.counts(probe));
    assert_eq!(counts, [(1, 2), (0, 2), (1, 2)]);
}

#[test]
fn locked_instruction_is_a_read_and_a_write_in_one_hit() {
    let watched = watched(&XADD, &["watch:counter:8:rw", "watch:counter:8:r"]);
    watched.exit(&mut watched.vcpu(watched.data, 3));
    assert_eq!(watched.writes(), [(BEFORE, BEFORE + 3)]);
    assert_eq!(watched.reads(), [BEFORE]);
    assert_eq!((watched.counts(0), watched.counts(1)), ((1, 1), (1, 1)));
}

#[test]
fn store_is_no_hit_of_reads() {
    let watched = watched(&MOV, &["watch:counter:8:r"]);
    watched.exit(&mut watched.vcpu(watched.data, 3));
    assert_eq!(watched.rig.word(watched.data), 3);
    assert_eq!(watched.rig.hits(), []);
    assert_eq!(watched.counts(0), (0, 1));
}

/// Executes the instruction as the hardware does: the vCPU stands behind it.
fn step(watched: &Watched, vcpu: &mut FakeVcpu) {
    let next = watched.at.wrapping_add(3);
    let stepped = watched.step(vcpu, |vcpu, _| {
        vcpu.regs.rip = next.0;
        Ok(Ran::At(next))
    });
    assert_eq!(stepped, HitOutcome::Resume);
}

fn unprotected(watched: &Watched) -> u64 {
    let table = watched.rig.engine.watches.table.load();
    let probe = &table.watches()[0].probe;
    probe.counters.missed_for(Missed::Unprotected)
}

#[test]
fn operand_of_an_instruction_for_the_hardware_is_a_read() {
    let watched = watched(&VECTOR_LOAD, &["watch:counter:8:rw", "watch:neighbour:8:r"]);
    let mut vcpu = watched.vcpu(watched.data - 12, 0);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    step(&watched, &mut vcpu);
    assert_eq!(watched.reads(), [BEFORE]);
    assert_eq!(watched.rig.hits()[0].ip.0, watched.at.0);
    assert_eq!((watched.counts(0), watched.counts(1)), ((1, 1), (0, 1)));
    assert_eq!(unprotected(&watched), 0);
}

#[test]
fn instruction_with_an_unknown_operand_is_a_miss_of_reads() {
    let watched = watched(&XRSTOR, &["watch:counter:8:r", "watch:neighbour:8"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    step(&watched, &mut vcpu);
    assert_eq!(watched.rig.hits(), []);
    assert_eq!(unprotected(&watched), 1);
    let table = watched.rig.engine.watches.table.load();
    let of_writes = &table.watches()[1].probe.counters;
    assert_eq!(of_writes.missed_for(Missed::Unprotected), 0);
}

#[test]
fn instruction_that_faults_has_read_nothing() {
    const TABLE: u64 = 0x7000;
    const HANDLER: u64 = 0x9000;
    let watched = watched(&VECTOR_LOAD, &["watch:counter:8:r"]);
    let entry = (HANDLER & 0xffff) | 0x10 << 16 | super::stepped::GATE;
    let gate = TABLE + 16 * u64::from(PAGE_FAULT);
    watched.rig.memory.put(gate, &entry.to_le_bytes());
    let mut vcpu = watched.vcpu(watched.data, 0);
    (vcpu.sregs.idt.base, vcpu.sregs.idt.limit) = (TABLE, 0xfff);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    let stack = gpa(watched.at) + 0x800;
    let stepped = watched.step(&mut vcpu, |vcpu, _| {
        // The frame: an error code and the address of the instruction.
        vcpu.regs.rsp = stack;
        watched.rig.memory.put(stack, &0_u64.to_le_bytes());
        watched
            .rig
            .memory
            .put(stack + 8, &watched.at.0.to_le_bytes());
        vcpu.regs.rip = HANDLER;
        Ok(Ran::At(address::Gva(HANDLER)))
    });
    assert_eq!(stepped, HitOutcome::Resume);
    assert_eq!(watched.rig.hits(), []);
}

/// `rep movsb; ret`
const REPEATED: [u8; 3] = [0xf3, 0xa4, 0xc3];
/// `lidt [rdi]; ret`
const LIDT: [u8; 4] = [0x0f, 0x01, 0x1f, 0xc3];

#[test]
fn repeated_read_that_faults_behind_its_first_elements_is_a_miss() {
    for (copied, misses) in [(0, 0), (8, 1)] {
        let watched = watched(&REPEATED, &["watch:counter:8:r"]);
        let mut vcpu = watched.vcpu(0xffff_f000_0000_0000, 0);
        (vcpu.regs.rsi, vcpu.regs.rcx) = (watched.data, 16);
        assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
        let stepped = watched.step(&mut vcpu, |vcpu, _| {
            vcpu.regs.rcx -= copied;
            Ok(Ran::Nowhere)
        });
        assert_eq!(stepped, HitOutcome::Resume);
        assert_eq!(watched.rig.hits(), []);
        assert_eq!(unprotected(&watched), misses, "{copied}");
    }
}

#[test]
fn exits_and_misses_of_a_watchpoint_do_not_depend_on_its_words() {
    for (code, misses) in [(&VECTOR_LOAD, 0), (&XRSTOR, 1)] {
        let watched = watched(code, &["watch:counter:4"]);
        let at = watched.rig.probe(0).ip.expect("armed").0;
        watched.register(&format!("watch:{at:#x}:16:r"));
        let mut vcpu = watched.vcpu(watched.data + 0x200, 0);
        assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
        step(&watched, &mut vcpu);
        assert_eq!((watched.counts(0), watched.counts(1)), ((0, 1), (0, 1)));
        let table = watched.rig.engine.watches.table.load();
        let last = table.watches().last().expect("a word");
        let counters = &last.probe.counters;
        assert_eq!(counters.missed_for(Missed::Unprotected), misses);
    }
}

#[test]
fn descriptor_that_kvm_reads_in_parts_is_left_to_the_hardware() {
    let watched = watched(&LIDT, &["watch:counter:8:r"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    let accesses = &watched.rig.engine.protected_accesses;
    let read = accesses.on_guest_read(&mut vcpu, Gpa(watched.data), &[0; 8]);
    assert_eq!(read.expect("looked at"), HitOutcome::NeedsPause);
    step(&watched, &mut vcpu);
    assert_eq!(watched.reads(), [BEFORE]);
    assert_eq!(watched.counts(0), (1, 1));
}

#[test]
fn read_that_kvm_emulates_is_reported_at_rip() {
    let watched = watched(&LOAD, &["watch:counter:4:r"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    let accesses = &watched.rig.engine.protected_accesses;
    let read = |vcpu: &mut FakeVcpu, at| {
        let read = accesses.on_guest_read(vcpu, Gpa(at), &[0; 8]);
        read.expect("looked at");
    };
    read(&mut vcpu, watched.data);
    assert_eq!(watched.reads(), [BEFORE]);
    assert_eq!(watched.rig.hits()[0].ip.0, watched.at.0);
    read(&mut vcpu, watched.data + 8);
    read(&mut vcpu, watched.data + 0x1000);
    assert_eq!(watched.counts(0), (1, 2));
}

#[test]
fn read_of_an_instruction_that_writes_is_left_to_the_write() {
    // The write of a locked instruction comes from the emulator, with a read of its own.
    for (code, reads) in [(&INC[..], vec![BEFORE]), (&XADD, vec![])] {
        let watched = watched(code, &["watch:counter:8:rw", "watch:counter:8:r"]);
        let mut vcpu = watched.vcpu(watched.data, 0);
        let accesses = &watched.rig.engine.protected_accesses;
        let read = accesses.on_guest_read(&mut vcpu, Gpa(watched.data), &[0; 8]);
        read.expect("looked at");
        assert_eq!(watched.reads(), reads);
        assert_eq!(watched.counts(0).0, 0);
    }
}
