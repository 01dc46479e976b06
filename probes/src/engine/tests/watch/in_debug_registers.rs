//! Watchpoints with a debug register: the processor stops behind the write.

use std::sync::Arc;

use address::{Gpa, Gva};
use events::{ProbeId, ProbeState};
use introspect::PagingState;
use manifest::{ProbeSpec, Stealth, WatchedAccess};
use text::testing::FakeVcpu;
use text::{Ran, Spot, To, Vcpu as _};
use vmm::{BreakpointBytes, HardwareBreakpoint};

use super::{BEFORE, MOV, MOVUPS, Watched, watched};
use crate::engine::abilities::Abilities;
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::tests::{ABILITIES, DATA, LOWER, PLAIN, ROOT, Rig, TABLE, gpa, one, vcpu};
use crate::engine::watch::table::{WatchTable, WatchedBytes};
use crate::registry::{Probe, Purpose};
use crate::resolve::synthetic::SyntheticKernel;

const COUNTER: &str = "watch:counter:8:hw";
/// `ud2`
const UD2: [u8; 2] = [0x0f, 0x0b];
/// `rep stosb; ret`
const STOSB: [u8; 3] = [0xf3, 0xaa, 0xc3];
/// The kernel's map of all memory.
const MAP: u64 = 0xffff_8880_0000_0000;

/// A guest whose function `writer` has `code`, with the address of the variable `counter`.
fn counted(code: &[u8], probes: &[&str]) -> (Watched, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("writer", code);
    let counter = kernel.variable("counter", BEFORE);
    kernel.variable("neighbour", 0);
    let rig = Rig::new(&kernel, probes);
    let data = gpa(counter);
    (Watched { rig, at, data }, counter)
}

/// The hardware has executed a store of `value` by the first `len` bytes of the function, and the debug registers in `fired` have stopped the vCPU.
fn stores(watched: &Watched, value: u64, len: u64, fired: u8) {
    watched.rig.memory.put(watched.data, &value.to_le_bytes());
    let mut vcpu = watched.vcpu(watched.data, value);
    vcpu.regs.rip += len;
    let watches = &watched.rig.engine.watches;
    watches
        .on_register_writes(&mut vcpu, fired)
        .expect("handled");
}

fn ids(rig: &Rig) -> Vec<ProbeId> {
    let probes = rig.engine.probes.list.load();
    probes.iter().map(|probe| probe.id).collect()
}

fn eight(at: Gva) -> Option<HardwareBreakpoint> {
    let bytes = BreakpointBytes::new(at, 8).expect("aligned");
    Some(HardwareBreakpoint::Write(at, bytes))
}

#[test]
fn write_behind_which_the_register_fires_is_a_hit_and_no_page_is_protected() {
    let (watched, counter) = counted(&MOV, &[COUNTER]);
    assert_eq!(watched.rig.states(), [ProbeState::Armed]);
    assert_eq!(watched.protected(), [] as [u64; 0]);
    let registers = watched.rig.paused.registers();
    assert_eq!(registers, [eight(counter), None, None, None]);
    stores(&watched, 7, 3, 1);
    stores(&watched, 7, 3, 1);
    // A register of nobody's.
    stores(&watched, 9, 3, 2);
    assert_eq!(watched.writes(), [(BEFORE, 7), (7, 7)]);
    let hit = &watched.rig.hits()[0];
    assert_eq!((hit.ip.0, &*hit.symbol), (watched.at.0, "writer+0x0"));
    assert_eq!(watched.counts(0), (2, 2));
}

#[test]
fn repeated_store_is_the_writer_at_each_element() {
    let (mut watched, counter) = counted(&STOSB, &[COUNTER]);
    watched.data = counter.0;
    let store = |rdi: u64, rip: u64| {
        let mut vcpu = watched.vcpu(rdi, 0);
        vcpu.regs.rip += rip;
        let watches = &watched.rig.engine.watches;
        watches.on_register_writes(&mut vcpu, 1).expect("handled");
    };
    store(counter.0 + 1, 0);
    store(counter.0 + 4, 2);
    let hits = watched.rig.hits();
    let ips: Vec<_> = hits.iter().map(|hit| hit.ip).collect();
    assert_eq!(ips, [watched.at.into(), watched.at.into()]);
}

#[test]
fn writer_is_not_known_behind_code_that_does_not_store() {
    let (watched, _) = counted(&PLAIN, &[COUNTER]);
    stores(&watched, 1, 0, 1);
    assert_eq!(watched.rig.hits()[0].ip, watched.at.into());
}

