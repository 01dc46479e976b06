//! The guest's kernel reads its own text with plants.

use address::{Gpa, Gva};
use events::ProbeState;
use introspect::OptimisedLayout;
use text::PlantByte;
use text::testing::FakeVcpu;
use text::{GuestError, Ran, To};

use super::{ABILITIES, DATA, PLAIN, Rig, STACK, TEXT_ENTRY, TEXT_TABLE, gpa, memory_of, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::{SyntheticKernel, TEXT, TEXT_GPA};

const PORT: u8 = PlantByte::Port.value();
/// `struct optimized_kprobe`, as a kernel might have it.
const LAYOUT: OptimisedLayout = OptimisedLayout {
    address: 0x28,
    size: 0x90,
    next: 0x70,
};
const EEXIST: i64 = -17;
/// The function to decode: four instructions of one byte, and room for a jump behind them.
const READ: [u8; 8] = [0x55, 0x53, 0x50, 0x51, 0x90, 0x90, 0x90, 0xc3];

/// A kernel after its boot; each reader is one instruction and a return.
struct Guest {
    rig: Rig,
    kernel_read: Gva,
    decode: Gva,
    check_probe: Gva,
    copy: Gva,
    check_jump: Gva,
    write_jumps: Gva,
    caller: Gva,
}

impl Guest {
    fn new(probes: &[&str]) -> Self {
        Self::with("can_probe", probes)
    }

    /// A kernel whose `can_probe` has another name, or is missing.
    fn without_check(probes: &[&str]) -> Self {
        Self::with("can_probe.isra.0", probes)
    }

    fn with(check_probe: &str, probes: &[&str]) -> Self {
        let mut kernel = SyntheticKernel::new();
        let kernel_read = kernel.function("read", &READ);
        let mut reader = |name| kernel.function(name, &PLAIN);
        let decode = reader("insn_decode");
        let check_probe = reader(check_probe);
        reader("can_optimize");
        let copy = reader("copy_from_kernel_nofault");
        let check_jump = reader("arch_check_optimized_kprobe");
        let write_jumps = reader("arch_optimize_kprobes");
        let caller = reader("caller").wrapping_add(1);
        let booted = reader("rest_init");
        let memory = memory_of(&kernel, TEXT_GPA, TEXT_ENTRY);
        let rig = Rig::unarmed(memory, &kernel, probes, ABILITIES);
        rig.engine.arm_loaded(&rig.paused).expect("armed");
        assert_eq!(rig.seen(write_jumps), PLAIN[0], "the kernel boots");
        rig.engine
            .paused_hits
            .on_paused_hit(&mut vcpu(booted), &rig.paused, booted, |_, _| {
                panic!("nothing to run")
            })
            .expect("handled");
        rig.memory.put(STACK, &caller.0.to_le_bytes());
        Self {
            rig,
            kernel_read,
            decode,
            check_probe,
            copy,
            check_jump,
            write_jumps,
            caller,
        }
    }

    /// A vCPU that calls `reader`.
    fn calls(&self, reader: Gva, arguments: [u64; 3]) -> FakeVcpu {
        let mut vcpu = vcpu(reader);
        [vcpu.regs.rdi, vcpu.regs.rsi, vcpu.regs.rdx] = arguments;
        vcpu
    }

    fn hit(&self, vcpu: &mut FakeVcpu) -> HitOutcome {
        let at = Gva(vcpu.regs.rip);
        self.rig.engine.hits.on_hit(vcpu, at).expect("handled")
    }

    /// The bytes in memory of the function to read.
    fn shown(&self) -> Vec<u8> {
        (0..READ.len() as u64)
            .map(|offset| self.rig.seen(self.kernel_read.wrapping_add(offset)))
            .collect()
    }

    /// Runs the reader alone. Returns the bytes in memory during the run: the function, the return site, and `entry`.
    fn read(&self, vcpu: &mut FakeVcpu, entry: Gva) -> (Vec<u8>, u8, u8) {
        assert_eq!(self.hit(vcpu), HitOutcome::NeedsPause);
        let (at, mut seen) = (Gva(vcpu.regs.rip), None);
        self.rig
            .engine
            .paused_hits
            .on_paused_hit(vcpu, &self.rig.paused, at, |vcpu, to| {
                assert_eq!(vcpu.regs.rip, at.0 + 1, "past its first instruction");
                assert!(matches!(to, To::Return(to) if to == self.caller), "{to:?}");
                let entry = self.rig.seen(entry);
                seen = Some((self.shown(), self.rig.seen(self.caller), entry));
                vcpu.regs.rip = self.caller.0;
                Ok(Ran::At(self.caller))
            })
            .expect("handled");
        assert_eq!(vcpu.regs.rip, self.caller.0);
        seen.expect("it has run alone")
    }
}

const EVERYWHERE: [&str; 4] = [
    "kprobe:read",
    "kprobe:read+0x1",
    "kprobe:read+0x2",
    "kprobe:read+0x3",
];

#[test]
fn original_bytes_are_visible_while_the_kernel_decodes_them() {
    let guest = Guest::without_check(&EVERYWHERE);
    let second = guest.kernel_read.0 + 1;
    let planted = [PORT, PORT, PORT, PORT, 0x90, 0x90, 0x90, 0xc3];
    assert_eq!(guest.shown(), planted);
    let mut vcpu = guest.calls(guest.decode, [DATA, second, 15]);
    let (seen, stop, entry) = guest.read(&mut vcpu, guest.decode);
    assert_eq!(seen, [PORT, 0x53, PORT, PORT, 0x90, 0x90, 0x90, 0xc3]);
    assert_eq!(stop, PORT);
    assert_eq!(entry, PLAIN[0], "it need not be stopped again");
    assert_eq!(guest.shown(), planted);
    assert_eq!(guest.rig.seen(guest.caller), PLAIN[1]);
    assert_eq!(guest.rig.seen(guest.decode), PORT);
    assert_eq!(guest.rig.probe(1).hits, 0);
}

#[test]
fn a_whole_function_shows_while_it_is_checked() {
    let guest = Guest::new(&EVERYWHERE);
    assert_eq!(guest.rig.seen(guest.decode), PLAIN[0], "this suffices");
    let inside = guest.kernel_read.0 + 6;
    let mut vcpu = guest.calls(guest.check_probe, [inside, 0, 0]);
    let (seen, _, copy) = guest.read(&mut vcpu, guest.copy);
    assert_eq!(seen, READ);
    assert_eq!(copy, PLAIN[0], "what it calls need not be stopped");
}

/// A reader with a probe of its own still stops.
#[test]
fn a_probed_reader_is_not_passed_over() {
    let copy = "kprobe:copy_from_kernel_nofault";
    let guest = Guest::new(&["kprobe:read+0x1", copy]);
    let mut vcpu = guest.calls(guest.check_probe, [guest.kernel_read.0, 0, 0]);
    let (seen, _, copy) = guest.read(&mut vcpu, guest.copy);
    assert_eq!((seen, copy), (READ.to_vec(), PORT));
}

#[test]
fn a_copy_shows_as_far_as_it_reads() {
    let guest = Guest::new(&EVERYWHERE);
    let mut vcpu = guest.calls(guest.copy, [DATA, guest.kernel_read.0 + 2, 16]);
    let (seen, ..) = guest.read(&mut vcpu, guest.copy);
    assert_eq!(seen[..4], [PORT, PORT, READ[2], READ[3]]);
}

#[test]
fn a_reader_that_reads_no_plant_costs_one_exit() {
    let guest = Guest::new(&EVERYWHERE);
    let behind = guest.kernel_read.0 + 4;
    for (reader, arguments) in [
        (guest.copy, [DATA, DATA, 16]),
        // The address is not mapped.
        (guest.copy, [DATA, 0xffff_f000_0000_0000, u64::MAX]),
        (guest.copy, [DATA, behind, 16]),
        (guest.copy, [DATA, guest.kernel_read.0, 0]),
        (guest.check_probe, [guest.caller.0, 0, 0]),
        (guest.check_probe, [DATA, 0, 0]),
    ] {
        let mut vcpu = guest.calls(reader, arguments);
        assert_eq!(guest.hit(&mut vcpu), HitOutcome::Resume, "{arguments:x?}");
        assert_eq!(vcpu.regs.rip, reader.0 + 1);
    }
    let guest = Guest::without_check(&EVERYWHERE);
    for at in [behind, DATA, 0xffff_f000_0000_0000] {
        let mut vcpu = guest.calls(guest.decode, [DATA, at, 15]);
        assert_eq!(guest.hit(&mut vcpu), HitOutcome::Resume, "{at:x}");
        assert_eq!(vcpu.regs.rip, guest.decode.0 + 1);
    }
}

#[test]
fn readers_are_probed_without_other_probes_until_all_are_disarmed() {
    let guest = Guest::new(&[]);
    // Kernel event probes have plants, too.
    assert_eq!(guest.rig.seen(guest.copy), PORT);
    guest
        .rig
        .engine
        .disarm_all(&guest.rig.paused)
        .expect("disarmed");
    assert_eq!(guest.rig.seen(guest.copy), PLAIN[0]);
}

#[test]
fn reader_that_does_not_return_is_noted_once() {
    let guest = Guest::without_check(&EVERYWHERE);
    let planted = guest.shown();
    for _ in 0..2 {
        let mut vcpu = guest.calls(guest.decode, [DATA, guest.kernel_read.0, 15]);
        guest
            .rig
            .engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &guest.rig.paused, guest.decode, |_, _| {
                Ok(Ran::Nowhere)
            })
            .expect("handled");
        assert_eq!(guest.shown(), planted);
    }
    let notes = guest.rig.notes();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].text.contains("insn_decode"), "{}", notes[0].text);
}

