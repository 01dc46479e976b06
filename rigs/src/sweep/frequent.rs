//! Disables probes with many exits while the guest boots.
//!
//! While a kernel boots, it calls a few hundred functions tens of thousands of times. The exits of these calls take most of a
//! sweep's time. A probe with more than a thousand exits is therefore disabled. All probes are enabled again, with another thousand
//! exits each, when jumps have replaced the plants, and for good before the workload begins: the workload waits for a line of input.
//!
//! Disabling should not rescue a guest that hangs in its probe. A guest that executes one instruction again and again, or a few in turn,
//! does so with the same registers, or stays in one loop of a function. A probe is therefore disabled only if, within a second, the
//! function is entered on each stack on which the probe is hit again and again, and the last hits and entries on each stack all have
//! different registers ([`Registers`](super::registers)). If the probe only counts, second probes at the same place and at the function's
//! entry report the registers. If no probe can be at the entry, the registers at the place decide alone. A guest that hangs in calls with
//! new registers while it boots is rescued. The workload shows such a guest if it makes the calls, too.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use events::{ProbeId, ProbeState, ProbeStatus};
use manifest::{Action, ProbeConfig, ProbeSpec};
use probes::Engine;
use vmm::{Control, End};

use super::boot::Watch;
use super::mode::HitAction;
use errors::chain;

const LOOK: Duration = Duration::from_secs(1);
/// The maximum number of exits, in each part of the boot, of a probe that stays enabled.
const MAX_EXITS: u64 = 1_000;
/// The maximum number of probes changed in one pause.
const CHANGED_AT_ONCE: usize = 16;
/// The console's text at the end of each part of the boot: a line of the kernel behind `rest_init`, when jumps have replaced
/// plants, and the workload's first line.
const ENDS: [&str; 2] = ["devtmpfs: initialized", "workload: start"];

/// The thread that disables frequent probes.
#[derive(Debug)]
pub(super) struct FrequentProbes<'a> {
    pub(super) watch: &'a Watch,
    pub(super) control: &'a Control,
    pub(super) engine: &'a Engine,
    pub(super) action: HitAction,
    /// The guest's serial input.
    pub(super) input: &'a UnixStream,
}

/// The result of the thread.
#[derive(Debug, Default)]
pub(super) struct DisabledProbes {
    /// The probes that were disabled.
    pub(super) probes: BTreeSet<ProbeId>,
    /// The second probes that are still registered.
    pub(super) beside: BTreeSet<ProbeId>,
}

/// The source of the registers at a frequent probe's hits, and at the entries of its function.
#[derive(Debug)]
struct RegisterSource {
    /// The name of the probe whose events have the registers at the hits.
    place: Arc<str>,
    /// The name of the probe at the function's entry.
    entry: Arc<str>,
    /// The second probe at the entry.
    second_at_entry: Option<ProbeId>,
    /// The second probes, if the frequent probe only counts.
    besides: Vec<ProbeId>,
}

/// A part of the boot.
#[derive(Debug, Default)]
struct BootPart {
    /// The frequent probes that are enabled.
    frequent: BTreeMap<ProbeId, RegisterSource>,
    disabled: BTreeSet<ProbeId>,
}

impl BootPart {
    fn knows(&self, id: ProbeId) -> bool {
        let is_beside = |source: &RegisterSource| source.besides.contains(&id);
        self.disabled.contains(&id)
            || self.frequent.contains_key(&id)
            || self.frequent.values().any(is_beside)
    }
}