#[test]
fn emulated_write_is_a_hit_and_the_next_write_of_the_hardware_has_its_value() {
    let (watched, _) = counted(&MOV, &["kprobe:writer", COUNTER]);
    let mut vcpu = watched.vcpu(watched.data, 8);
    let outcome = watched.rig.engine.hits.on_hit(&mut vcpu, watched.at);
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    stores(&watched, 9, 3, 1);
    assert_eq!(watched.writes(), [(BEFORE, 8), (8, 9)]);
}

#[test]
fn write_of_an_instruction_that_runs_alone_is_one_hit() {
    // The second watchpoint protects the page, so the hardware executes the store alone.
    let watched = watched(&MOVUPS, &[COUNTER, "watch:counter+4:4"]);
    let fires = |fires: bool, value: u64| {
        let mut vcpu = watched.vcpu(watched.data, 0);
        let run = |vcpu: &mut FakeVcpu, _: To<'_>| {
            watched.rig.memory.put(watched.data, &value.to_le_bytes());
            vcpu.regs.rip += 3;
            if fires {
                let watches = &watched.rig.engine.watches;
                watches.on_register_writes(vcpu, 1)?;
            }
            Ok(Ran::At(Gva(vcpu.regs()?.rip)))
        };
        assert_eq!(watched.step(&mut vcpu, run), HitOutcome::Resume);
    };
    fires(true, 6);
    // The registers are those of the program's stops.
    fires(false, 7);
    assert_eq!(watched.writes(), [(BEFORE, 6), (6, 7)]);
    assert_eq!(watched.counts(0), (2, 2));
}

/// A guest with watchpoints in all registers, the first at `counter`.
fn four() -> Watched {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("writer", &MOV);
    let counter = kernel.variable("counter", BEFORE);
    let others = ["b", "c", "d"];
    for name in others {
        kernel.variable(name, 0);
    }
    let others = others.map(|name| format!("watch:{name}:8:hw"));
    let probes = std::iter::once(COUNTER).chain(others.iter().map(String::as_str));
    let rig = Rig::new(&kernel, &probes.collect::<Vec<_>>());
    Watched {
        rig,
        at,
        data: gpa(counter),
    }
}

/// The vCPU runs alone up to `stop` or not, and the value is `value` afterwards.
fn runs_alone(watched: &Watched, stop: Gva, ran: Ran, value: u64) {
    let rig = &watched.rig;
    let run = |_: &mut FakeVcpu, _: To<'_>| {
        rig.memory.put(watched.data, &value.to_le_bytes());
        Ok(ran)
    };
    let mut vcpu = watched.vcpu(watched.data, 0);
    let stops = [stop];
    let watches = &rig.engine.watches;
    let ran = watches.run_alone(&mut vcpu, To::Next(&stops), run);
    ran.expect("handled");
}

#[test]
fn write_is_known_by_the_value_while_a_stop_of_a_program_has_the_register() {
    let watched = four();
    let (program, kernel) = (Gva(0x40_0000), watched.at);
    runs_alone(&watched, program, Ran::At(program), 6);
    assert_eq!(watched.writes(), [(BEFORE, 6)]);
    assert!(watched.rig.probe(0).missed.is_empty());
    // All registers stay in force.
    runs_alone(&watched, kernel, Ran::Nowhere, 6);
    assert!(watched.rig.probe(0).missed.is_empty());
    runs_alone(&watched, program, Ran::Nowhere, 7);
    assert_eq!(watched.writes(), [(BEFORE, 6), (6, 7)]);
    let missed = [("unprotected".to_owned(), 1)].into();
    assert_eq!(watched.rig.probe(0).missed, missed);
    assert_eq!(watched.rig.probe(3).missed, missed);
}

#[test]
fn change_that_no_instruction_has_made_is_no_hit_of_the_next_that_runs_alone() {
    let watched = four();
    // KVM has written, or another mapping was used.
    watched.rig.memory.put(watched.data, &9_u64.to_le_bytes());
    runs_alone(&watched, watched.at, Ran::At(watched.at), 9);
    assert_eq!(watched.writes(), []);
}

