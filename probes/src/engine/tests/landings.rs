//! Calls that return to an instruction that the kernel patches.

use address::Gva;
use events::Event;

use super::returns::{Guest, STACK};
use super::{PLAIN, Rig};
use crate::resolve::synthetic::SyntheticKernel;

const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const NOP2: [u8; 2] = [0x66, 0x90];
const NOTHING: u8 = 0x90;
const RET: u8 = 0xc3;

/// `probed`, and `caller`: a call of `probed`, and the given code.
struct Caller {
    kernel: SyntheticKernel,
    probed: Gva,
    /// Where the call returns to.
    behind: Gva,
}

impl Caller {
    fn new(behind: &[u8]) -> Self {
        let mut kernel = SyntheticKernel::new();
        let probed = kernel.function("probed", &PLAIN);
        let code = [&[0xe8, 0, 0, 0, 0], behind, &[NOTHING, RET]].concat();
        let behind = kernel.function("caller", &code).wrapping_add(5);
        Self {
            kernel,
            probed,
            behind,
        }
    }

    fn at(&self, offset: u64) -> Gva {
        self.behind.wrapping_add(offset)
    }

    fn probed(self) -> (Guest, Gva) {
        let rig = Rig::new(&self.kernel, &["kretprobe:probed"]);
        let guest = Guest {
            rig,
            return_site: self.behind,
        };
        (guest, self.probed)
    }
}

fn missed(guest: &Guest) -> Vec<(String, u64)> {
    guest.rig.probe(0).missed.into_iter().collect()
}

#[test]
fn return_to_a_jump_label_is_seen_at_both_of_its_successors() {
    let mut caller = Caller::new(&[&NOP5[..], &[NOTHING; 3]].concat());
    let (label, next, target) = (caller.behind, caller.at(5), caller.at(7));
    caller.kernel.jump_labels_to(&[(label, target)]);
    let (guest, probed) = caller.probed();
    for (calls, landing) in [(1, next), (2, target)] {
        guest.call(probed, STACK);
        assert_eq!(guest.accounted(), (1, calls - 1, 0));
        guest.reach(landing, STACK + 16);
        assert_eq!(guest.accounted(), (1, calls - 1, 0), "of another stack");
        guest.reach(landing, STACK + 8);
        assert_eq!(guest.accounted(), (0, calls, 0));
        guest.reach(landing, STACK + 8);
        assert_eq!(guest.accounted(), (0, calls, 0), "once");
    }
    assert_eq!(missed(&guest), []);
    assert_eq!(guest.rig.seen(label), NOP5[0], "the kernel compares it");
    let events = guest.rig.events.0.lock().expect("lock");
    let ips = events.iter().filter_map(|event| match event {
        Event::Return(told) => Some((told.ip, told.regs.rip)),
        _ => None,
    });
    assert!(ips.eq([(label.into(), label.into()); 2]));
}

#[test]
fn chain_of_jump_labels_is_followed() {
    let mut caller = Caller::new(&[&NOP5[..], &NOP2, &[NOTHING; 3]].concat());
    let (first, second) = (caller.behind, caller.at(5));
    let ends = [caller.at(7), caller.at(8), caller.at(9)];
    // The second is the target of the first, too, and has a loop.
    let labels = [(first, ends[1]), (second, ends[2])];
    caller.kernel.jump_labels_to(&labels);
    let (guest, probed) = caller.probed();
    for (calls, end) in (1..).zip(ends) {
        guest.call(probed, STACK);
        guest.reach(end, STACK + 8);
        assert_eq!(guest.accounted(), (0, calls, 0), "{end}");
    }
    assert_eq!(missed(&guest), []);
}

#[test]
fn jump_label_without_a_known_target_is_missed() {
    let mut caller = Caller::new(&NOP5);
    let label = caller.behind;
    let no_code = Gva(label.0 + 0x100_0000);
    caller.kernel.jump_labels_to(&[(label, no_code)]);
    let (guest, probed) = caller.probed();
    guest.call(probed, STACK);
    assert_eq!(guest.accounted(), (0, 0, 0));
    assert_eq!(missed(&guest), [("return-site".to_owned(), 1)]);
    assert_eq!(guest.rig.seen(label.wrapping_add(5)), NOTHING);
}

/// `caller` with a static call behind its call of `probed`, whose bytes are `code`.
fn before_static_call(code: [u8; 5]) -> Caller {
    let mut caller = Caller::new(&code);
    caller.kernel.static_calls(&[caller.behind]);
    caller
}

/// A call from `from` to `to`.
fn call(from: Gva, to: Gva) -> [u8; 5] {
    let [a, b, c, d, ..] = to.0.wrapping_sub(from.0 + 5).to_le_bytes();
    [0xe8, a, b, c, d]
}

