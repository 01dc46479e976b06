//! The checks of this host's KVM.

use vmm::{
    BreakpointInjection, Capabilities, HostFacts, Int1Delivery, Int3Delivery, OpenError,
    PortDelivery,
};

use super::Verdict::{No, Warn};
use super::{Check, Group, Verdict};
use crate::nested::Unusable;

/// Checks that `/dev/kvm` exists, and that the user may open the device.
pub(super) fn device<T>(opened: &Result<T, OpenError>) -> Vec<Check> {
    let device = Check::new(Group::Device, "device", "/dev/kvm");
    let permission = Check::new(Group::Device, "permission", "permission");
    let device = match opened {
        Err(error @ OpenError::Missing) => {
            return vec![device.found("missing").verdict(No, error.to_string())];
        }
        Err(error @ OpenError::Permission) => {
            return vec![
                device.found("there"),
                permission.found("denied").verdict(No, error.to_string()),
            ];
        }
        Err(error) => device
            .found("not usable")
            .verdict(No, crate::failure::in_one_line(error)),
        Ok(_) => device.found("there"),
    };
    vec![device, permission.found("read and write")]
}

/// The capabilities that KVM reports.
pub(super) fn capabilities(host: &Capabilities) -> Vec<Check> {
    let check = |id, name, has: bool, without: &str| {
        let check = Check::new(Group::Capabilities, id, name);
        if has {
            check.found("yes")
        } else {
            check.found("no").verdict(Warn, without)
        }
    };
    let count = |id, name, n: usize| Check::new(Group::Capabilities, id, name).found(n.to_string());
    vec![
        check(
            "sync-regs",
            "registers with the exit",
            host.sync_regs,
            "a system call more for each hit",
        ),
        check(
            "exit-on-emulation-failure",
            "exit on emulation failure",
            host.exit_on_emulation_failure,
            "instructions that KVM cannot emulate become exceptions in the guest",
        ),
        check(
            "msr-filter",
            "MSR filter",
            host.msr_filter,
            "a kernel that unpacks itself (--boot bzimage) cannot be found",
        ),
        count("max-vcpus", "vCPUs at most", host.max_vcpus),
        count("max-slots", "memory slots at most", host.max_slots),
    ]
}

/// The results of KVM's self-test.
pub(super) fn self_test(facts: &Result<HostFacts, Unusable>) -> Vec<Check> {
    match facts {
        Ok(facts) => facts_checks(facts),
        Err(error) => vec![
            Check::new(Group::SelfTest, "self-test", "self-test")
                .found("failed")
                .verdict(No, crate::failure::in_one_line(error)),
        ],
    }
}

fn facts_checks(facts: &HostFacts) -> Vec<Check> {
    let test = |id, name| Check::new(Group::SelfTest, id, name);
    let works = |id, name, works: bool, otherwise: Verdict, means: &str| {
        let check = test(id, name);
        if works {
            check.found("works")
        } else {
            check.found("does not work").verdict(otherwise, means)
        }
    };
    // Either of the two traps is enough.
    let (int3, port) = (facts.int3.is_usable(), facts.port.is_usable());
    let planted = |check: Check, own: bool, other: bool, instead: &str| match (own, other) {
        (true, _) => check,
        (false, true) => check.verdict(Warn, instead),
        (false, false) => check.verdict(No, "nothing can be planted"),
    };
    let int3_check = test("int3", "int3 in ring 0").found(int3_found(facts.int3));
    let port_check = test("port", "port write in ring 0").found(match facts.port {
        PortDelivery::AtInstruction => "exits, RIP at it",
        PortDelivery::AfterInstruction => "exits, RIP behind it",
        PortDelivery::Broken => "does not always exit",
    });
    let mut checks = vec![
        planted(int3_check, int3, port, "a port write is planted instead"),
        planted(port_check, port, int3, "int3 is planted instead"),
        injection(facts.breakpoint_injection),
    ];
    let int3_user = test("int3-user", "int3 in ring 3").found(int3_found(facts.int3_user));
    checks.push(match facts.int3_user.is_usable() {
        true => int3_user,
        false => int3_user.verdict(Warn, "programs cannot be probed with it"),
    });
    checks.extend([
        works(
            "int3-to-guest",
            "int3 left to the guest",
            facts.int3_reaches_guest(),
            Warn,
            "every hit exits where a jump has no room, at returns above all",
        ),
        works(
            "read-only-slots",
            "read-only memory",
            facts.read_only_slots,
            No,
            "plants would be lost when the guest patches its text",
        ),
        works(
            "table-writes",
            "page tables of the guest",
            facts.table_writes_seen,
            No,
            "KVM keeps shadow page tables: load kvm_intel with ept=1, or kvm_amd with npt=1",
        ),
        works(
            "msr-exits",
            "MSR write exits",
            facts.msr_exits,
            Warn,
            "a kernel that unpacks itself (--boot bzimage) cannot be found",
        ),
        works(
            "holds-interrupts",
            "interrupts held back",
            facts.holds_interrupts,
            Warn,
            "an interrupt may come before an instruction that is executed in place, which then hits twice",
        ),
        works(
            "debug-execute",
            "debug registers: execution",
            facts.debug_execute,
            Warn,
            "no probes without a trace in memory",
        ),
        works(
            "int1",
            "debug exceptions of programs",
            facts.int1 != Int1Delivery::Broken,
            Warn,
            "a program that executes int1 goes wrong while a debug register is in use",
        ),
        works(
            "debug-data",
            "debug registers: data",
            facts.debug_data,
            Warn,
            "no watchpoints by debug registers",
        ),
    ]);
    checks.push(speed(facts));
    checks.push(test("exit-time", "one exit").found(format!("{} ns", facts.exit_ns)));
    checks
}

