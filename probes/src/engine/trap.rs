//! The trap handler: dispatches each trap to the engine.

use std::time::Duration;

use address::Gva;
use text::{GuestError, KvmVcpu, PlantByte, To, Vcpu as _, Written};
use vmm::{MSR_LSTAR, PausedGuard, StoppedVcpu, Trap, TrapError, TrapHandler, TrapOutcome};

use crate::engine::Engine;
use crate::engine::hits::outcome::HitOutcome;

impl Engine {
    fn handle(&self, stopped: &mut StoppedVcpu<'_>, trap: Trap) -> Result<TrapOutcome, GuestError> {
        let vcpu = &mut KvmVcpu(stopped);
        let hit = match (trap, self.running.planter.byte()) {
            (Trap::PortWrite { at }, PlantByte::Port)
            | (Trap::Breakpoint { at }, PlantByte::Int3) => self.hits.on_hit(vcpu, at)?,
            (Trap::HardwareBreakpoint { fired, written, at }, _) => {
                self.watches.on_register_writes(vcpu, written)?;
                self.hits.on_debug_hit(vcpu, fired, at)?
            }
            (Trap::GuestWrite { gpa, bytes, len }, _) => {
                let data = &bytes[..len.min(8)];
                if self.watches.guest_write(vcpu, gpa, data)? {
                    return Ok(TrapOutcome::Resume);
                }
                self.unprobed_exits.count_guest_write();
                if self.writes.is_detour_write(gpa) {
                    return Ok(TrapOutcome::Resume);
                }
                if self.writes.must_pause_for_write(gpa, data) {
                    return Ok(TrapOutcome::Exclusive);
                }
                return Ok(outcome_of(self.writes.on_guest_write(gpa, data)?));
            }
            (Trap::GuestRead { gpa, bytes, len }, _) => {
                let data = &bytes[..len.min(8)];
                self.protected_accesses.on_guest_read(vcpu, gpa, data)?
            }
            (Trap::ProtectedAccess { at }, _) => {
                self.protected_accesses.on_protected_access(vcpu, at)?
            }
            (Trap::EmulationFailure, _) => self.protected_accesses.on_emulation_failure(vcpu)?,
            (
                Trap::MsrWrite {
                    index: MSR_LSTAR, ..
                },
                _,
            ) if self.handover.awaits_kernel() => {
                return Ok(TrapOutcome::Exclusive);
            }
            (Trap::Breakpoint { .. }, PlantByte::Port) => {
                self.unprobed_exits.count_int3();
                HitOutcome::NotOurs
            }
            _ => HitOutcome::NotOurs,
        };
        Ok(match hit {
            HitOutcome::Resume => TrapOutcome::Resume,
            HitOutcome::NeedsPause => TrapOutcome::Exclusive,
            HitOutcome::NotOurs => TrapOutcome::Reinject,
        })
    }

    fn handle_exclusive(
        &self,
        stopped: &mut StoppedVcpu<'_>,
        paused: &PausedGuard<'_>,
        trap: Trap,
    ) -> Result<TrapOutcome, GuestError> {
        let vcpu = &mut KvmVcpu(stopped);
        let run = |vcpu: &mut KvmVcpu<'_, '_>, to: To<'_>| {
            let run = |vcpu: &mut KvmVcpu<'_, '_>, to: To<'_>| vcpu.run_alone(paused, self, to);
            self.watches.run_alone(vcpu, to, run)
        };
        if let Some(at) = self.protected_accesses.take_waiting(vcpu.index()) {
            let hit = self.paused_hits.on_paused_hit(vcpu, paused, at, run)?;
            if hit == HitOutcome::NeedsPause {
                let accesses = &self.protected_accesses;
                accesses.on_paused_hidden_plant(vcpu, paused, at, run)?;
            }
            return Ok(TrapOutcome::Resume);
        }
        match trap {
            Trap::PortWrite { at } | Trap::Breakpoint { at } => {
                self.paused_hits.on_paused_hit(vcpu, paused, at, run)?;
                Ok(TrapOutcome::Resume)
            }
            Trap::HardwareBreakpoint { at, .. } => {
                let hit = self
                    .paused_hits
                    .on_paused_debug_hit(vcpu, paused, at, run)?;
                if hit == HitOutcome::NeedsPause {
                    let accesses = &self.protected_accesses;
                    accesses.on_paused_hidden_plant(vcpu, paused, at, run)?;
                }
                Ok(TrapOutcome::Resume)
            }
            Trap::ProtectedAccess { .. } | Trap::EmulationFailure | Trap::GuestRead { .. } => {
                let at = match trap {
                    Trap::ProtectedAccess { at } => at,
                    _ => Gva(vcpu.regs()?.rip),
                };
                let accesses = &self.protected_accesses;
                let hit = accesses.on_paused_protected_access(vcpu, paused, at, run)?;
                Ok(match hit {
                    HitOutcome::Resume => TrapOutcome::Resume,
                    HitOutcome::NeedsPause | HitOutcome::NotOurs => TrapOutcome::Reinject,
                })
            }
            Trap::GuestWrite { gpa, bytes, len } => {
                let data = &bytes[..len.min(8)];
                Ok(outcome_of(
                    self.writes.on_paused_guest_write(paused, gpa, data)?,
                ))
            }
            Trap::MsrWrite {
                index: MSR_LSTAR,
                value,
            } => {
                self.handover.locate(vcpu, paused, Gva(value))?;
                Ok(TrapOutcome::Reinject)
            }
            _ => Ok(TrapOutcome::Reinject),
        }
    }
}

const fn outcome_of(written: Written) -> TrapOutcome {
    match written {
        Written::Merged => TrapOutcome::Resume,
        Written::NotOurs => TrapOutcome::Reinject,
    }
}

/// The name of the trap, for errors.
fn name(trap: Trap) -> &'static str {
    match trap {
        Trap::Breakpoint { .. } | Trap::PortWrite { .. } => "a probe hit",
        Trap::HardwareBreakpoint { .. } => "a debug register",
        Trap::GuestWrite { .. } => "a guest write to a probed page",
        Trap::GuestRead { .. } => "a guest read of a protected page",
        Trap::ProtectedAccess { .. } => "an access to a protected page",
        Trap::MsrWrite { .. } => "the write of an MSR",
        Trap::EmulationFailure => "an instruction that KVM cannot emulate",
    }
}

impl TrapHandler for Engine {
    fn on_trap(&self, vcpu: &mut StoppedVcpu<'_>, trap: Trap) -> Result<TrapOutcome, TrapError> {
        self.handle(vcpu, trap).map_err(|source| TrapError {
            what: name(trap),
            vcpu: vcpu.index(),
            rip: vcpu.registers().rip().unwrap_or_default(),
            source: source.into(),
        })
    }

    fn on_exclusive(
        &self,
        vcpu: &mut StoppedVcpu<'_>,
        paused: &PausedGuard<'_>,
        trap: Trap,
    ) -> Result<TrapOutcome, TrapError> {
        self.handle_exclusive(vcpu, paused, trap)
            .map_err(|source| TrapError {
                what: name(trap),
                vcpu: vcpu.index(),
                rip: vcpu.registers().rip().unwrap_or_default(),
                source: source.into(),
            })
    }

    fn has_room(&self) -> bool {
        self.reporter.sink.has_room()
    }

    fn await_room(&self, limit: Duration) {
        self.reporter.sink.await_room(limit);
    }
}