#[test]
fn watchpoint_keeps_its_register_when_others_come_and_go() {
    let mut kernel = SyntheticKernel::new();
    let keyed = kernel.function("keyed", &PLAIN);
    kernel.jump_labels(&[keyed]);
    let counter = kernel.variable("counter", BEFORE);
    kernel.variable("other", 0);
    let rig = Rig::new(&kernel, &["watch:other:8:hw", COUNTER]);
    let register = |spec: &str| {
        let spec: ProbeSpec = spec.parse().expect("a probe");
        let ids = rig.engine.register(&rig.paused, &[spec.into()]);
        ids.expect("registered");
    };
    register("kprobe:keyed");
    let registers = rig.paused.registers();
    assert_eq!(registers[1], eight(counter));
    assert_eq!(registers[2], Some(HardwareBreakpoint::Execute(keyed)));
    let removed = rig.engine.unregister(&rig.paused, &ids(&rig)[..1]);
    removed.expect("removed");
    let after = [registers[2], registers[1], None, None];
    assert_eq!(rig.paused.registers(), after);
}

#[test]
fn withdrawn_plant_that_loses_its_register_does_not_return_while_the_guest_may_read() {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("f", &UD2);
    let names = ["a", "b", "c", "d"];
    for name in names {
        kernel.variable(name, 0);
    }
    let rig = Rig::new(&kernel, &["kprobe:f"]);
    let mut hitting = vcpu(at);
    let outcome = rig.engine.hits.on_hit(&mut hitting, at);
    assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
    let run = |_: &mut FakeVcpu, _: To<'_>| Ok(Ran::Nowhere);
    let hits = &rig.engine.paused_hits;
    let handled = hits.on_paused_hit(&mut hitting, &rig.paused, at, run);
    handled.expect("handled");
    assert_eq!(
        (rig.seen(at), rig.paused.breakpoints()[0]),
        (UD2[0], Some(at))
    );
    for name in names {
        let spec: ProbeSpec = format!("watch:{name}:8:hw").parse().expect("a probe");
        let ids = rig.engine.register(&rig.paused, &[spec.into()]);
        ids.expect("registered");
    }
    assert_eq!(rig.seen(at), UD2[0]);
    assert_eq!(rig.paused.breakpoints(), [None; 4]);
    let missed = [("unwatched".to_owned(), 1)].into();
    assert_eq!(rig.probe(0).missed, missed);
    // The next free register is the plant's.
    let removed = rig.engine.unregister(&rig.paused, &ids(&rig)[1..2]);
    removed.expect("removed");
    assert!(rig.paused.breakpoints().contains(&Some(at)));
}

#[test]
fn fifth_register_is_refused_until_another_is_free() {
    let (mut kernel, _) = one("f", &PLAIN);
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        kernel.variable(name, 0);
    }
    let probes = names.map(|name| format!("watch:{name}:8:hw"));
    let rig = Rig::new(&kernel, &probes.each_ref().map(String::as_str));
    use ProbeState::{Armed, Refused};
    assert_eq!(rig.states(), [Armed, Armed, Armed, Armed, Refused]);
    let reason = rig.probe(4).reason.expect("a reason");
    assert!(
        reason.contains("more debug registers than are left"),
        "{reason}"
    );
    let removed = rig.engine.unregister(&rig.paused, &ids(&rig)[..1]);
    removed.expect("removed");
    assert_eq!(rig.paused.registers().iter().flatten().count(), 3);
    let spec: ProbeSpec = probes[4].parse().expect("a probe");
    let registered = rig.engine.register(&rig.paused, &[spec.into()]);
    registered.expect("registered");
    assert_eq!(rig.states(), [Armed, Armed, Armed, Refused, Armed]);
    assert_eq!(rig.paused.registers().iter().flatten().count(), 4);
}

#[test]
fn watchpoints_at_the_same_bytes_share_a_register_and_others_do_not_overlap() {
    let counted_too = "watch:counter:8:hw";
    let (watched, _) = counted(&MOV, &[COUNTER, counted_too, "watch:counter+4:4:hw"]);
    use ProbeState::{Armed, Refused};
    assert_eq!(watched.rig.states(), [Armed, Armed, Refused]);
    let reason = watched.rig.probe(2).reason.expect("a reason");
    assert!(reason.contains("some of the bytes"), "{reason}");
    assert_eq!(watched.rig.paused.registers().iter().flatten().count(), 1);
    stores(&watched, 7, 3, 1);
    assert_eq!(watched.writes(), [(BEFORE, 7), (BEFORE, 7)]);
    let removed = watched
        .rig
        .engine
        .unregister(&watched.rig.paused, &ids(&watched.rig)[..1]);
    removed.expect("removed");
    stores(&watched, 8, 3, 1);
    assert_eq!(watched.writes()[2..], [(7, 8)]);
}

