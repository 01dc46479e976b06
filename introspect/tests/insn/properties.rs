//! For any bytes and any state: no panic, and a refused instruction changes nothing.

use address::Gva;
use hyprobe_introspect::insn::{
    Class, Features, Outcome, Reason, boundaries, branch_into, check_boundary, classify, decode,
    emulate, has_indirect_jump,
};
use proptest::collection::vec;
use proptest::prelude::*;
use reference::{Machine, Region};

use super::{CODE, DATA, DATA_BYTES};

/// Bytes with prefixes and opcodes of real code at the start, more often than by chance.
fn code_bytes() -> impl Strategy<Value = Vec<u8>> {
    let prefixes = vec(
        prop::sample::select(vec![0x66, 0x67, 0x65, 0x64, 0x2e, 0xf0, 0xf2, 0xf3]),
        0..3,
    );
    let maps = prop::sample::select(vec![vec![], vec![0x48], vec![0x0f], vec![0x48, 0x0f]]);
    (prefixes, maps, vec(any::<u8>(), 0..20))
        .prop_map(|(prefixes, maps, rest)| [prefixes, maps, rest].concat())
}

/// Registers with small values, any values, or pointers into the data.
fn register() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..64_u64,
        any::<u64>(),
        (0..DATA_BYTES as u64).prop_map(|offset| DATA + offset),
        Just(0x7fff_ffff_fffc),
    ]
}

fn machine() -> impl Strategy<Value = Machine> {
    let registers = prop::array::uniform16(register());
    let rip = prop_oneof![
        Just(CODE),
        any::<u64>(),
        Just(u64::MAX - 3),
        Just(0x7fff_ffff_fffe)
    ];
    let flags = any::<u64>().prop_map(|flags| flags & 0x24_4ed5 | 0x202);
    (
        registers,
        rip,
        flags,
        any::<bool>(),
        0..4_u8,
        0..20_usize,
        vec(any::<u8>(), DATA_BYTES),
    )
        .prop_map(
            |(gprs, rip, rflags, writable, privilege_level, races, bytes)| Machine {
                gprs,
                rflags,
                privilege_level,
                gs: DATA,
                fs: 0x7fff_ffff_f000,
                features: if writable {
                    Features::ALL
                } else {
                    Features::default()
                },
                races,
                ..Machine::new(
                    rip,
                    vec![Region {
                        start: DATA,
                        bytes,
                        writable,
                    }],
                )
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn emulation_happens_entirely_or_not_at_all(before in machine(), bytes in code_bytes()) {
        let mut after = before.clone();
        match emulate(&mut after, &bytes) {
            Outcome::Done => {
                let decoded = decode(&bytes, Gva(before.rip)).expect("it was emulated");
                prop_assert_eq!(classify(&decoded), Class::Emulatable);
            }
            _ => {
                // Lost races are the other processors' doing.
                after.races = before.races;
                prop_assert_eq!(after, before);
            }
        }
    }

    #[test]
    fn emulatable_instructions_are_known_to_the_emulator(
        before in machine(),
        bytes in code_bytes(),
    ) {
        let mut after = before.clone();
        if let Ok(decoded) = decode(&bytes, Gva(before.rip)) {
            let outcome = emulate(&mut after, &bytes);
            match classify(&decoded) {
                Class::Emulatable => {
                    prop_assert_ne!(outcome, Outcome::Unsupported(Reason::Unmodelled));
                }
                Class::MustStep(reason) => {
                    prop_assert_eq!(outcome, Outcome::Unsupported(reason));
                }
            }
        }
    }

    #[test]
    fn sweeps_cover_all_bytes(
        bytes in vec(any::<u8>(), 0..64),
        start in any::<u64>(),
        offset in 0..80_u64,
    ) {
        let mut covered = 0;
        for found in boundaries(&bytes, Gva(start)) {
            covered += found.map_or(bytes.len() - covered, |decoded| decoded.len());
        }
        prop_assert_eq!(covered, bytes.len());
        if let Ok(decoded) = check_boundary(&bytes, Gva(start), offset) {
            prop_assert_eq!(decoded.at(), Gva(start).wrapping_add(offset));
        }
        let range = Gva(start)..Gva(start).wrapping_add(offset);
        let _ = branch_into(&bytes, Gva(start), &range);
        let _ = has_indirect_jump(&bytes, Gva(start), &[]);
    }
}