#[test]
fn an_error_leaves_the_plants_in_place() {
    let guest = Guest::without_check(&EVERYWHERE);
    let planted = guest.shown();
    let mut vcpu = guest.calls(guest.decode, [DATA, guest.kernel_read.0, 15]);
    let failed = guest.rig.engine.paused_hits.on_paused_hit(
        &mut vcpu,
        &guest.rig.paused,
        guest.decode,
        |_, _| Err(GuestError::Injected(0)),
    );
    assert!(matches!(failed, Err(GuestError::Injected(0))));
    assert_eq!(guest.shown(), planted);
    assert_eq!(guest.rig.seen(guest.caller), PLAIN[1]);
}

/// The return address is invalid: the reader runs on, and reads the plants.
#[test]
fn reader_that_cannot_be_stopped_runs_on() {
    let guest = Guest::without_check(&EVERYWHERE);
    guest.rig.memory.put(STACK, &u64::MAX.to_le_bytes());
    let mut vcpu = guest.calls(guest.decode, [DATA, guest.kernel_read.0, 15]);
    guest
        .rig
        .engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &guest.rig.paused, guest.decode, |_, _| {
            panic!("nothing to run")
        })
        .expect("handled");
    assert_eq!(vcpu.regs.rip, guest.decode.0 + 1);
}

