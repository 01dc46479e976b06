//! Writes of the guest to watched data.

mod in_debug_registers;
mod in_modules;
mod in_tasks;
mod per_cpu;
mod reads;
mod stepped;
mod task_guest;

use std::sync::Arc;

use address::{Gpa, Gva};
use events::{DataWrite, ProbeId, ProbeState};
use manifest::{Action, ProbeConfig, WatchedAccess};
use text::testing::FakeVcpu;
use text::{GuestError, Ran, Spot, To};

use super::{Rig, gpa, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::watch::table::{WatchTable, WatchedBytes};
use crate::registry::{Missed, Probe, Purpose};
use crate::resolve::WORDS_MAX;
use crate::resolve::synthetic::SyntheticKernel;

/// `lock xadd [rdi], rax`
const XADD: [u8; 5] = [0xf0, 0x48, 0x0f, 0xc1, 0x07];
/// `mov [rdi], rax; ret`
const MOV: [u8; 4] = [0x48, 0x89, 0x07, 0xc3];
/// `movups [rdi], xmm0; ret`: for the hardware to execute.
const MOVUPS: [u8; 4] = [0x0f, 0x11, 0x07, 0xc3];
const BEFORE: u64 = 5;

/// The 64-bit code segment that makes the vCPU's instructions decodable.
const LONG_MODE: u16 = 1 << 13;

struct Watched {
    rig: Rig,
    /// The instruction.
    at: Gva,
    /// The guest-physical address of the variable, where a writable mapping is, too.
    data: u64,
}

/// A guest whose function `writer` has `code`, and a variable `counter` with the value [`BEFORE`].
fn watched(code: &[u8], probes: &[&str]) -> Watched {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("writer", code);
    let data = gpa(kernel.variable("counter", BEFORE));
    kernel.variable("neighbour", 0);
    let rig = Rig::new(&kernel, probes);
    Watched { rig, at, data }
}

impl Watched {
    /// A vCPU at the instruction, with the address and the value of a store.
    fn vcpu(&self, to: u64, value: u64) -> FakeVcpu {
        let mut vcpu = vcpu(self.at);
        vcpu.state.system.segments.cs.attributes = LONG_MODE;
        (vcpu.regs.rdi, vcpu.regs.rax) = (to, value);
        vcpu
    }

    fn exit(&self, vcpu: &mut FakeVcpu) -> HitOutcome {
        let writes = &self.rig.engine.protected_accesses;
        writes.on_protected_access(vcpu, self.at).expect("handled")
    }

    /// Handles the vCPU's exit with the other vCPUs paused.
    fn step(
        &self,
        vcpu: &mut FakeVcpu,
        run: impl FnMut(&mut FakeVcpu, To<'_>) -> Result<Ran, GuestError>,
    ) -> HitOutcome {
        let writes = &self.rig.engine.protected_accesses;
        let stepped = writes.on_paused_protected_access(vcpu, &self.rig.paused, self.at, run);
        stepped.expect("handled")
    }

    fn register(&self, probe: &str) {
        let spec = probe.parse::<manifest::ProbeSpec>().expect("a probe");
        let registered = self.rig.engine.register(&self.rig.paused, &[spec.into()]);
        registered.expect("registered");
    }

    fn protected(&self) -> Vec<u64> {
        let pages = self.rig.paused.protected.lock().expect("lock");
        pages.keys().map(|page| page.0).collect()
    }

    /// The values of the reported reads.
    fn reads(&self) -> Vec<u64> {
        let reads = self.rig.hits().into_iter().filter_map(|hit| hit.read);
        reads.map(|read| read.value.0).collect()
    }

    /// The values of the reported writes.
    fn writes(&self) -> Vec<(u64, u64)> {
        let writes = self.rig.hits().into_iter().filter_map(|hit| hit.write);
        writes.map(|write| (write.old.0, write.new.0)).collect()
    }

    fn counts(&self, probe: usize) -> (u64, u64) {
        let probe = self.rig.probe(probe);
        (probe.hits, probe.exits)
    }
}

#[test]
fn locked_instruction_is_emulated_and_reported_with_both_values() {
    let watched = watched(&XADD, &["watch:counter:8"]);
    assert_eq!(watched.rig.states(), [ProbeState::Armed]);
    assert_eq!(watched.protected(), [watched.data & !0xfff]);
    let mut vcpu = watched.vcpu(watched.data, 3);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::Resume);
    assert_eq!((vcpu.regs.rip - watched.at.0, vcpu.regs.rax), (5, BEFORE));
    assert_eq!(watched.rig.word(watched.data), BEFORE + 3);
    let hits = watched.rig.hits();
    let [hit] = &hits[..] else {
        panic!("{hits:?}");
    };
    assert_eq!((hit.ip.0, &*hit.symbol), (watched.at.0, "writer+0x0"));
    assert_eq!((hit.regs.rax.0, hit.regs.rip.0), (3, watched.at.0));
    let Some(DataWrite {
        bytes, old, new, ..
    }) = hit.write
    else {
        panic!("{hit:?}");
    };
    assert_eq!((bytes, old.0, new.0), (8, BEFORE, BEFORE + 3));
    assert_eq!(watched.counts(0), (1, 1));
}

#[test]
fn each_watchpoint_sees_its_own_bytes() {
    let watched = watched(
        &MOV,
        &["watch:counter:8", "watch:counter+4:2", "watch:neighbour:4"],
    );
    let value = 0x1111_2222_3333_4444;
    watched.exit(&mut watched.vcpu(watched.data, value));
    assert_eq!(watched.writes(), [(BEFORE, value), (0, 0x2222)]);
    // Half of the store is in front of the variable.
    watched.exit(&mut watched.vcpu(watched.data - 4, 0x7777_7777_0000_0000));
    let behind = (value & !0xffff_ffff) | 0x7777_7777;
    assert_eq!(watched.writes()[2..], [(value, behind)]);
    watched.exit(&mut watched.vcpu(watched.data + 8, 9));
    assert_eq!(watched.writes()[3..], [(0, 9)]);
    // Each exit at the page is counted.
    let counts = [0, 1, 2].map(|probe| watched.counts(probe));
    assert_eq!(counts, [(2, 3), (1, 3), (1, 3)]);
}

#[test]
fn store_of_the_same_value_is_a_hit() {
    let watched = watched(&MOV, &["watch:counter:8"]);
    watched.exit(&mut watched.vcpu(watched.data, BEFORE));
    assert_eq!(watched.writes(), [(BEFORE, BEFORE)]);
}

#[test]
fn write_that_kvm_has_emulated_is_made_and_attributed_to_the_instruction_before() {
    let watched = watched(&MOV, &["watch:counter:4"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    vcpu.regs.rip += 3;
    let write = |vcpu: &mut FakeVcpu, at| {
        let watches = &watched.rig.engine.watches;
        watches.guest_write(vcpu, Gpa(at), &[0x66]).expect("made")
    };
    assert!(write(&mut vcpu, watched.data + 1));
    assert_eq!(watched.rig.word(watched.data), 0x6605);
    assert_eq!(watched.writes(), [(BEFORE, 0x6605)]);
    assert_eq!(watched.rig.hits()[0].ip.0, watched.at.0);
    assert!(!write(&mut vcpu, watched.data + 0x1000), "not protected");
}

#[test]
fn emulated_instruction_under_a_plant_is_a_hit_of_both() {
    let watched = watched(&MOV, &["kprobe:writer", "watch:counter:8"]);
    let mut vcpu = watched.vcpu(watched.data, 8);
    let outcome = watched.rig.engine.hits.on_hit(&mut vcpu, watched.at);
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    assert_eq!(watched.writes(), [(BEFORE, 8)]);
    assert_eq!((watched.counts(0).0, watched.counts(1).0), (1, 1));
}

/// Protects the page of the code, as if a watchpoint with the number 99 could be there.
fn protect_code(watched: &Watched) {
    let purpose = Purpose::Count;
    let probe = Probe::new(ProbeId(99), "watch:_etext".into(), purpose, None, true);
    let bytes = WatchedBytes {
        at: watched.at,
        spot: Spot::contiguous(Gpa(gpa(watched.at))),
        len: 4,
        access: WatchedAccess::Writes,
        copy: None,
    };
    let words = bytes.words(&Arc::new(probe)).collect();
    let (rig, table) = (&watched.rig, WatchTable::new(words));
    let replaced = rig.engine.watches.replace(&rig.paused, table);
    replaced.expect("armed");
}

#[test]
fn emulated_write_to_a_page_with_plants_is_left_to_the_merge_and_missed() {
    let watched = watched(&MOV, &["kprobe:writer"]);
    protect_code(&watched);
    let (rig, plant) = (&watched.rig, gpa(watched.at));
    let planted = rig.byte(plant);
    let mut vcpu = watched.vcpu(watched.data, 0);
    let watches = &rig.engine.watches;
    let made = watches.guest_write(&mut vcpu, Gpa(plant), &[0x90]);
    assert!(!made.expect("handled"));
    assert_eq!(rig.byte(plant), planted);
    let table = watches.table.load();
    let counters = &table.watches()[0].probe.counters;
    assert_eq!(counters.missed_for(Missed::Unprotected), 1);
}

#[test]
fn plant_on_a_protected_page_is_refused() {
    let watched = watched(&MOV, &[]);
    protect_code(&watched);
    watched.register("kprobe:writer");
    let probe = watched.rig.probe(0);
    assert_eq!(probe.state, ProbeState::Refused);
    assert_eq!(
        probe.reason.as_deref(),
        Some("its page has watched data: remove the watchpoints of the page first")
    );
    assert_eq!(watched.rig.byte(gpa(watched.at)), MOV[0]);
}

#[test]
fn filter_rejects_writes() {
    let watched = watched(&MOV, &[]);
    let config = ProbeConfig {
        filter: "rax > 100".parse().ok(),
        action: Action::Count,
        ..ProbeConfig::from(
            "watch:counter:8"
                .parse::<manifest::ProbeSpec>()
                .expect("a probe"),
        )
    };
    let rig = &watched.rig;
    let registered = rig.engine.register(&rig.paused, &[config]);
    registered.expect("registered");
    for value in [100, 101, 102] {
        watched.exit(&mut watched.vcpu(watched.data, value));
    }
    assert_eq!(watched.counts(0), (2, 3));
    assert_eq!(rig.hits(), []);
}

#[test]
fn protection_ends_with_the_last_watchpoint() {
    let watched = watched(&MOV, &["watch:counter:8", "watch:neighbour:8"]);
    let rig = &watched.rig;
    let page = [watched.data & !0xfff];
    let ids = rig.engine.inventory().ids();
    let remove = |id| rig.engine.unregister(&rig.paused, &[id]).expect("removed");
    remove(ids[0]);
    assert_eq!(watched.protected(), page);
    rig.engine.set_armed(&rig.paused, false).expect("disarmed");
    assert!(watched.protected().is_empty());
    // A vCPU that has exited before resumes, and exits again if its memory is not mapped.
    let mut vcpu = watched.vcpu(watched.data, 1);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::Resume);
    assert_eq!(vcpu.regs.rip, watched.at.0);
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    assert_eq!(watched.protected(), page);
    let disabled = rig.engine.set_enabled(&rig.paused, ids[1], false);
    assert!(disabled.expect("disabled"));
    assert!(watched.protected().is_empty());
    remove(ids[1]);
    assert_eq!(rig.states(), []);
}

#[test]
fn refused_protection_registers_nothing() {
    let watched = watched(&MOV, &["kprobe:writer"]);
    let rig = &watched.rig;
    let watch = || {
        let spec = "watch:counter:8".parse::<manifest::ProbeSpec>();
        ProbeConfig::from(spec.expect("a probe"))
    };
    rig.paused.requests.fail(1);
    let refused = rig.engine.register(&rig.paused, &[watch()]);
    assert!(refused.is_err());
    rig.paused.requests.fail(0);
    assert_eq!(rig.states(), [ProbeState::Armed]);
    assert!(watched.protected().is_empty());
    rig.engine
        .register(&rig.paused, &[watch()])
        .expect("registered");
    assert_eq!(watched.protected(), [watched.data & !0xfff]);
}

#[test]
fn watchpoint_of_many_bytes_has_a_hit_for_each_word() {
    let watched = watched(&MOV, &["watch:counter:4"]);
    let at = watched.rig.probe(0).ip.expect("armed");
    watched.register(&format!("watch:{at}:12"));
    // The store writes the last bytes of one word and the first of the next.
    watched.exit(&mut watched.vcpu(watched.data + 4, 0x2222_2222_1111_1111));
    let hits = watched.rig.hits().into_iter();
    let words: Vec<_> = hits
        .filter_map(|hit| hit.write)
        .map(|write| (write.at.0, write.offset, write.bytes, write.new.0))
        .collect();
    let low = 0x1111_1111_0000_0005;
    assert_eq!(words, [(at.0, 0, 8, low), (at.0 + 8, 8, 4, 0x2222_2222)]);
    // An exit at other bytes of the page is one, however many words the watchpoint has.
    watched.exit(&mut watched.vcpu(watched.data + 64, 1));
    assert_eq!((watched.counts(0), watched.counts(1)), ((0, 2), (2, 3)));
}

#[test]
fn second_emulation_failure_of_an_instruction_is_not_ours() {
    let watched = watched(&MOVUPS, &["watch:counter:8"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    let writes = &watched.rig.engine.protected_accesses;
    let failure = |vcpu: &mut FakeVcpu| writes.on_emulation_failure(vcpu).expect("looked at");
    assert_eq!(failure(&mut vcpu), HitOutcome::NeedsPause);
    let mut second = None;
    watched.step(&mut vcpu, |vcpu, _| {
        second = Some(failure(vcpu));
        Ok(Ran::Ended)
    });
    assert_eq!(second, Some(HitOutcome::NotOurs));
    assert_eq!(vcpu.regs.rip, watched.at.0);
}

#[test]
fn emulation_failure_is_not_ours_only_if_kvm_has_raised_an_invalid_opcode() {
    let outcome = |undelivered, attributes| {
        let watched = watched(&MOVUPS, &["watch:counter:8"]);
        let mut vcpu = watched.vcpu(watched.data, 0);
        vcpu.undelivered = undelivered;
        vcpu.state.system.segments.cs.attributes = attributes;
        let writes = &watched.rig.engine.protected_accesses;
        writes.on_emulation_failure(&mut vcpu).expect("looked at")
    };
    assert_eq!(outcome(Some(6), LONG_MODE), HitOutcome::NotOurs);
    // The event is delivered first, and code of another mode runs alone.
    assert_eq!(outcome(Some(0x30), LONG_MODE), HitOutcome::NeedsPause);
    assert_eq!(outcome(None, 0), HitOutcome::NeedsPause);
}

#[test]
fn watchpoints_beyond_the_most_words_are_no_probes() {
    let watched = watched(&MOV, &["watch:counter:4"]);
    let rig = &watched.rig;
    let at = rig.probe(0).ip.expect("armed");
    // 16 bytes count as three words, wherever they begin. The first watchpoint has up to two.
    let most = (WORDS_MAX - 2) / 3;
    let spec = format!("watch:{at}:16").parse::<manifest::ProbeSpec>();
    let disabled = ProbeConfig {
        enabled: false,
        ..ProbeConfig::from(spec.expect("a probe"))
    };
    let register = |number| {
        let all = vec![disabled.clone(); number];
        rig.engine.register(&rig.paused, &all)
    };
    let refused = register(most + 1).expect_err("too many");
    assert!(
        format!("{refused:?}").contains("TooManyWords"),
        "{refused:?}"
    );
    assert_eq!(rig.states().len(), 1);
    register(most).expect("registered");
    register(1).expect_err("too many");
    let ids = rig.engine.inventory().ids();
    rig.engine
        .unregister(&rig.paused, &ids[1..2])
        .expect("removed");
    register(1).expect("registered");
}

#[test]
fn note_names_the_instruction_of_many_exits() {
    let watched = watched(&MOV, &["watch:counter:8"]);
    for round in 0..2000 {
        watched.exit(&mut watched.vcpu(watched.data + 8, round));
    }
    let notes = watched.rig.notes();
    let [note] = &notes[..] else {
        panic!("{notes:?}");
    };
    assert_eq!(note.probe.as_deref(), Some("watch:counter:8"));
    let text = &note.text;
    assert!(text.starts_with("1000 exits in "), "{text}");
    let by = "slow the guest, by writer+0x0 (at least 1000); with `hw`, up to 8 bytes exit at their own writes only";
    assert!(text.ends_with(by), "{text}");
}

#[test]
fn note_names_no_instruction_of_many_that_exit() {
    let many = MOV.repeat(32);
    let mut watched = watched(&many, &["watch:counter:8"]);
    let writer = watched.at;
    for round in 0..1000 {
        watched.at = writer.wrapping_add(round % 32 * MOV.len() as u64);
        watched.exit(&mut watched.vcpu(watched.data + 8, round));
    }
    let notes = watched.rig.notes();
    let text = &notes.first().expect("a note").text;
    assert!(
        text.ends_with("slow the guest, by many instructions; with `hw`, up to 8 bytes exit at their own writes only"),
        "{text}"
    );
}