#[test]
fn return_to_a_static_call_is_seen_at_the_entry_of_the_function_called() {
    let mut kernel = SyntheticKernel::new();
    let probed = kernel.function("probed", &PLAIN);
    let traced = [&NOP5[..], &PLAIN].concat();
    let target = kernel.function("target", &traced);
    let caller = kernel.function("caller", &[NOTHING; 11]);
    let behind = caller.wrapping_add(5);
    let code = [&call(caller, probed)[..], &call(behind, target), &[RET]].concat();
    kernel.rewrite(caller, &code);
    kernel.ftrace_calls(&[target]);
    kernel.static_calls(&[behind]);
    let guest = Guest {
        rig: Rig::new(&kernel, &["kretprobe:probed"]),
        return_site: behind,
    };
    guest.call(probed, STACK);
    let entry = target.wrapping_add(5);
    guest.reach(entry, STACK + 8);
    assert_eq!(guest.accounted(), (1, 0, 0), "called from one frame above");
    // `probed` ends in a jump to `target`: its own return address is on top of the stack.
    guest.reach(entry, STACK);
    assert_eq!(guest.accounted(), (1, 0, 0), "it has not returned");
    // The return address of the static call has replaced the return address of `probed` on the stack.
    let pushed = behind.wrapping_add(5);
    guest.rig.memory.put(STACK, &pushed.0.to_le_bytes());
    guest.reach(entry, STACK);
    assert_eq!(guest.accounted(), (0, 1, 0));
    assert_eq!(missed(&guest), []);
    assert_eq!(guest.rig.seen(behind), 0xe8, "the kernel compares it");
    let events = guest.rig.events.0.lock().expect("lock");
    let ips = events.iter().filter_map(|event| match event {
        Event::Return(told) => Some(told.ip),
        _ => None,
    });
    assert!(ips.eq([behind.into()]));
}

#[test]
fn static_call_that_is_a_nop_is_passed() {
    let (guest, probed) = before_static_call(NOP5).probed();
    guest.call(probed, STACK);
    guest.reach(guest.return_site.wrapping_add(5), STACK + 8);
    assert_eq!(guest.accounted(), (0, 1, 0));
}

/// `xor eax, eax` in the place of the call: the value that the call before it returned is gone.
#[test]
fn static_call_that_returns_zero_is_missed_until_the_kernel_rewrites_it() {
    let (guest, probed) = before_static_call([0x2e, 0x2e, 0x2e, 0x31, 0xc0]).probed();
    for calls in 1..=2 {
        guest.call(probed, STACK);
        assert_eq!(missed(&guest), [("return-site".to_owned(), calls)]);
    }
    let engine = &guest.rig.engine;
    let gpa = address::Gpa(super::gpa(guest.return_site));
    let written = engine.writes.on_guest_write(gpa, &NOP5).expect("written");
    assert_eq!(written, text::Written::Merged, "the page has a plant");
    guest.call(probed, STACK);
    assert_eq!(missed(&guest), [("return-site".to_owned(), 2)]);
    guest.reach(guest.return_site.wrapping_add(5), STACK + 8);
    assert_eq!(guest.accounted(), (0, 1, 0));
}

/// The call that the kernel wrote at boot is shorter than the room for it.
#[test]
fn nop_behind_a_call_that_was_patched_at_boot_is_passed() {
    let mut caller = Caller::new(&[NOTHING; 3]);
    caller.kernel.function("rest_init", &PLAIN);
    caller.kernel.return_sites(&[caller.behind]);
    let (guest, probed) = caller.probed();
    guest.call(probed, STACK);
    guest.reach(guest.return_site.wrapping_add(1), STACK + 8);
    assert_eq!(guest.accounted(), (0, 1, 0));
    assert_eq!(missed(&guest), []);
}

#[test]
fn landings_go_with_the_last_call() {
    let mut caller = Caller::new(&[&NOP5[..], &[NOTHING; 3]].concat());
    let (label, next, target) = (caller.behind, caller.at(5), caller.at(7));
    caller.kernel.jump_labels_to(&[(label, target)]);
    let (guest, probed) = caller.probed();
    guest.call(probed, STACK);
    assert_ne!(guest.rig.seen(next), NOTHING);
    assert_ne!(guest.rig.seen(target), NOTHING);
    // Another probe's going looks at all return sites.
    let rig = &guest.rig;
    let other: manifest::ProbeSpec = "kretprobe:caller".parse().expect("a probe");
    let ids = rig.engine.register(&rig.paused, &[other.into()]);
    let ids = ids.expect("registered");
    rig.engine.unregister(&rig.paused, &ids).expect("removed");
    assert_ne!(guest.rig.seen(next), NOTHING, "a call is in flight");
    guest.reach(target, STACK + 8);
    assert_eq!(guest.accounted(), (0, 1, 0));
    let id = rig.engine.inventory().ids()[0];
    rig.engine.set_enabled(&rig.paused, id, false).expect("set");
    assert_eq!(guest.rig.seen(next), NOTHING);
    assert_eq!(guest.rig.seen(target), NOTHING);
}

/// An instruction patched at boot becomes a return site as soon as the boot is over.
#[test]
fn address_that_is_patched_at_boot_is_tried_again_when_the_kernel_has_booted() {
    // `xor eax, eax`
    let mut caller = Caller::new(&[0x31, 0xc0]);
    let boot = caller.kernel.function("rest_init", &PLAIN);
    caller.kernel.return_sites(&[caller.behind]);
    let (guest, probed) = caller.probed();
    guest.call(probed, STACK);
    assert_eq!(missed(&guest), [("return-site".to_owned(), 1)]);
    guest.reach(boot, STACK - 0x100);
    guest.call(probed, STACK);
    assert_eq!(missed(&guest), [("return-site".to_owned(), 1)]);
    guest.reach(guest.return_site, STACK + 8);
    assert_eq!(guest.accounted(), (0, 1, 0));
}
