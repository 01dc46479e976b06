//! What is run.

use probes::PlantByte;

/// What is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    /// Nothing: how the guest fares without probes.
    Nothing,
    /// The entry of every function of `functions.S`.
    Entries,
    /// Every instruction of every function of `functions.S`.
    Instructions,
    /// These functions alone.
    Other(&'static str),
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct CaseSpec {
    pub(super) name: &'static str,
    /// For the test guest.
    pub(super) scenarios: &'static str,
    pub(super) probed: Probed,
    pub(super) cpus: &'static [u8],
    /// Hits beyond the guest's count: an instruction that faults is executed again, and what is behind the guest's own
    /// `int3` is not counted by it.
    pub(super) extra: &'static [(&'static str, u64)],
}

impl CaseSpec {
    /// The bytes that are planted in turn.
    pub(super) const fn plants(&self) -> &'static [Option<PlantByte>] {
        match self.probed {
            Probed::Nothing => &[None],
            _ => &[Some(PlantByte::Port), Some(PlantByte::Int3)],
        }
    }

    /// The same without probes.
    pub(super) const fn unprobed(self) -> Self {
        Self {
            probed: Probed::Nothing,
            ..self
        }
    }
}

const fn entries(
    name: &'static str,
    scenarios: &'static str,
    cpus: &'static [u8],
    extra: &'static [(&'static str, u64)],
) -> CaseSpec {
    CaseSpec {
        name,
        scenarios,
        probed: Probed::Entries,
        cpus,
        extra,
    }
}

/// What is executed in place and raises an exception, or leads to another function.
const fn in_place(name: &'static str, scenarios: &'static str) -> CaseSpec {
    CaseSpec {
        name,
        scenarios,
        probed: Probed::Other("rs_*"),
        cpus: &[1],
        extra: &[],
    }
}

/// In the order in which they are run: the simplest first.
pub(super) const CASES: [CaseSpec; 24] = [
    CaseSpec {
        name: "unprobed",
        scenarios: "checksum,calls=5,recurse=9,flags,selfpatch,int3,fault=3,ring3,msr,smp=20,checksum",
        probed: Probed::Nothing,
        cpus: &[2],
        extra: &[],
    },
    entries("recurse", "recurse=50", &[1], &[]),
    entries("calls", "calls=20", &[1, 2], &[]),
    entries("flags", "flags=16", &[1], &[]),
    entries("detour", "calls=10,detour=0,calls=10", &[1], &[]),
    entries("vector", "vector=20,calls=2", &[1], &[]),
    entries("selfpatch", "selfpatch=3", &[1], &[]),
    entries("int3", "int3=5", &[1], &[("fn_int3_next", 5)]),
    entries("fault", "fault=7", &[1], &[("fn_fault", 7)]),
    entries("ring3", "ring3=4,calls=2", &[1], &[]),
    entries("syscall", "syscall=6,calls=2", &[1], &[]),
    entries("msr", "msr,calls=1", &[1], &[]),
    entries("smp", "smp=60", &[2], &[]),
    entries(
        "all",
        "calls=5,recurse=9,flags,selfpatch,int3,fault=3,ring3,msr,smp=20,calls=5",
        &[2],
        &[("fn_fault", 3), ("fn_int3_next", 3)],
    ),
    CaseSpec {
        name: "own-int3",
        scenarios: "int3=5,ring3=3",
        probed: Probed::Other("fn_nop"),
        cpus: &[1],
        extra: &[],
    },
    in_place("raise", "raise=5"),
    in_place("intn", "intn=5"),
    in_place("ud", "ud=5"),
    in_place("syscall0", "syscall0=5"),
    CaseSpec {
        name: "instructions",
        scenarios: "calls=10,recurse=20,flags,int3=4",
        probed: Probed::Instructions,
        cpus: &[1],
        extra: &[("fn_int3_next", 4)],
    },
    CaseSpec {
        name: "instructions-wait",
        scenarios: "wait=1000",
        probed: Probed::Instructions,
        cpus: &[1],
        extra: &[],
    },
    CaseSpec {
        name: "instructions-nmi",
        scenarios: "nmi=20",
        probed: Probed::Instructions,
        cpus: &[1],
        extra: &[],
    },
    CaseSpec {
        name: "instructions-ring3",
        scenarios: "syscall=6,sysret=6",
        probed: Probed::Instructions,
        cpus: &[1],
        extra: &[],
    },
    CaseSpec {
        name: "instructions-smp",
        scenarios: "smp=10",
        probed: Probed::Instructions,
        cpus: &[2],
        extra: &[],
    },
];
