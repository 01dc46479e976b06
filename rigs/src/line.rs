//! What `contract` prints: one JSON object a line.

use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::sweep::Step;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Line {
    /// On what the run is made: the first line, by `rig`.
    Run {
        /// On which kind of KVM.
        backend: Backend,
        /// When, UTC.
        date: String,
        /// Processor, number of CPUs, and Linux, of the machine that all this runs on.
        host: String,
        /// What is between the two.
        versions: Vec<String>,
    },
    /// What the self-test found: the first line of `contract`.
    Host {
        /// On which kind of KVM.
        backend: Backend,
        /// [`vmm::HostFacts`], a name and a value each.
        facts: String,
        /// How long the self-test took, by the clock of the Linux around it.
        took_ms: u64,
    },
    /// A case has ended.
    Case(Case),
    /// A loop of calls was timed.
    Timing(Timing),
    /// Probes were armed all at once.
    Arming(Arming),
    /// A stock guest was started and powered off at once, time after time.
    Boot(Boot),
    /// A sweep goes on.
    Sweep(Step),
    /// All cases have ended: the last line.
    End {
        /// On which kind of KVM.
        backend: Backend,
        /// Number of cases.
        cases: usize,
        /// Number of those that failed.
        failed: usize,
    },
}

/// A kind of KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// kvm_intel with EPT, in Bochs.
    Intel,
    /// kvm_amd with NPT, in Bochs.
    Amd,
    /// kvm_amd with NPT, in QEMU's TCG.
    Nested,
    /// This machine's own.
    Local,
}

impl Backend {
    /// Each, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Intel, Self::Amd, Self::Nested, Self::Local];

    /// What is written on the command line and in the lines.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Intel => "intel",
            Self::Amd => "amd",
            Self::Nested => "nested",
            Self::Local => "local",
        }
    }

    /// The backend that is written so.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.word() == word)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// On which kind of KVM.
    pub backend: Backend,
    /// `scenario/plant/cpus`.
    pub case: String,
    /// `None`: this KVM does not deliver what the case is about.
    pub ok: Option<bool>,
    /// What was wrong, or what was counted.
    pub detail: String,
    /// How long it took, by the clock of the Linux around it.
    pub took_ms: u64,
}

/// How long a loop of calls took, time after time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// On which kind of KVM.
    pub backend: Backend,
    /// In which guest.
    pub guest: String,
    /// What was at the called function: the key of a [`Way`](crate::overhead::Way).
    pub way: String,
    /// So many processors ran it at the same time.
    pub cpus: u8,
    /// Calls of one loop, by each of them.
    pub calls: u64,
    /// How long each loop took, nanoseconds. With one processor it is the time that the vCPU's thread had, with several
    /// what the clock of the Linux around the guest showed.
    pub rounds_ns: Vec<u64>,
    /// Hits of the probes there, in all loops and those that came before them.
    pub hits: u64,
    /// VM exits that these took.
    pub exits: u64,
}

/// How long it took to arm probes, time after time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arming {
    /// On which kind of KVM.
    pub backend: Backend,
    /// In which guest.
    pub guest: String,
    /// Number of probes.
    pub probes: usize,
    /// How long it took to look them up, nanoseconds; the guest runs meanwhile.
    pub prepared_ns: Vec<u64>,
    /// How long it took to plant them, nanoseconds; the guest is paused.
    pub armed_ns: Vec<u64>,
    /// How long it took to remove them, nanoseconds; the guest is paused.
    pub removed_ns: Vec<u64>,
    /// By so many bytes the VMM's resident memory was larger with the first of them; those kept for the guest's pages
    /// are among them.
    pub resident_bytes: u64,
}

/// How long a stock guest took to its end that does nothing but boot, time after time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// On which kind of KVM.
    pub backend: Backend,
    /// Which guest.
    pub guest: String,
    /// The engine and the probes of the boot.
    pub kind: BootKind,
    /// From the kernel's file to a machine that is ready to run, nanoseconds.
    pub set_up_ns: Vec<u64>,
    /// From the first instruction to the end, nanoseconds.
    pub ran_ns: Vec<u64>,
    /// Probes that were armed, in the last of the boots.
    pub probes: u64,
    /// Their hits.
    pub hits: u64,
    /// Hits and calls that they missed.
    pub missed: u64,
    /// VM exits that the hits took.
    pub exits: u64,
}

/// The engine and the probes of a measured boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootKind {
    /// No handler of traps.
    NoEngine,
    /// An engine without a probe.
    Engine,
    /// An engine with a counted probe at every function, `kprobe:*`.
    AllProbed,
}

impl Line {
    /// The line in `text`, which may have something else before it: a kernel prints to the same console.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        let start = text.find("{\"type\":")?;
        serde_json::from_str(text[start..].trim_end()).ok()
    }
}

/// Writes it, at once.
pub(crate) fn print(output: &mut dyn Write, line: &Line) -> io::Result<()> {
    writeln!(output, "{}", serde_json::to_string(line)?)?;
    output.flush()
}

/// The time since then, as lines tell it.
pub(crate) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_behind_what_a_kernel_prints() {
        let case = Line::Case(Case {
            backend: Backend::Amd,
            case: "calls/int3/1".to_owned(),
            ok: Some(true),
            detail: "840 hits".to_owned(),
            took_ms: 12,
        });
        let json = serde_json::to_string(&case).expect("json");
        assert!(
            json.starts_with(r#"{"type":"case","backend":"amd","case":"#),
            "{json}"
        );
        assert_eq!(Line::find(&format!("[ 1.2] kvm: {json}\r\n")), Some(case));
        for other in ["", "{\"type\":", "[ 1.2] {\"type\":\"case\"}"] {
            assert_eq!(Line::find(other), None, "{other}");
        }
    }

    #[test]
    fn words_are_those_of_the_lines() {
        for backend in Backend::ALL {
            assert_eq!(serde_json::to_value(backend).expect("json"), backend.word());
            assert_eq!(Backend::from_word(backend.word()), Some(backend));
        }
    }
}
