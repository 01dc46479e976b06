//! Arming and disarming: from probes to plants, in one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use introspect::kaslr::kaslr_slide;
use introspect::{Gpa, Gva, walk};
use vmm::HardwareBreakpoints;

use super::Engine;
use crate::ProbeState;
use crate::guest::{GuestError, Paused, Vcpu};
use crate::hit::{DebugRegisters, DebugUse, Plant, Table, own_instruction};
use crate::registry::Probe;
use crate::resolve::{Place, Via, When};

/// Probes could not be armed; those that were armed before still are.
#[derive(Debug, thiserror::Error)]
#[error("cannot arm the probes")]
pub struct ArmError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Where the kernel runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    /// Run-time less link-time address.
    pub(crate) slide: i64,
    /// For a kernel that has moved: guest-physical less link-time address. One that has not is where its file says.
    physical: Option<u64>,
}

impl Located {
    fn running(self, linked: Gva) -> Gva {
        linked.wrapping_add(self.slide.cast_unsigned())
    }
}

/// Whether the kernel has patched itself for this machine.
#[derive(Debug, Default)]
pub(crate) struct BootPatched(AtomicBool);

impl BootPatched {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What a probe comes to when it is to be armed.
enum Arming {
    Plant {
        at: Gva,
        gpa: Gpa,
        len: usize,
    },
    Debug {
        at: Gva,
        gpa: Gpa,
    },
    /// Its time has not come.
    Later(&'static str),
    Refused(String),
}

impl Engine {
    /// The kernel has been loaded where it was linked: arms what can be armed before its first instruction.
    ///
    /// # Errors
    ///
    /// When a plant cannot be placed; no byte has been changed then.
    pub fn arm_loaded(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.located.get_or_init(|| Located {
            slide: 0,
            physical: None,
        });
        self.arm_pending(paused)
    }

    /// The kernel unpacks itself, and may move: until it says where it is, every probe is pending.
    pub fn await_kernel(&self) {
        for probe in self
            .probes
            .iter()
            .filter(|probe| probe.state() == ProbeState::Pending)
        {
            probe.set_state(
                ProbeState::Pending,
                Some("the kernel has not said where it is".to_owned()),
            );
        }
    }

    /// The guest has written MSR_LSTAR: the kernel is where that points to.
    pub(super) fn locate(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        lstar: Gva,
    ) -> Result<(), GuestError> {
        let slide = match kaslr_slide(lstar, self.kernel.symbols()) {
            Ok(slide) => slide,
            Err(error) => {
                self.note(None, format!("the kernel cannot be located yet: {error}"));
                return Ok(());
            }
        };
        let linked = Gva(lstar.0.wrapping_sub(slide.cast_unsigned()));
        let state = vcpu.system_state()?;
        match walk(&self.memory.as_ref(), &state.paging, lstar) {
            Ok(found) => {
                let physical = Some(found.gpa.0.wrapping_sub(linked.0));
                self.located.get_or_init(|| Located { slide, physical });
                self.note(
                    None,
                    format!("the kernel runs at {slide:+#x} from where it was linked"),
                );
                if let Err(error) = self.arm_pending(paused) {
                    self.refuse_pending(&error);
                }
            }
            Err(error) => self.note(None, format!("the kernel cannot be located yet: {error}")),
        }
        Ok(())
    }

    /// Arms every pending probe whose time has come.
    pub(super) fn arm_pending(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        let Some(located) = self.located.get().copied() else {
            return Ok(());
        };
        let table = self.table.load_full();
        let mut plants: BTreeMap<Gva, Arc<Plant>> = table
            .plants()
            .map(|plant| (plant.at, Arc::clone(plant)))
            .collect();
        let mut debug = table.debug.clone();
        let mut add = Vec::new();
        let mut armed = Vec::new();
        for probe in self.milestones.iter().chain(&self.probes) {
            let Some(place) = probe
                .place
                .as_ref()
                .filter(|_| probe.state() == ProbeState::Pending)
            else {
                continue;
            };
            let ip = located.running(place.ip);
            match self.arming(place, located) {
                Arming::Plant { at, gpa, len } => {
                    let plant = plants.entry(at).or_insert_with(|| {
                        add.push((gpa, len));
                        Arc::new(Plant::new(at, gpa))
                    });
                    *plant = Arc::new(with_probe(plant, probe, ip));
                    armed.push((probe, ip));
                }
                Arming::Debug { at, gpa } => {
                    let same = debug.iter_mut().flatten().find_map(|used| match used {
                        DebugUse::Only(plant) if plant.at == at => Some(plant),
                        _ => None,
                    });
                    if let Some(plant) = same {
                        *plant = Arc::new(with_probe(plant, probe, ip));
                        armed.push((probe, ip));
                    } else if let Some(free) = debug.iter_mut().find(|slot| slot.is_none()) {
                        let plant = with_probe(&Plant::new(at, gpa), probe, ip);
                        *free = Some(DebugUse::Only(Arc::new(plant)));
                        armed.push((probe, ip));
                    } else {
                        self.refuse(probe, "the kernel patches this instruction itself at run time, and all four debug registers are taken".to_owned());
                    }
                }
                Arming::Later(reason) => {
                    probe.set_state(ProbeState::Pending, Some(reason.to_owned()))
                }
                Arming::Refused(reason) => self.refuse(probe, reason),
            }
        }
        self.planter
            .change(paused, &add, &[])
            .map_err(|error| ArmError(error.into()))?;
        for used in debug.iter_mut().flatten() {
            if let DebugUse::StandIn(plant) = used
                && let Some(changed) = plants.get(&plant.at)
            {
                *plant = Arc::clone(changed);
            }
        }
        self.publish(paused, plants, debug);
        for (probe, ip) in armed {
            probe.set_armed(ip.into());
        }
        Ok(())
    }

