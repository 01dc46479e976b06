//! Copies of instructions in the detour region.

use std::sync::Arc;

use address::{Gpa, Gva};
use events::{ProbeSummary, Tier};
use inspect::stacks::StackKernel as _;
use introspect::insn::CpuidWords;
use introspect::{PhysMemory, Unreadable, read_virt, walk};
use manifest::{ProbeConfig, ProbeSpec};
use text::Ran;
use text::testing::{DETOUR_GPA, FakeMemory, FakeVcpu};

use super::{
    ABILITIES, Abilities, PLAIN, RDTSC, ROOT, Rig, STACK, TABLE, UPPER_DIRECTORY, gpa, one, vcpu,
};
use crate::Handler;
use crate::engine::EngineAction;
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::SyntheticKernel;

const COPIES: Abilities = Abilities {
    cpuid: CpuidWords::ALL,
    ..ABILITIES
};
/// The first entry behind the image's that is free, but for the one that is left out: the image is smaller than what
/// an entry maps.
const ENTRY: u64 = UPPER_DIRECTORY + 8 * 10;
const REGION: Gva = Gva(0xffff_ffff_8140_0000);

fn rig(code: &[u8]) -> (Rig, Gva) {
    let (kernel, at) = one("probed", code);
    (Rig::with(&kernel, &["kprobe:probed"], COPIES), at)
}

/// Handles a hit, with a pause if required. Returns whether the hit paused the vCPUs, and whether the instruction was single-stepped.
fn hit(rig: &Rig, vcpu: &mut FakeVcpu, at: Gva) -> (bool, bool) {
    vcpu.regs.rip = at.0;
    match rig.engine.hits.on_hit(vcpu, at).expect("handled") {
        HitOutcome::Resume => return (false, false),
        HitOutcome::NeedsPause => (),
        HitOutcome::NotOurs => panic!("there is a plant"),
    }
    let mut stepped = false;
    rig.engine
        .paused_hits
        .on_paused_hit(vcpu, &rig.paused, at, |vcpu, _| {
            stepped = true;
            vcpu.regs.rip = at.0 + 2;
            Ok(Ran::At(at.wrapping_add(2)))
        })
        .expect("handled");
    (true, stepped)
}

/// The guest's memory with the detour memory above.
struct Both<'a>(&'a FakeMemory, Arc<FakeMemory>);

impl PhysMemory for Both<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read(gpa, buf).or_else(|_| self.1.read(gpa, buf))
    }
}

fn both(rig: &Rig) -> Both<'_> {
    Both(&rig.memory, rig.paused.detour().expect("a region"))
}

#[test]
fn the_first_hit_makes_the_copy_and_the_second_needs_no_pause() {
    let (rig, at) = rig(&RDTSC);
    assert!(rig.paused.detour().is_none(), "nobody has needed it");
    let mut vcpu = vcpu(at);
    assert_eq!(hit(&rig, &mut vcpu, at), (true, false));
    assert_eq!(vcpu.regs.rip, REGION.0);
    assert_eq!(hit(&rig, &mut vcpu, at), (false, false));
    assert_eq!(vcpu.regs.rip, REGION.0);

    // The vCPU executes a copy of the instruction, and a jump to the next instruction of the original.
    let found = walk(&both(&rig), &vcpu.state.paging, REGION).expect("mapped");
    let mut bytes = [0; 7];
    both(&rig).read(found.gpa, &mut bytes).expect("memory");
    let [first, second, jump, distance @ ..] = bytes;
    assert_eq!(([first, second], jump), ([RDTSC[0], RDTSC[1]], 0xe9));
    let behind = REGION.0 + 7;
    let to = behind.wrapping_add_signed(i32::from_le_bytes(distance).into());
    assert_eq!(to, at.0 + 2);

    let probe = rig.probe(0);
    assert_eq!(
        (probe.hits, probe.exits, probe.tier),
        (2, 2, Some(Tier::Relocated))
    );
    assert!(rig.notes().is_empty());
}

