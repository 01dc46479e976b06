//! The output of `contract`: a JSON object per line.

use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::sweep::Step;

/// A line of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Line {
    /// The environment of the run: the first line, by `rig`.
    Run {
        /// The kind of KVM.
        backend: Backend,
        /// The date, UTC.
        date: String,
        /// Processor, number of CPUs, and Linux of the machine on which everything runs.
        host: String,
        /// The checked-out commit, and the versions of the layers between the machine and the KVM under test: the emulator, and its
        /// Linux.
        versions: Vec<String>,
    },
    /// The result of the self-test: the first line of `contract`.
    Host {
        /// The kind of KVM.
        backend: Backend,
        /// [`vmm::HostFacts`], a name and a value each.
        facts: String,
        /// The duration of the self-test, by the clock of the Linux around the guest.
        took_ms: u64,
    },
    /// A case has ended.
    Case(Case),
    /// A loop of calls was timed.
    Timing(Timing),
    /// Probes were armed all at once.
    Arming(Arming),
    /// A stock guest was booted and powered off, several times.
    Boot(Boot),
    /// A step of a sweep.
    Sweep(Step),
    /// All cases have ended: the last line.
    End {
        /// The kind of KVM.
        backend: Backend,
        /// Number of cases.
        cases: usize,
        /// Number of failed cases.
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
    /// The machine's own KVM.
    Local,
}

impl Backend {
    /// All kinds, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Intel, Self::Amd, Self::Nested, Self::Local];

    /// The name on the command line and in the lines.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Intel => "intel",
            Self::Amd => "amd",
            Self::Nested => "nested",
            Self::Local => "local",
        }
    }

    /// The backend with the name `word`.
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

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The kind of KVM.
    pub backend: Backend,
    /// `scenario/plant/cpus`.
    pub case: String,
    /// Whether the case has passed; `None` if this KVM does not deliver the feature under test.
    pub ok: Option<bool>,
    /// The failure, or the counts.
    pub detail: String,
    /// The duration, by the clock of the Linux around the guest.
    pub took_ms: u64,
}

/// The durations of a loop of calls, in several rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// The kind of KVM.
    pub backend: Backend,
    /// The guest.
    pub guest: String,
    /// The probes at the called function: the key of a [`Way`](crate::overhead::Way).
    pub way: String,
    /// The number of processors that ran the loop at the same time.
    pub cpus: u8,
    /// The number of calls in a loop, for each processor.
    pub calls: u64,
    /// The duration of each loop, nanoseconds. With a single processor: the CPU time of the vCPU's thread. With several: the
    /// time by the clock of the Linux around the guest.
    pub rounds_ns: Vec<u64>,
    /// Hits of the probes at the function, in all loops and in the calls before the first loop.
    pub hits: u64,
    /// VM exits of these hits.
    pub exits: u64,
}

/// The durations of arming probes, in several rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arming {
    /// The kind of KVM.
    pub backend: Backend,
    /// The guest.
    pub guest: String,
    /// Number of probes.
    pub probes: usize,
    /// The durations of the look-up, nanoseconds; the guest runs meanwhile.
    pub prepared_ns: Vec<u64>,
    /// The durations of planting, nanoseconds; the guest is paused.
    pub armed_ns: Vec<u64>,
    /// The durations of the removal, nanoseconds; the guest is paused.
    pub removed_ns: Vec<u64>,
    /// The growth of the VMM's resident memory in the first round, bytes, including the kept copies of the guest's pages.
    pub resident_bytes: u64,
}

/// The durations of a stock guest that only boots and ends, in several rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The kind of KVM.
    pub backend: Backend,
    /// The guest.
    pub guest: String,
    /// The engine and the probes of the boot.
    pub kind: BootKind,
    /// From the kernel's file to a machine ready to run, nanoseconds.
    pub set_up_ns: Vec<u64>,
    /// From the first instruction to the end, nanoseconds.
    pub ran_ns: Vec<u64>,
    /// Armed probes, in the last of the boots.
    pub probes: u64,
    /// Hits of the probes.
    pub hits: u64,
    /// Hits and calls missed by the probes.
    pub missed: u64,
    /// VM exits of the hits.
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
    /// Finds the line in `text`. Other output may precede the line: a kernel prints to the same console.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        let start = text.find("{\"type\":")?;
        serde_json::from_str(text[start..].trim_end()).ok()
    }
}

/// Writes the line, and flushes the output.
pub(crate) fn print(output: &mut dyn Write, line: &Line) -> io::Result<()> {
    writeln!(output, "{}", serde_json::to_string(line)?)?;
    output.flush()
}

/// The milliseconds since `since`, as in the lines.
pub(crate) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_found_behind_the_kernel_s_prefix() {
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
