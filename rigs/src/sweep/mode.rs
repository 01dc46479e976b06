//! The modes of a sweep.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use text::PlantByte;
use vmm::boot::BootMethod;

/// The location of the probe in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// At the function's entry.
    Entry,
    /// At the entry and the returns: a return probe.
    Return,
    /// At an instruction of the function, chosen by the seed.
    Boundary,
}

/// The action at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HitAction {
    Counted,
    /// Each hit is an event.
    Recorded,
}

/// Whether detours and exit-free int3s replace exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Optimisation {
    On,
    Off,
}

/// The lifetime of the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// From the guest's first instruction to its end.
    WholeBoot,
    /// Added while the guest works, all in one pause.
    AddedLater,
    /// From the first instruction; removed while the guest works, and added again.
    Rearmed,
}

/// All choices of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Configuration {
    pub(super) site: Site,
    pub(super) action: HitAction,
    pub(super) optimisation: Optimisation,
    /// `None` is the byte that the self-test chose.
    pub(super) plant: Option<PlantByte>,
    pub(super) lifetime: Lifetime,
    pub(super) cpus: u8,
    pub(super) method: BootMethod,
}

/// Entries, counted, from the first instruction, with two vCPUs and the defaults of `hyprobe run` otherwise.
const ENTRY_COUNTED: Configuration = Configuration {
    site: Site::Entry,
    action: HitAction::Counted,
    optimisation: Optimisation::On,
    plant: None,
    lifetime: Lifetime::WholeBoot,
    cpus: 2,
    method: BootMethod::Direct,
};

/// A named way of probing every function. Together, the modes have each value of each choice at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
pub enum Mode {
    /// Entries, counted.
    EntryCounted,
    /// Entries, counted, without optimisation: each hit exits.
    EntryCountedExits,
    /// Entries, each hit an event.
    EntryRecorded,
    /// Entries, each hit an event, without optimisation.
    EntryRecordedExits,
    /// Return probes, counted.
    Return,
    /// Return probes, counted, without optimisation.
    ReturnExits,
    /// Return probes, each return an event.
    ReturnRecorded,
    /// One instruction of each function, chosen by the seed, counted.
    Boundary,
    /// The same without optimisation.
    BoundaryExits,
    /// Entries, counted, with one vCPU.
    OneVcpu,
    /// Entries, counted; the guest unpacks itself and moves.
    Bzimage,
    /// Entries, counted, added after boot.
    Live,
    /// Return probes, each return an event, added after boot.
    LiveReturn,
    /// Entries, counted, removed while the guest works and added again.
    Rearmed,
    /// One instruction of each function, removed and added again, without optimisation.
    RearmedBoundary,
    /// Entries, counted, with int3 as the planted byte.
    Int3,
    /// Return probes, without optimisation, with int3 as the planted byte and one vCPU.
    Int3Return,
}

impl Mode {
    /// Each, in the order of the page.
    pub const ALL: &[Self] = &[
        Self::EntryCounted,
        Self::EntryCountedExits,
        Self::EntryRecorded,
        Self::EntryRecordedExits,
        Self::Return,
        Self::ReturnExits,
        Self::ReturnRecorded,
        Self::Boundary,
        Self::BoundaryExits,
        Self::OneVcpu,
        Self::Bzimage,
        Self::Live,
        Self::LiveReturn,
        Self::Rearmed,
        Self::RearmedBoundary,
        Self::Int3,
        Self::Int3Return,
    ];

    /// The mode's name on the command line and in the results.
    #[must_use]
    pub fn word(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// A line for the page.
    #[must_use]
    pub fn help(self) -> String {
        self.to_possible_value()
            .and_then(|value| value.get_help().map(ToString::to_string))
            .unwrap_or_default()
    }

    /// The default number of vCPUs.
    #[must_use]
    pub fn cpus(self) -> u8 {
        self.configuration().cpus
    }

    pub(super) fn configuration(self) -> Configuration {
        let exits = Configuration {
            optimisation: Optimisation::Off,
            ..ENTRY_COUNTED
        };
        let boundary = Configuration {
            site: Site::Boundary,
            ..ENTRY_COUNTED
        };
        let returns = Configuration {
            site: Site::Return,
            ..ENTRY_COUNTED
        };
        match self {
            Self::EntryCounted => ENTRY_COUNTED,
            Self::EntryCountedExits => exits,
            Self::EntryRecorded => Configuration {
                action: HitAction::Recorded,
                ..ENTRY_COUNTED
            },
            Self::EntryRecordedExits => Configuration {
                action: HitAction::Recorded,
                ..exits
            },
            Self::Return => returns,
            Self::ReturnExits => Configuration {
                optimisation: Optimisation::Off,
                ..returns
            },
            Self::ReturnRecorded => Configuration {
                action: HitAction::Recorded,
                ..returns
            },
            Self::Boundary => boundary,
            Self::BoundaryExits => Configuration {
                optimisation: Optimisation::Off,
                ..boundary
            },
            Self::OneVcpu => Configuration {
                cpus: 1,
                ..ENTRY_COUNTED
            },
            Self::Bzimage => Configuration {
                method: BootMethod::BzImage,
                ..ENTRY_COUNTED
            },
            Self::Live => Configuration {
                lifetime: Lifetime::AddedLater,
                ..ENTRY_COUNTED
            },
            Self::LiveReturn => Configuration {
                action: HitAction::Recorded,
                lifetime: Lifetime::AddedLater,
                ..returns
            },
            Self::Rearmed => Configuration {
                lifetime: Lifetime::Rearmed,
                ..ENTRY_COUNTED
            },
            Self::RearmedBoundary => Configuration {
                lifetime: Lifetime::Rearmed,
                optimisation: Optimisation::Off,
                ..boundary
            },
            Self::Int3 => Configuration {
                plant: Some(PlantByte::Int3),
                ..ENTRY_COUNTED
            },
            Self::Int3Return => Configuration {
                plant: Some(PlantByte::Int3),
                optimisation: Optimisation::Off,
                cpus: 1,
                ..returns
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_modes_together_have_each_value() {
        let all: Vec<Configuration> = Mode::ALL.iter().map(|mode| mode.configuration()).collect();
        let values = |value: fn(&Configuration) -> String| -> BTreeSet<String> {
            all.iter().map(value).collect()
        };
        assert_eq!(values(|mode| format!("{:?}", mode.site)).len(), 3);
        assert_eq!(values(|mode| format!("{:?}", mode.action)).len(), 2);
        assert_eq!(values(|mode| format!("{:?}", mode.optimisation)).len(), 2);
        assert_eq!(values(|mode| format!("{:?}", mode.plant)).len(), 2);
        assert_eq!(values(|mode| format!("{:?}", mode.lifetime)).len(), 3);
        assert_eq!(values(|mode| format!("{:?}", mode.cpus)).len(), 2);
        assert_eq!(values(|mode| format!("{:?}", mode.method)).len(), 2);
        assert_eq!(Mode::ALL, Mode::value_variants());
    }

    #[test]
    fn no_two_modes_are_alike() {
        for (index, mode) in Mode::ALL.iter().enumerate() {
            for other in &Mode::ALL[index + 1..] {
                assert_ne!(
                    mode.configuration(),
                    other.configuration(),
                    "{mode:?} {other:?}"
                );
            }
            let json = serde_json::to_value(mode).expect("json");
            assert_eq!(json, mode.word());
        }
    }
}
