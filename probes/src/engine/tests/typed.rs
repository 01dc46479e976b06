//! Typed arguments, and what they point to.

use std::sync::Arc;

use events::{GuestMembers, GuestString, Hex};
use introspect::btf::synthetic::Blob;
use introspect::{Btf, Signature};

use super::{DATA, PLAIN, Rig, one, vcpu};

/// Not mapped.
const NOT_MAPPED: u64 = 0x7fff_0000;

/// The types of `void f(struct named *)`, a struct with a number and a string. With `exits`, a string follows, for which each hit exits.
fn signature(exits: bool) -> Signature {
    let mut blob = Blob::new();
    let int = blob.int("int", 4);
    let char = blob.int("char", 1);
    let constant = blob.constant(char);
    let text = blob.pointer(constant);
    let named = blob.structure("named", 16, &[("len", int, 4), ("text", text, 8)]);
    let pointer = blob.pointer(named);
    let params = [("named", pointer), ("text", text)];
    blob.function("f", 0, if exits { &params } else { &params[..1] });
    let types = Btf::parse(blob.finish()).expect("types");
    Signature::of_function(&types, "f").expect("typed")
}

#[test]
fn hit_shows_the_members_of_a_small_struct_or_the_address_of_the_fault() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:f"]);
    let probe = rig.engine.probes.list.load().first().cloned();
    probe
        .expect("a probe")
        .set_signature(Some(Arc::new(signature(true))));
    rig.memory.put(DATA, &[0xff; 4]);
    rig.memory.put(DATA + 4, &77_u32.to_le_bytes());
    rig.memory.put(DATA + 8, &(DATA + 0x20).to_le_bytes());
    rig.memory.put(DATA + 0x20, b"abc\0");
    // An error in place of a pointer, and no pointer at all.
    for argument in [DATA, NOT_MAPPED, 0, (-2_i64).cast_unsigned()] {
        let mut vcpu = vcpu(at);
        vcpu.regs.rdi = argument;
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    }
    let hits = rig.hits();
    let shown: Vec<_> = hits
        .iter()
        .map(|hit| hit.params.as_ref().expect("typed")[0].typed.members.clone())
        .collect();
    let Some(GuestMembers::Whole(members)) = &shown[0] else {
        panic!("{shown:?}")
    };
    let text = GuestString::Whole("abc".to_owned());
    assert_eq!(members[1].typed.string.as_ref(), Some(&text));
    let fault = Some(GuestMembers::Fault(Hex(NOT_MAPPED)));
    assert_eq!(shown[1..], [fault, None, None]);
    let told: Vec<String> = hits
        .iter()
        .map(|hit| hit.params.as_ref().expect("typed")[0].to_string())
        .collect();
    let expected = [
        "named={len=77, text=\"abc\"}",
        "named=<fault 0x7fff0000>",
        "named=0x0",
        "named=0xfffffffffffffffe",
    ];
    assert_eq!(told, expected);
}

#[test]
fn members_alone_are_not_shown_since_a_record_has_none() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:f"]);
    let probe = rig.engine.probes.list.load().first().cloned();
    let probe = probe.expect("a probe");
    probe.set_signature(Some(Arc::new(signature(false))));
    assert!(!probe.reads_memory());
    let mut vcpu = vcpu(at);
    vcpu.regs.rdi = DATA;
    rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    let hit = rig.hits().remove(0);
    let params = hit.params.expect("typed");
    assert_eq!(params[0].typed.members, None, "{params:?}");
}
