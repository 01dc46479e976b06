//! Probes that a run has added and refuses to arm: those in a loaded module of another build, or without the function, and those in programs
//! whose pages cannot be protected.
//!
//! The run keeps such a probe: the module may be loaded again in another build. The request itself is answered, so the command looks at the
//! states of the probes.

use events::{ProbeState, ProbeStatus};
use thiserror::Error;

/// Probes that are added, and refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the run refuses to arm {refused} of {added} added probes: the first is `{first}`")]
pub(crate) struct RefusedProbes {
    refused: usize,
    added: usize,
    /// The first refused probe.
    first: String,
    /// The numbers of the refused probes.
    ids: Vec<u64>,
    /// Whether a probe in a module is refused.
    has_modules: bool,
}

impl RefusedProbes {
    /// The refused probes among those with the numbers `added`; `None` if no probe was refused.
    pub(super) fn among(added: &[u64], probes: &[ProbeStatus]) -> Option<Self> {
        let is_refused = |probe: &&ProbeStatus| {
            added.contains(&probe.id.0) && probe.summary.state == ProbeState::Refused
        };
        let refused: Vec<_> = probes.iter().filter(is_refused).collect();
        Some(Self {
            refused: refused.len(),
            added: added.len(),
            first: refused.first()?.summary.probe.clone(),
            ids: refused.iter().map(|probe| probe.id.0).collect(),
            has_modules: refused.iter().any(|probe| !probe.kind.is_in_programs()),
        })
    }

    /// What the user can do.
    pub(super) fn help(&self) -> String {
        const SHOWN: usize = 8;
        let ids = self.ids.iter().take(SHOWN).map(u64::to_string);
        let more = match self.ids.len() > SHOWN {
            true => " …",
            false => "",
        };
        let why = match self.has_modules {
            true => "probes in modules wait for another load of their modules",
            false => "the reasons are in the answer to `hyprobe probe list`",
        };
        format!(
            "{why}; `hyprobe probe rm {}{more}` removes the probes",
            ids.collect::<Vec<_>>().join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(id: u64, state: &str) -> ProbeStatus {
        of_kind("kprobe", id, state)
    }

    fn of_kind(kind: &str, id: u64, state: &str) -> ProbeStatus {
        let status = serde_json::json!({
            "id": id, "kind": kind, "enabled": true, "action": "trace", "hits": 0, "missed": {}, "exits": 0,
            "probe": format!("kprobe:m@00:f{id}"), "state": state,
        });
        serde_json::from_value(status).expect("a status")
    }

    #[test]
    fn refused_probes_of_the_request_are_an_error_and_those_of_others_are_not() {
        let probes = [probe(1, "refused"), probe(2, "armed"), probe(3, "refused")];
        assert_eq!(RefusedProbes::among(&[2], &probes), None);
        let refused = RefusedProbes::among(&[2, 3], &probes).expect("one");
        assert_eq!(
            refused.to_string(),
            "the run refuses to arm 1 of 2 added probes: the first is `kprobe:m@00:f3`"
        );
        assert!(
            refused.help().contains("hyprobe probe rm 3`"),
            "{}",
            refused.help()
        );
    }

    #[test]
    fn refused_probe_in_a_program_does_not_wait_for_a_module() {
        let probes = [of_kind("uprobe", 4, "refused"), probe(5, "refused")];
        let help = |added: &[u64]| RefusedProbes::among(added, &probes).expect("one").help();
        assert!(!help(&[4]).contains("module"), "{}", help(&[4]));
        assert!(help(&[4]).contains("hyprobe probe list"), "{}", help(&[4]));
        assert!(
            help(&[4, 5]).contains("probes in modules wait"),
            "{}",
            help(&[4, 5])
        );
    }
}