const fn int3_found(delivery: Int3Delivery) -> &'static str {
    match delivery {
        Int3Delivery::DebugExit => "exits",
        Int3Delivery::EmulationFailure => "exits as an emulation failure",
        Int3Delivery::ToGuest => "goes to the guest",
        Int3Delivery::Broken => "breaks the guest",
    }
}

fn injection(injection: BreakpointInjection) -> Check {
    let check = Check::new(
        Group::SelfTest,
        "breakpoint-injection",
        "breakpoints given to the guest",
    );
    match injection {
        BreakpointInjection::AtInstruction => check.found("RIP at the int3"),
        BreakpointInjection::AfterInstruction => check.found("RIP behind the int3"),
        BreakpointInjection::Broken => check
            .found("does not work")
            .verdict(Warn, "the guest misses its own breakpoints"),
    }
}

fn speed(facts: &HostFacts) -> Check {
    let check =
        Check::new(Group::SelfTest, "speed", "speed of ring 0").found(facts.speed.in_words());
    if facts.runs_kernels() {
        check
    } else {
        check.verdict(
            Warn,
            "no hardware virtualisation: a stock kernel would take minutes to boot",
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vmm::{InterruptedInt3, Speed};

    use super::*;
    use crate::commands::doctor::Verdict::Ok as Fine;

    const GOOD: HostFacts = HostFacts {
        int3: Int3Delivery::DebugExit,
        int3_user: Int3Delivery::DebugExit,
        breakpoint_injection: BreakpointInjection::AtInstruction,
        port: PortDelivery::AtInstruction,
        interrupted_int3: InterruptedInt3::Cancelled,
        int1: Int1Delivery::AfterInstruction,
        holds_interrupts: true,
        debug_execute: true,
        breakpoint_before_fetch: true,
        debug_data: true,
        read_only_slots: true,
        table_writes_seen: true,
        msr_exits: true,
        speed: Speed {
            instructions: 1_000_000,
            took: Duration::from_millis(1),
        },
        exit_ns: 1000,
    };

    fn verdict(facts: HostFacts, id: &str) -> Verdict {
        let checks = self_test(&Ok(facts));
        checks
            .iter()
            .find(|check| check.id == id)
            .map(|check| check.verdict)
            .expect(id)
    }

    #[test]
    fn a_good_host_has_nothing_to_explain() {
        for check in self_test(&Ok(GOOD)) {
            assert_eq!(
                (check.verdict, check.means.as_str()),
                (Fine, ""),
                "{}",
                check.id
            );
        }
    }

    #[test]
    fn one_trap_is_enough() {
        let no_int3 = HostFacts {
            int3: Int3Delivery::ToGuest,
            ..GOOD
        };
        assert_eq!(
            (verdict(no_int3, "int3"), verdict(no_int3, "port")),
            (Warn, Fine)
        );
        let nothing = HostFacts {
            port: PortDelivery::Broken,
            ..no_int3
        };
        assert_eq!(
            (verdict(nothing, "int3"), verdict(nothing, "port")),
            (No, No)
        );
    }

    #[test]
    fn each_failed_check_has_a_consequence() {
        let bad = HostFacts {
            int3: Int3Delivery::Broken,
            int3_user: Int3Delivery::ToGuest,
            breakpoint_injection: BreakpointInjection::Broken,
            port: PortDelivery::Broken,
            interrupted_int3: InterruptedInt3::Kept,
            int1: Int1Delivery::Broken,
            holds_interrupts: false,
            debug_execute: false,
            breakpoint_before_fetch: false,
            debug_data: false,
            read_only_slots: false,
            table_writes_seen: false,
            msr_exits: false,
            speed: Speed {
                instructions: 1000,
                took: Duration::from_millis(1),
            },
            exit_ns: 1000,
        };
        for check in self_test(&Ok(bad))
            .iter()
            .filter(|check| check.id != "exit-time")
        {
            assert!(
                check.verdict != Fine && !check.means.is_empty(),
                "{}",
                check.id
            );
        }
    }

    #[test]
    fn a_missing_device_and_a_closed_one_differ() {
        let ids = |error| -> Vec<_> {
            device::<()>(&Err(error))
                .iter()
                .map(|check| (check.id, check.verdict))
                .collect()
        };
        assert_eq!(ids(OpenError::Missing), [("device", No)]);
        assert_eq!(
            ids(OpenError::Permission),
            [("device", Fine), ("permission", No)]
        );
    }
}