/// An optimised kprobe at [`DATA`], on the list whose head is `HEAD`.
const HEAD: u64 = DATA + 0x800;

fn optimise(guest: &Guest, at: Gva, size: u64) {
    let put = |at: u64, value: u64| guest.rig.memory.put(at, &value.to_le_bytes());
    put(DATA + LAYOUT.address, at.0);
    put(DATA + LAYOUT.size, size);
    put(DATA + LAYOUT.next, HEAD);
    put(HEAD, DATA + LAYOUT.next);
}

/// The injected answer to the guest's check for a jump; `None` if the guest's own check runs.
fn answer(guest: &Guest) -> Option<i64> {
    let mut vcpu = guest.calls(guest.check_jump, [DATA, 0, 0]);
    assert_eq!(guest.hit(&mut vcpu), HitOutcome::Resume);
    if vcpu.regs.rip == guest.check_jump.0 + 1 {
        return None;
    }
    assert_eq!((vcpu.regs.rip, vcpu.regs.rsp), (guest.caller.0, STACK + 8));
    Some(vcpu.regs.rax.cast_signed())
}

#[test]
fn a_plant_keeps_jumps_away() {
    let guest = Guest::new(&["kprobe:read+0x2"]);
    guest.rig.engine.kernel().describe_kprobes(LAYOUT);
    let at = |offset| guest.kernel_read.wrapping_add(offset);
    optimise(&guest, at(2), 5);
    assert_eq!(
        answer(&guest),
        None,
        "the first instruction is no hindrance"
    );
    optimise(&guest, at(3), 5);
    assert_eq!(answer(&guest), None);
    optimise(&guest, at(1), 5);
    assert_eq!(answer(&guest), Some(EEXIST));
    // The answer is the same while a debug register replaces the plant.
    guest
        .rig
        .engine
        .paused_hits
        .stand_ins
        .stand_in(&guest.rig.paused, Gpa(gpa(at(2))), 1)
        .expect("withdrawn");
    assert_eq!(answer(&guest), Some(EEXIST));
    optimise(&guest, at(1), 0);
    assert_eq!(answer(&guest), None, "not prepared for a jump");
    // An invalid kprobe is no error; the guest may get any answer.
    optimise(&guest, Gva(u64::MAX), u64::MAX);
    answer(&guest);
}