#[test]
fn disabled_watchpoint_gives_its_register_back() {
    let (watched, counter) = counted(&MOV, &[COUNTER]);
    let rig = &watched.rig;
    let id = ids(rig)[0];
    for enabled in [false, true] {
        let changed = rig.engine.set_enabled(&rig.paused, id, enabled);
        changed.expect("changed");
        let expected = eight(counter).filter(|_| enabled);
        assert_eq!(rig.paused.registers()[0], expected);
    }
}

#[test]
fn address_in_the_map_of_all_memory_is_watched_once_the_kernel_has_booted() {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("writer", &MOV);
    let boots = kernel.function("rest_init", &PLAIN);
    let in_map = format!("watch:{:#x}:8:hw", MAP + DATA);
    let elsewhere = format!("watch:{:#x}:8:hw", MAP + (1 << 40));
    let of_image = format!("watch:{:#x}:8:hw", MAP + gpa(at));
    let rig = Rig::new(&kernel, &[&in_map, &elsewhere, &of_image]);
    // Entry 273 of the table.
    let entry = ROOT + 8 * (MAP >> 39 & 511);
    rig.memory.put(entry, &(LOWER | TABLE).to_le_bytes());
    assert_eq!(rig.states()[0], ProbeState::Pending);
    let mut booting = vcpu(boots);
    let outcome = rig.engine.hits.on_hit(&mut booting, boots);
    assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
    let paging = Arc::new(PagingState::four_level(ROOT));
    rig.engine.running.modules.paging.store(Some(paging));
    let run = |_: &mut _, _: To<'_>| panic!("nothing to step");
    let hits = &rig.engine.paused_hits;
    let handled = hits.on_paused_hit(&mut booting, &rig.paused, boots, run);
    handled.expect("handled");
    let states = rig.states();
    assert_eq!(states[..2], [ProbeState::Armed, ProbeState::Refused]);
    assert_eq!(rig.paused.registers()[0], eight(Gva(MAP + DATA)));
    let reason = rig.probe(1).reason.expect("a reason");
    assert!(reason.contains("map of all memory"), "{reason}");
    let reason = rig.probe(2).reason.expect("a reason");
    let address = format!("watch {at}");
    assert!(
        reason.contains("image") && reason.ends_with(&address),
        "{reason}"
    );
    let watched = Watched {
        rig,
        at,
        data: DATA,
    };
    stores(&watched, 3, 3, 1);
    assert_eq!(watched.writes(), [(0, 3)]);
    let write = watched.rig.hits()[0].write.expect("a write");
    assert_eq!(write.at.0, MAP + DATA);
}

#[test]
fn code_on_a_page_with_data_in_a_register_is_refused() {
    // KVM emulates writes to a read-only page, and no debug register fires.
    let (watched, _) = counted(&MOV, &[]);
    let purpose = Purpose::Count;
    let probe = Probe::new(ProbeId(99), COUNTER.into(), purpose, None, true);
    let bytes = WatchedBytes {
        at: watched.at.page(),
        spot: Spot::contiguous(Gpa(gpa(watched.at.page()))),
        len: 8,
        access: WatchedAccess::HardwareWrites,
        copy: None,
    };
    let table = WatchTable::new(bytes.words(&Arc::new(probe)).collect());
    let rig = &watched.rig;
    let replaced = rig.engine.watches.replace(&rig.paused, table);
    replaced.expect("armed");
    assert_eq!(watched.protected(), [] as [u64; 0]);
    watched.register("kprobe:writer");
    assert_eq!(rig.states(), [ProbeState::Refused]);
    let reason = rig.probe(0).reason.expect("a reason");
    assert!(reason.contains("its page has watched data"), "{reason}");
}

#[test]
fn host_or_level_without_registers_for_data_is_an_error() {
    let (mut kernel, _) = one("f", &PLAIN);
    kernel.variable("counter", BEFORE);
    let refused = |abilities| -> String {
        let rig = Rig::with(&kernel, &[], abilities);
        let spec: ProbeSpec = COUNTER.parse().expect("a probe");
        let error = rig.engine.register(&rig.paused, &[spec.into()]);
        error.expect_err("refused").to_string()
    };
    let none = Abilities {
        debug_writes: false,
        ..ABILITIES
    };
    let for_instructions = Abilities {
        stealth: Stealth::Registers,
        ..ABILITIES
    };
    assert!(refused(none).contains("do not work on this host"));
    assert!(refused(for_instructions).contains("at the level `registers`"));
}