    /// Where and how `place` is armed now.
    fn arming(&self, place: &Place, located: Located) -> Arming {
        if place.when == When::BootPatched && !self.boot_patched.get() {
            return Arming::Later("the kernel rewrites this instruction while it boots");
        }
        let linked = match place.via {
            Via::Plant { at, .. } => at,
            Via::DebugRegister => place.ip,
        };
        let gpa = match located.physical {
            Some(offset) => Some(Gpa(linked.0.wrapping_add(offset))),
            None => self.kernel.to_physical(linked),
        };
        let Some(gpa) = gpa else {
            return Arming::Refused(format!("{linked} is not in the kernel's image"));
        };
        let at = located.running(linked);
        match place.via {
            Via::DebugRegister if self.abilities.debug_execute => Arming::Debug { at, gpa },
            Via::DebugRegister => Arming::Refused(
                "the kernel patches this instruction itself at run time, and debug registers do not work on this host".to_owned(),
            ),
            Via::Plant { len, .. } if place.when == When::TextPresent => Arming::Plant { at, gpa, len },
            Via::Plant { .. } => match self.boundary_in_memory(linked, gpa) {
                Some(len) => Arming::Plant { at, gpa, len },
                None => Arming::Refused(
                    "the kernel has rewritten this code while it booted, and no instruction begins there now".to_owned(),
                ),
            },
        }
    }

    /// The length of the instruction at `linked`, if one begins there in the text as it is in memory by now.
    fn boundary_in_memory(&self, linked: Gva, gpa: Gpa) -> Option<usize> {
        let within = self.kernel.symbols().resolve(linked)?;
        let mut at = gpa.0.checked_sub(within.offset)?;
        while at < gpa.0 {
            at += own_instruction(&self.planter, Gpa(at), linked)?.len() as u64;
        }
        (at == gpa.0)
            .then(|| own_instruction(&self.planter, gpa, linked).map(|decoded| decoded.len()))?
    }

    /// Takes every plant away that `gone` says, and leaves its probes in `state`.
    ///
    /// # Errors
    ///
    /// When a byte cannot be put back; nothing has changed then.
    pub(super) fn disarm(
        &self,
        paused: &dyn Paused,
        state: ProbeState,
        gone: impl Fn(&Plant) -> bool,
    ) -> Result<(), ArmError> {
        let table = self.table.load_full();
        let (out, stay): (Vec<_>, Vec<_>) = table.plants().cloned().partition(|plant| gone(plant));
        let remove: Vec<Gpa> = out.iter().map(|plant| plant.gpa).collect();
        self.planter
            .change(paused, &[], &remove)
            .map_err(|error| ArmError(error.into()))?;
        let mut debug = table.debug.clone();
        let mut off = Vec::new();
        for slot in &mut debug {
            match slot.take_if(|used| gone(used.plant())) {
                Some(DebugUse::Only(plant)) => off.push(plant),
                // Its plant is among `out`.
                Some(DebugUse::StandIn(_)) | None => (),
            }
        }
        self.publish(
            paused,
            stay.into_iter().map(|plant| (plant.at, plant)).collect(),
            debug,
        );
        for (probe, _) in out.iter().chain(&off).flat_map(|plant| &plant.probes) {
            probe.set_state(state, None);
        }
        Ok(())
    }

    /// Takes every plant away: the guest's memory is its own again, byte for byte.
    ///
    /// # Errors
    ///
    /// When a byte cannot be put back; nothing has changed then.
    pub fn disarm_all(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.disarm(paused, ProbeState::Disabled, |_| true)
    }

    fn publish(
        &self,
        paused: &dyn Paused,
        plants: BTreeMap<Gva, Arc<Plant>>,
        debug: DebugRegisters,
    ) {
        for plant in plants.values() {
            plant.refresh(&self.planter);
        }
        self.replace_table(paused, plants.into_values(), debug);
    }

    /// Makes this what vCPUs look up, and the debug registers what it says.
    pub(super) fn replace_table(
        &self,
        paused: &dyn Paused,
        plants: impl Iterator<Item = Arc<Plant>>,
        debug: DebugRegisters,
    ) {
        let execute = debug
            .each_ref()
            .map(|used| used.as_ref().map(|used| used.plant().at.0));
        paused.set_breakpoints(HardwareBreakpoints { execute });
        self.table.store(Arc::new(Table::new(plants, debug)));
    }

    fn refuse(&self, probe: &Probe, reason: String) {
        self.note(Some(probe), format!("cannot be armed: {reason}"));
        probe.set_state(ProbeState::Refused, Some(reason));
    }

    /// Arming failed while the guest runs: it goes on without the probes that are not armed.
    pub(super) fn refuse_pending(&self, error: &ArmError) {
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            reason = format!("{reason}: {cause}");
            source = cause.source();
        }
        for probe in self
            .probes
            .iter()
            .filter(|probe| probe.state() == ProbeState::Pending)
        {
            self.refuse(probe, reason.clone());
        }
    }
}

fn with_probe(plant: &Plant, probe: &Arc<Probe>, ip: Gva) -> Plant {
    let mut probes = plant.probes.clone();
    probes.push((Arc::clone(probe), ip));
    plant.with_probes(probes)
}