/// A live machine has the region's memory beside its RAM, not in it.
#[test]
fn stack_finds_the_original_of_a_copy_that_ram_does_not_hold() {
    let (rig, at) = rig(&RDTSC);
    let mut vcpu = vcpu(at);
    hit(&rig, &mut vcpu, at);
    assert_eq!(vcpu.regs.rip, REGION.0);
    let ram = &rig.engine.running.planter;
    let in_ram = read_virt(ram, &vcpu.state.paging, REGION, &mut [0; RDTSC.len()]);
    assert!(in_ram.is_err(), "{in_ram:?}");
    let stacks = &rig.engine.records.stacks;
    let original = |at| stacks.displaced(at).map(|found| found.ip);
    assert_eq!(original(REGION), Some(at));
    assert_eq!(original(REGION.wrapping_add(1)), None, "inside `rdtsc`");
    assert_eq!(original(at), None);
}

#[test]
fn code_is_read_only_and_no_table_of_the_guests_lies_outside_its_ram() {
    let (rig, at) = rig(&RDTSC);
    assert_eq!(rig.word(ENTRY), 0);
    let mut vcpu = vcpu(at);
    hit(&rig, &mut vcpu, at);
    let memory = both(&rig);
    for page in 0..512 {
        let address = REGION.wrapping_add(page * 0x1000);
        let found = walk(&memory, &vcpu.state.paging, address).expect("mapped");
        assert!(found.executable && !found.writable && !found.user && found.accessed);
        assert_eq!(found.gpa.0, DETOUR_GPA + page * 0x1000);
    }
    // A large page: the kernel reads its tables through its map of RAM, where the region is not.
    assert_eq!(rig.word(ENTRY) & 0x81, 0x81);
}

#[test]
fn a_place_that_is_taken_is_passed_over() {
    let (kernel, at) = one("probed", &RDTSC);
    let rig = Rig::with(&kernel, &["kprobe:probed"], COPIES);
    // The entry is not present, but holds a value of the guest.
    rig.memory.put(ENTRY, &0xdead_0000u64.to_le_bytes());
    let mut vcpu = vcpu(at);
    hit(&rig, &mut vcpu, at);
    assert_eq!(vcpu.regs.rip, REGION.0 + (2 << 20));
    assert_eq!(rig.word(ENTRY), 0xdead_0000);

    let rig = Rig::with(&kernel, &["kprobe:probed"], COPIES);
    for entry in 0..512 {
        let at = UPPER_DIRECTORY + 8 * entry;
        if rig.word(at) == 0 {
            rig.memory.put(at, &1u64.to_le_bytes());
        }
    }
    for _ in 0..2 {
        assert_eq!(hit(&rig, &mut vcpu, at), (true, true), "stepped");
    }
    assert_eq!(rig.notes().len(), 1, "it is told once");
    assert!(!rig.engine.has_detour_region());
}

/// Pre-handlers only, or not.
struct Handles {
    post: bool,
}

impl Handler for Handles {
    fn has_post(&self) -> bool {
        self.post
    }
}

#[test]
fn instruction_that_a_copy_executes_differently_is_stepped() {
    type Change = fn(&mut FakeVcpu, &Rig);
    let changes: [(&str, Change); 4] = [
        ("the guest's own step", |vcpu, _| vcpu.regs.rflags |= 1 << 8),
        ("ring 3", |vcpu, _| vcpu.state.privilege = 3),
        ("other page tables", |vcpu, rig| {
            // Those of a program: the kernel's own directory is not in them.
            let (root, upper, directory) = (0x7000, 0x8000, 0x9000u64);
            for (at, entry) in [
                (root + 8 * 511, upper | TABLE),
                (upper + 8 * 510, directory | TABLE),
                (directory + 8 * 8, rig.word(UPPER_DIRECTORY + 8 * 8)),
            ] {
                rig.memory.put(at, &entry.to_le_bytes());
            }
            vcpu.state.paging = vcpu.state.paging.with_cr3(root);
        }),
        ("an entry that the guest has changed", |_, rig| {
            rig.memory.put(ENTRY, &0x1063u64.to_le_bytes());
        }),
    ];
    for (name, change) in changes {
        let (rig, at) = rig(&RDTSC);
        assert_eq!(hit(&rig, &mut vcpu(at), at), (true, false));
        let mut vcpu = vcpu(at);
        change(&mut vcpu, &rig);
        assert_eq!(hit(&rig, &mut vcpu, at), (true, true), "{name}");
        assert_eq!(rig.probe(0).tier, Some(Tier::Stepped), "{name}");
    }
}