#[test]
fn kernel_without_kprobe_types_makes_no_jump() {
    let guest = Guest::new(&["kprobe:read+0x2"]);
    optimise(&guest, guest.caller, 5);
    assert_eq!(answer(&guest), Some(EEXIST));
}

#[test]
fn probe_under_a_coming_kernel_jump_is_refused() {
    let guest = Guest::new(&EVERYWHERE);
    guest.rig.engine.kernel().describe_kprobes(LAYOUT);
    optimise(&guest, guest.kernel_read.wrapping_add(1), 5);
    let mut vcpu = guest.calls(guest.write_jumps, [HEAD, 0, 0]);
    assert_eq!(guest.hit(&mut vcpu), HitOutcome::NeedsPause);
    guest
        .rig
        .engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &guest.rig.paused, guest.write_jumps, |_, _| {
            panic!("nothing to run")
        })
        .expect("handled");
    assert_eq!(vcpu.regs.rip, guest.write_jumps.0 + 1);
    assert_eq!(guest.shown()[..4], [PORT, PORT, READ[2], READ[3]]);
    let (armed, refused) = (ProbeState::Armed, ProbeState::Refused);
    assert_eq!(guest.rig.states(), [armed, armed, refused, refused]);
    let reason = guest.rig.probe(2).reason.unwrap_or_default();
    assert!(reason.contains("executed elsewhere"), "{reason}");
    assert_eq!(guest.rig.notes().len(), 2);
}

/// An endless list is followed up to a limit.
#[test]
fn damaged_list_of_jumps_is_harmless() {
    let guest = Guest::new(&EVERYWHERE);
    guest.rig.engine.kernel().describe_kprobes(LAYOUT);
    for next in [DATA + LAYOUT.next, 0, u64::MAX] {
        optimise(&guest, Gva(u64::MAX), 5);
        let at = DATA + LAYOUT.next;
        guest.rig.memory.put(at, &next.to_le_bytes());
        let mut vcpu = guest.calls(guest.write_jumps, [HEAD, 0, 0]);
        guest
            .rig
            .engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &guest.rig.paused, guest.write_jumps, |_, _| {
                panic!("nothing to run")
            })
            .expect("handled");
        assert_eq!(guest.rig.states(), [ProbeState::Armed; 4]);
    }
}

/// The bytes at a probe's registration: the guest's kprobe at the first instruction, alone or with others, a kprobe about to become a jump,
/// and a jump.
#[test]
fn nothing_is_planted_in_a_jump() {
    for (written, expected) in [
        (&[0xcc][..], ProbeState::Armed),
        (&[0xcc, 0xcc, 0x50, 0xcc], ProbeState::Armed),
        (&[0xcc, 1, 2, 3, 4], ProbeState::Refused),
        (&[0xe9, 1, 2, 3, 4], ProbeState::Refused),
    ] {
        let guest = Guest::new(&["kprobe:read+0x3"]);
        let engine = &guest.rig.engine;
        engine.disarm_all(&guest.rig.paused).expect("disarmed");
        guest.rig.memory.put(gpa(guest.kernel_read), written);
        engine.set_armed(&guest.rig.paused, true).expect("armed");
        assert_eq!(guest.rig.states(), [expected], "{written:x?}");
        let at = guest.kernel_read.wrapping_add(3);
        let planted = guest.rig.seen(at) == PORT;
        assert_eq!(planted, expected == ProbeState::Armed);
    }
}