impl FrequentProbes<'_> {
    /// Disables frequent probes, and enables them again. Returns when the workload may begin, or the guest ends.
    pub(super) fn disable(&self) -> Result<DisabledProbes, String> {
        let mut disabled = DisabledProbes::default();
        match self.disable_in_parts(&mut disabled) {
            // A probe cannot be changed any more.
            Err(_) if self.watch.is_finished() || self.control.is_ending() => Ok(disabled),
            Err(error) => {
                self.control.end(End::Stopped);
                Err(error)
            }
            Ok(()) => Ok(disabled),
        }
    }

    fn disable_in_parts(&self, disabled: &mut DisabledProbes) -> Result<(), String> {
        for part in 0..ENDS.len() {
            let ends = &ENDS[part..];
            let mut part = BootPart::default();
            let result = self.disable_until(ends, &mut part);
            disabled.probes.extend(part.disabled);
            let besides = part.frequent.values().flat_map(|it| &it.besides);
            disabled.beside = besides.copied().collect();
            result?;
        }
        (&mut &*self.input).write_all(b"\n").map_err(chain)
    }

    /// Disables frequent probes until the console shows one of `ends`.
    fn disable_until(&self, ends: &[&str], part: &mut BootPart) -> Result<(), String> {
        let before: BTreeMap<ProbeId, u64> = self.engine.inventory().exits().into_iter().collect();
        while !self.watch.wait(LOOK) {
            if ends.iter().any(|end| self.watch.shows(end)) {
                self.unregister_besides(&mut part.frequent)?;
                return self.set_enabled(&part.disabled, true);
            }
            let changes = |source: &RegisterSource| {
                let entry = match source.second_at_entry {
                    Some(id) if self.is_refused(id) => &source.place,
                    _ => &source.entry,
                };
                let changes = self.watch.registers_change(&source.place, entry);
                for probe in [&source.place, &source.entry] {
                    self.watch.forget_registers(probe);
                }
                changes
            };
            let changing: BTreeSet<ProbeId> = part
                .frequent
                .iter()
                .filter(|(_, source)| changes(source))
                .map(|(id, _)| *id)
                .collect();
            let is_changing = |id: &ProbeId, _: &mut RegisterSource| changing.contains(id);
            let mut done = part.frequent.extract_if(.., is_changing).collect();
            self.unregister_besides(&mut done)?;
            self.set_enabled(&changing, false)?;
            part.disabled.extend(changing);
            for (id, exits) in self.engine.inventory().exits() {
                let exits = exits.saturating_sub(before.get(&id).copied().unwrap_or(0));
                if exits > MAX_EXITS
                    && !part.knows(id)
                    && let Some(status) = self.engine.inventory().statuses_of(id).pop()
                {
                    part.frequent.insert(id, self.source(&status)?);
                }
            }
        }
        Ok(())
    }

    /// Finds or registers the probes whose events have the registers for `status`'s probe.
    fn source(&self, status: &ProbeStatus) -> Result<RegisterSource, String> {
        let name = &status.summary.probe;
        if self.action == HitAction::Recorded {
            self.watch.forget_registers(name);
            return Ok(RegisterSource {
                place: Arc::from(&**name),
                entry: Arc::from(&**name),
                second_at_entry: None,
                besides: Vec::new(),
            });
        }
        let place = name.replacen("kretprobe:", "kprobe:", 1);
        let entry = entry_of(&place).to_owned();
        let mut names = vec![place.clone()];
        if entry != place {
            names.push(entry.clone());
        }
        let mut probes = Vec::new();
        for name in &names {
            // A former part of the boot may have had a second probe of this name.
            self.watch.forget_registers(name);
            probes.push(ProbeConfig {
                action: Action::Trace,
                ..ProbeConfig::from(name.parse::<ProbeSpec>().map_err(chain)?)
            });
        }
        let prepared = self.engine.prepare(&probes).map_err(chain)?;
        let paused = self.control.pause_all();
        let besides = self
            .engine
            .register_prepared(&paused, prepared)
            .map_err(chain)?;
        drop(paused);
        let second_at_entry = besides.iter().copied().nth(1);
        Ok(RegisterSource {
            place: place.into(),
            entry: entry.into(),
            second_at_entry,
            besides,
        })
    }

    /// Whether no probe can be where `id`'s should be: the engine may know only when the kernel has patched itself.
    fn is_refused(&self, id: ProbeId) -> bool {
        let mut statuses = self.engine.inventory().statuses_of(id).into_iter();
        statuses.any(|status| status.summary.state == ProbeState::Refused)
    }

    fn unregister_besides(&self, of: &mut BTreeMap<ProbeId, RegisterSource>) -> Result<(), String> {
        let besides: Vec<ProbeId> = of
            .values()
            .flat_map(|source| source.besides.clone())
            .collect();
        if !besides.is_empty() {
            let paused = self.control.pause_all();
            self.engine.unregister(&paused, &besides).map_err(chain)?;
            of.values_mut().for_each(|source| source.besides.clear());
        }
        Ok(())
    }

    fn set_enabled(&self, probes: &BTreeSet<ProbeId>, enabled: bool) -> Result<(), String> {
        let probes: Vec<ProbeId> = probes.iter().copied().collect();
        for some in probes.chunks(CHANGED_AT_ONCE) {
            let paused = self.control.pause_all();
            for id in some {
                self.engine
                    .set_enabled(&paused, *id, enabled)
                    .map_err(chain)?;
            }
        }
        Ok(())
    }
}

/// The probe at the entry of the function of `probe`. A probe at an address stays there.
fn entry_of(probe: &str) -> &str {
    probe
        .split_once('+')
        .map_or(probe, |(function, _)| function)
}

#[cfg(test)]
mod tests {
    use super::entry_of;

    #[test]
    fn entry_is_that_of_the_function_or_of_an_address_the_address() {
        for probe in ["kprobe:vfs_read", "kprobe:vfs_read+0x1a"] {
            assert_eq!(entry_of(probe), "kprobe:vfs_read");
        }
        let address = "kprobe:0xffffffff81000010";
        assert_eq!(entry_of(address), address);
    }
}
