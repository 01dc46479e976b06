//! Typed arguments, and what they point to.

use std::sync::Arc;

use address::Gva;
use events::{GuestMembers, GuestString, Hex, Hit};
use introspect::btf::synthetic::Blob;
use introspect::{Btf, Signature};
use manifest::{Action, ProbeConfig, ProbeSpec, ProbeVariable};

use super::{DATA, MEMORY_BYTES, PLAIN, Rig, UNTYPED, one, vcpu};
use crate::engine::engine_action::EngineAction;
use crate::engine::typed::{MAX_STRING_BYTES, recorded_params};
use crate::resolve::synthetic::SyntheticKernel;

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

/// Probes the function `f`, whose arguments are a struct and a string.
fn typed_rig(kernel: &SyntheticKernel) -> Rig {
    let rig = Rig::new(kernel, &["kprobe:f"]);
    let probe = rig.engine.probes.list.load().first().cloned();
    let probe = probe.expect("a probe");
    probe.set_signature(Some(Arc::new(signature(true))));
    rig
}

#[test]
fn hit_shows_the_members_of_a_small_struct_or_the_address_of_the_fault() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = typed_rig(&kernel);
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

/// What the hits of a probe show of strings at these addresses.
fn shown(rig: &Rig, at: Gva, strings: &[u64]) -> Vec<(GuestString, String)> {
    for string in strings {
        let mut vcpu = vcpu(at);
        vcpu.regs.rsi = *string;
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    }
    let text = |hit: Hit| {
        let param = hit.params.expect("typed").swap_remove(1);
        let shown = param.to_string();
        (param.typed.string.expect("a string"), shown)
    };
    rig.hits().into_iter().map(text).collect()
}

#[test]
fn string_longer_than_the_limit_is_cut() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = typed_rig(&kernel);
    let fitting = MAX_STRING_BYTES - 1;
    rig.memory.put(DATA, &[b'a'; MAX_STRING_BYTES + 44]);
    rig.memory.put(DATA + 0x1000, &vec![b'b'; fitting]);
    let [cut, whole] = &shown(&rig, at, &[DATA, DATA + 0x1000])[..] else {
        panic!("two hits")
    };
    let text = "a".repeat(MAX_STRING_BYTES);
    assert_eq!(cut.1, format!("text=\"{text}\"…"));
    assert_eq!(cut.0, GuestString::Cut(text));
    assert_eq!(whole.0, GuestString::Whole("b".repeat(fitting)));
}

#[test]
fn string_without_memory_shows_the_address_of_the_fault() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = typed_rig(&kernel);
    // The second string goes on where no memory is mapped.
    let end = MEMORY_BYTES as u64;
    rig.memory.put(end - 8, &[b'a'; 8]);
    let shown = shown(&rig, at, &[NOT_MAPPED, end - 8]);
    let expected = [
        (NOT_MAPPED, "text=<fault 0x7fff0000>"),
        (end, "text=<fault 0x200000>"),
    ];
    let expected = expected.map(|(at, text)| (GuestString::Fault(Hex(at)), text.to_owned()));
    assert_eq!(shown, expected);
}

/// A later probe of the function `f`.
fn configured(action: EngineAction) -> ProbeConfig<EngineAction> {
    let at: ProbeSpec = "kprobe:f".parse().expect("a probe");
    ProbeConfig::from(at).with_action(action)
}

#[test]
fn kernel_without_types_is_noted_once() {
    let (kernel, _) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:f", "kretprobe:f"]);
    let later = EngineAction::Configured(Action::default());
    let added = rig.engine.probes.resolve_all(&[configured(later)], None);
    assert!(added.is_ok(), "{added:?}");
    let notes = rig.all_notes();
    let [note] = &notes[..] else {
        panic!("{notes:?}")
    };
    let why = "the kernel has no BTF: built without CONFIG_DEBUG_INFO_BTF";
    assert_eq!(
        (&note.probe, &*note.text),
        (&None, &*format!("{UNTYPED}{why}"))
    );
}

#[test]
fn kernel_without_types_is_not_noted_for_counts() {
    let (kernel, _) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    let counted = configured(EngineAction::Configured(Action::Count));
    let added = rig.engine.probes.resolve_all(&[counted], None);
    assert_eq!(
        (added.expect("a probe").len(), rig.all_notes().len()),
        (1, 0)
    );
}

/// The signature of a later probe with the action and these variables, as `name type operand`, and whether its hits read memory.
fn of_variables(
    rig: &Rig,
    action: Action,
    variables: &[(&str, &str, &str)],
) -> (Option<Arc<Signature>>, bool) {
    let variable = |(name, declared, operand): &(&str, &str, &str)| ProbeVariable {
        name: (*name).to_owned(),
        declared: (*declared).to_owned(),
        operand: operand.parse().ok(),
    };
    let config = ProbeConfig {
        variables: variables.iter().map(variable).collect(),
        ..configured(EngineAction::Configured(action))
    };
    let added = rig.engine.probes.resolve_all(&[config], None);
    let probe = added.expect("a probe").remove(0);
    (probe.signature().clone(), probe.reads_memory())
}

#[test]
fn hit_shows_variables_in_registers_and_in_memory() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:f"]);
    let memory = format!("-4@{}(%rbx)", DATA - 5);
    let not_mapped = format!("8@{NOT_MAPPED}()");
    let variables = [
        ("small", "u8", "1@%r12b"),
        ("error", "int", "-4@$-22"),
        ("at", "struct pair *", "8@&16(%rbx)"),
        ("spilled", "long", memory.as_str()),
        ("far", "long", not_mapped.as_str()),
        ("gone", "struct file *", "-"),
        ("name", "const char *", "8@%r13"),
    ];
    let (signature, reads_memory) = of_variables(&rig, Action::Trace, &variables);
    assert!(reads_memory);
    let probe = rig.engine.probes.list.load().first().cloned();
    probe.expect("a probe").set_signature(signature);
    rig.memory.put(DATA, &(-7_i32).to_le_bytes());
    rig.memory.put(DATA + 8, b"abc\0");
    let mut vcpu = vcpu(at);
    vcpu.regs.rbx = 5;
    vcpu.regs.r12 = 0x1ff;
    vcpu.regs.r13 = DATA + 8;
    rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    let params = rig.hits().remove(0).params.expect("variables");
    let params: Vec<String> = params.iter().map(ToString::to_string).collect();
    assert_eq!(
        params,
        [
            "small=255",
            "error=-22",
            "at=0x15",
            "spilled=-7",
            "far=…",
            "gone=…",
            "name=\"abc\"",
        ]
    );
}

#[test]
fn variables_in_registers_need_no_exit_and_counts_show_none() {
    let (kernel, _) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    let in_registers = [("n", "long", "-8@%rbx"), ("p", "int *", "8@&8(%rsp)")];
    let (signature, reads_memory) = of_variables(&rig, Action::Trace, &in_registers);
    let signature = signature.expect("variables");
    assert!(!reads_memory);
    let regs = vmm::kvm_regs {
        rbx: 3,
        rsp: 0x1000,
        ..vmm::kvm_regs::default()
    };
    let recorded = recorded_params(&signature, &regs);
    let recorded: Vec<String> = recorded.iter().map(ToString::to_string).collect();
    assert_eq!(recorded, ["n=3", "p=0x1008"]);
    let in_memory = [("n", "long", "-8@8(%rsp)")];
    let (signature, reads_memory) = of_variables(&rig, Action::Count, &in_memory);
    assert!(signature.is_none() && !reads_memory);
}