/// A page of the kernel's half, writable for the guest.
const TARGET: u64 = TEXT.0 + 0xc000;
const TARGET_GPA: u64 = DATA + 0x1000;
/// Present, writable, accessed, dirty.
const WRITABLE_PAGE: u64 = 0x63;

/// A guest that maps `TARGET` and the next page with the flags in `entry`.
fn with_target(probes: &[&str], entry: u64) -> Guest {
    let guest = Guest::new(probes);
    for page in 0..2 {
        let at = TEXT_TABLE + 8 * ((TARGET - TEXT.0) / 0x1000 + page);
        let mapped = (TARGET_GPA + 0x1000 * page) | entry;
        guest.rig.memory.put(at, &mapped.to_le_bytes());
    }
    guest
}

/// The 8 bytes at `offset` in the target.
fn copied(guest: &Guest, offset: u64) -> Vec<u8> {
    (0..8)
        .map(|at| guest.rig.byte(TARGET_GPA + offset + at))
        .collect()
}

#[test]
fn copy_is_made_without_a_pause() {
    let probes = [&EVERYWHERE[..], &["kprobe:copy_from_kernel_nofault"]].concat();
    for offset in [0, 3, 0xffc] {
        let guest = with_target(&probes, WRITABLE_PAGE);
        let arguments = [TARGET + offset, guest.kernel_read.0, 8];
        let mut vcpu = guest.calls(guest.copy, arguments);
        vcpu.regs.rax = 5;
        assert_eq!(guest.hit(&mut vcpu), HitOutcome::Resume);
        assert_eq!(copied(&guest, offset), READ, "at {offset:#x}");
        let regs = vcpu.regs;
        assert_eq!(
            (regs.rip, regs.rsp, regs.rax),
            (guest.caller.0, STACK + 8, 0)
        );
        assert_eq!(guest.shown()[..4], [PORT; 4]);
        assert_eq!(guest.rig.probe(4).hits, 1, "its own probe");
    }
}

#[test]
fn copy_that_may_fault_or_is_probed_is_left_to_the_guest() {
    let read_only = WRITABLE_PAGE & !2;
    let not_dirty = WRITABLE_PAGE & !0x40;
    for (entry, probe) in [
        (0, "kprobe:read"),
        (read_only, "kprobe:read"),
        (not_dirty, "kprobe:read"),
        (WRITABLE_PAGE, "kprobe:copy_from_kernel_nofault+0x1"),
    ] {
        let probes = ["kprobe:read+0x1", "kprobe:read+0x2", probe];
        let guest = with_target(&probes, entry);
        let arguments = [TARGET, guest.kernel_read.0, 8];
        let mut vcpu = guest.calls(guest.copy, arguments);
        assert_eq!(
            guest.hit(&mut vcpu),
            HitOutcome::NeedsPause,
            "{entry:#x} {probe}"
        );
        assert_eq!(copied(&guest, 0), [0; 8]);
    }
    // The target is text with plants.
    let guest = with_target(&EVERYWHERE, WRITABLE_PAGE);
    let text = guest.kernel_read.0;
    let mut vcpu = guest.calls(guest.copy, [text + 0x100, text, 8]);
    assert_eq!(guest.hit(&mut vcpu), HitOutcome::NeedsPause);
}

#[test]
fn return_probe_sees_the_return_of_a_copy() {
    let probes = [&EVERYWHERE[..], &["kretprobe:copy_from_kernel_nofault"]].concat();
    let guest = with_target(&probes, WRITABLE_PAGE);
    let arguments = [TARGET, guest.kernel_read.0, 8];
    let mut vcpu = guest.calls(guest.copy, arguments);
    // The return site gets a plant first.
    assert_eq!(guest.hit(&mut vcpu), HitOutcome::NeedsPause);
    let engine = &guest.rig.engine;
    engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &guest.rig.paused, guest.copy, |_, _| {
            panic!("nothing to run")
        })
        .expect("handled");
    assert_eq!(vcpu.regs.rip, guest.caller.0);
    assert_eq!(copied(&guest, 0), READ);
    assert_eq!(guest.rig.seen(guest.caller), PORT);
    assert_eq!(guest.hit(&mut vcpu), HitOutcome::Resume);
    let told = guest.rig.probe(4);
    assert_eq!(
        (told.hits, told.returns, told.in_flight),
        (1, Some(1), Some(0))
    );
}