/// As with CR0.WP off.
#[test]
fn accessed_and_dirty_bits_of_the_entries_do_not_matter() {
    let (rig, at) = rig(&RDTSC);
    let mut vcpu = vcpu(at);
    hit(&rig, &mut vcpu, at);
    let (accessed, dirty) = (1 << 5, 1 << 6);
    rig.memory
        .put(ENTRY, &(rig.word(ENTRY) & !accessed).to_le_bytes());
    rig.memory
        .put(ENTRY, &(rig.word(ENTRY) | dirty).to_le_bytes());
    assert_eq!(hit(&rig, &mut vcpu, at), (false, false));
}

#[test]
fn a_post_handler_is_called_behind_the_instruction_and_so_it_is_stepped() {
    for post in [false, true] {
        let (kernel, at) = one("probed", &RDTSC);
        let rig = Rig::with(&kernel, &[], COPIES);
        let new = ProbeConfig::from("kprobe:probed".parse::<ProbeSpec>().expect("a probe"))
            .with_action(EngineAction::Handle(Arc::new(Handles { post })));
        rig.engine
            .register(&rig.paused, &[new])
            .expect("registered");
        assert_eq!(hit(&rig, &mut vcpu(at), at), (true, post));
    }
}

#[test]
fn vector_registers_must_have_been_switched_on() {
    // pxor xmm0, xmm0; vpxor ymm0, ymm0, ymm0
    for (code, cr4, xcr0) in [
        (&[0x66, 0x0f, 0xef, 0xc0, 0xc3][..], 1 << 9, 0),
        (&[0xc5, 0xfd, 0xef, 0xc0, 0xc3], 1 << 18, 7),
    ] {
        let (rig, at) = rig(code);
        assert_eq!(hit(&rig, &mut vcpu(at), at), (true, true), "off");
        let mut vcpu = vcpu(at);
        vcpu.state.paging.cr4 |= cr4;
        vcpu.xcr0 = xcr0;
        assert_eq!(hit(&rig, &mut vcpu, at), (true, false));
        assert_eq!(hit(&rig, &mut vcpu, at), (false, false));
    }
}

/// Linux clears the entries beside its image during boot.
#[test]
fn a_kernel_that_boots_is_waited_for() {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("probed", &RDTSC);
    let booted = kernel.function("rest_init", &PLAIN);
    let rig = Rig::with(&kernel, &["kprobe:probed"], COPIES);
    assert_eq!(hit(&rig, &mut vcpu(at), at), (true, true));
    hit(&rig, &mut vcpu(booted), booted);
    // These page tables are the kernel's own by now, and a program's would not do.
    let mut elsewhere = vcpu(at);
    elsewhere.state.paging = elsewhere.state.paging.with_cr3(0x7000);
    assert_eq!(hit(&rig, &mut elsewhere, at), (true, true));
    assert_eq!(rig.word(ENTRY) & 1, 1, "laid in the kernel's tables");
    assert_eq!(hit(&rig, &mut vcpu(at), at), (false, false));
}

#[test]
fn a_rewritten_instruction_has_a_copy_of_its_own() {
    let (rig, at) = rig(&RDTSC);
    let mut vcpu = vcpu(at);
    hit(&rig, &mut vcpu, at);
    // cpuid
    rig.engine
        .writes
        .on_guest_write(Gpa(gpa(at)), &[0x0f, 0xa2])
        .expect("written");
    assert_eq!(hit(&rig, &mut vcpu, at), (true, false));
    assert_eq!(vcpu.regs.rip, REGION.0 + 16);
    let mut bytes = [0; 2];
    both(&rig)
        .read(Gpa(DETOUR_GPA + 16), &mut bytes)
        .expect("memory");
    assert_eq!(bytes, [0x0f, 0xa2]);
}

