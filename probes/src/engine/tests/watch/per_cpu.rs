//! Watchpoints at per-CPU data: each processor has a copy.

use address::{Gva, PAGE_BYTES};
use events::ProbeState;
use introspect::PagingState;

use super::{MOV, Watched};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::tests::{DATA, PLAIN, ROOT, Rig, vcpu};
use crate::resolve::synthetic::SyntheticKernel;

const COUNT: &str = "watch:count:8";
/// The copy of the second processor, behind that of the first.
const SECOND: u64 = DATA + PAGE_BYTES;

/// A guest with two processors, the copies of whose variable `count` are at `first` and on the same place of a page behind, and a watchpoint there.
fn guest(first: u64) -> (Watched, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("writer", &MOV);
    let boots = kernel.function("rest_init", &PLAIN);
    kernel.variable("__per_cpu_start", 0);
    let linked = kernel.variable("count", 0);
    kernel.variable("__per_cpu_end", 0);
    let distance = first
        .wrapping_add(linked.page_offset())
        .wrapping_sub(linked.0);
    // There is room for a third processor.
    let distances = [0, PAGE_BYTES, 0].map(|more| distance.wrapping_add(more));
    kernel.array("__per_cpu_offset", &distances);
    kernel.variable("nr_cpu_ids", 2);
    let rig = Rig::new(&kernel, &[COUNT]);
    let data = first + linked.page_offset();
    (Watched { rig, at, data }, boots)
}

/// The kernel has made the copies.
fn boot(watched: &Watched, boots: Gva) {
    let rig = &watched.rig;
    let mut vcpu = vcpu(boots);
    let outcome = rig.engine.hits.on_hit(&mut vcpu, boots);
    assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
    let paging = PagingState::four_level(ROOT);
    rig.engine
        .running
        .modules
        .paging
        .store(Some(std::sync::Arc::new(paging)));
    let run = |_: &mut _, _: text::To<'_>| panic!("nothing to step");
    let hits = &rig.engine.paused_hits;
    let handled = hits.on_paused_hit(&mut vcpu, &rig.paused, boots, run);
    handled.expect("handled");
}

#[test]
fn write_to_each_copy_is_a_hit_with_the_processor() {
    let (watched, boots) = guest(DATA);
    assert_eq!(watched.rig.states()[0], ProbeState::Pending);
    assert_eq!(watched.protected(), [] as [u64; 0]);
    boot(&watched, boots);
    assert_eq!(watched.rig.states()[0], ProbeState::Armed);
    assert_eq!(watched.protected(), [DATA, SECOND]);
    for (to, value) in [(watched.data, 6), (watched.data + PAGE_BYTES, 7)] {
        let outcome = watched.exit(&mut watched.vcpu(to, value));
        assert_eq!(outcome, HitOutcome::Resume);
        assert_eq!(watched.rig.word(to), value);
    }
    let hits = watched.rig.hits();
    let writes = hits.iter().filter_map(|hit| hit.write);
    let copies: Vec<_> = writes
        .map(|write| (write.copy, write.at.0, write.new.0))
        .collect();
    let second = watched.data + PAGE_BYTES;
    assert_eq!(copies, [(Some(0), watched.data, 6), (Some(1), second, 7)]);
}

#[test]
fn copies_at_another_place_of_a_page_are_refused() {
    let (watched, boots) = guest(DATA + 8);
    boot(&watched, boots);
    assert_eq!(watched.rig.states()[0], ProbeState::Refused);
    let reason = watched.rig.probe(0).reason.expect("a reason");
    assert!(
        reason.contains("not at the same place of a page"),
        "{reason}"
    );
    assert_eq!(watched.protected(), [] as [u64; 0]);
}

#[test]
fn copies_without_memory_are_refused() {
    let (watched, boots) = guest(0x7fff_0000);
    boot(&watched, boots);
    assert_eq!(watched.rig.states()[0], ProbeState::Refused);
    let reason = watched.rig.probe(0).reason.expect("a reason");
    assert!(reason.ends_with("is not in memory"), "{reason}");
}