#[test]
fn guest_writes_to_copies_are_dropped_with_few_notes() {
    let (rig, at) = rig(&RDTSC);
    assert!(!rig.engine.writes.is_detour_write(Gpa(DETOUR_GPA)));
    hit(&rig, &mut vcpu(at), at);
    for _ in 0..1234 {
        assert!(rig.engine.writes.is_detour_write(Gpa(DETOUR_GPA + 5)));
    }
    assert_eq!(rig.notes().len(), 4, "1, 10, 100, 1000");
    assert!(!rig.engine.writes.is_detour_write(Gpa(0x1000)));
    let mut byte = [0];
    both(&rig)
        .read(Gpa(DETOUR_GPA + 5), &mut byte)
        .expect("memory");
    assert_ne!(byte, [0xff]);
}

/// A vCPU or task in a copy has been counted, and runs on there when plants go and come back.
#[test]
fn copies_stay_when_plants_go() {
    let (rig, at) = rig(&RDTSC);
    let mut vcpu = vcpu(at);
    hit(&rig, &mut vcpu, at);
    assert_eq!(vcpu.regs.rip, REGION.0);
    rig.memory.put(STACK, &REGION.0.to_le_bytes());
    let copy = || {
        let mut bytes = [0; 7];
        both(&rig)
            .read(Gpa(DETOUR_GPA), &mut bytes)
            .expect("memory");
        bytes
    };
    let before = copy();
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert_eq!((rig.word(STACK), copy()), (REGION.0, before));
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    assert_eq!((rig.word(STACK), copy()), (REGION.0, before));
    assert_eq!(rig.probe(0).hits, 1);
    assert_eq!(hit(&rig, &mut vcpu, at), (false, false));
    assert_eq!((vcpu.regs.rip, rig.probe(0).hits), (REGION.0, 2));
    assert!(rig.notes().is_empty());
}

#[test]
fn probe_that_comes_back_finds_its_copy() {
    let (rig, at) = rig(&RDTSC);
    hit(&rig, &mut vcpu(at), at);
    let new = ProbeConfig::from("kprobe:probed".parse::<ProbeSpec>().expect("a probe"));
    rig.engine
        .unregister(&rig.paused, &rig.engine.inventory().ids())
        .expect("removed");
    for _ in 0..5000 {
        let ids = rig
            .engine
            .register(&rig.paused, std::slice::from_ref(&new))
            .expect("registered");
        assert_eq!(hit(&rig, &mut vcpu(at), at), (false, false));
        rig.engine.unregister(&rig.paused, &ids).expect("removed");
    }
}

/// Each request fails in turn: the instruction is stepped, and the guest's page tables are its own.
#[test]
fn failed_request_leaves_page_tables_unchanged() {
    for n in 1.. {
        let (rig, at) = rig(&RDTSC);
        let mut vcpu = vcpu(at);
        vcpu.regs.rip = at.0;
        assert_eq!(
            rig.engine.hits.on_hit(&mut vcpu, at).expect("handled"),
            HitOutcome::NeedsPause
        );
        rig.paused.requests.fail(n);
        let mut stepped = false;
        rig.engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| {
                stepped = true;
                Ok(Ran::At(at.wrapping_add(2)))
            })
            .ok();
        if !stepped {
            assert!(n > 1, "mapping and linking can fail");
            assert!(rig.word(ENTRY) != 0 && rig.probe(0).hits == 1);
            break;
        }
        assert_eq!(rig.word(ENTRY), 0, "request {n}");
        assert_eq!(rig.notes().len(), 1);
    }
}

fn exits(probe: &ProbeSummary) -> (u64, u64) {
    (probe.hits, probe.exits)
}

#[test]
fn exits_are_hits_unless_a_hit_was_stepped() {
    let (rig, at) = rig(&RDTSC);
    let mut vcpu = vcpu(at);
    for _ in 0..5 {
        hit(&rig, &mut vcpu, at);
    }
    assert_eq!(exits(&rig.probe(0)), (5, 5));
    vcpu.regs.rflags |= 1 << 8;
    hit(&rig, &mut vcpu, at);
    assert_eq!(exits(&rig.probe(0)), (6, 7));
    assert_eq!(ROOT, vcpu.state.paging.cr3);
}
