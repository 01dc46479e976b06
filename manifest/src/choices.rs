//! The choices about a run, in the same words on the command line and in a manifest.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A choice from several words.
pub trait Word: Copy + 'static {
    /// All choices, in the order of offer.
    const ALL: &'static [Self];

    /// The word for the choice.
    fn word(self) -> &'static str;

    /// The meaning, in a few words.
    fn about(self) -> &'static str;

    /// The choice for `word`.
    #[must_use]
    fn from_word(word: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|choice| choice.word() == word)
    }
}

macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal, $about:literal;)+ }) => {
        impl Word for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            fn about(self) -> &'static str {
                match self { $(Self::$variant => $about),+ }
            }
        }
    };
}

/// The way to start the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boot {
    /// hyprobe unpacks the kernel, and enters the kernel at its link-time address.
    #[default]
    Direct,
    /// The kernel unpacks itself in the guest, and moves itself if it has KASLR.
    BzImage,
}

words!(Boot {
    Direct = "direct", "hyprobe unpacks the kernel: fast, no KASLR";
    BzImage = "bzimage", "the guest unpacks its kernel, with KASLR";
});

/// The KVM that runs the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// This host's KVM if it runs kernels at hardware speed, else nested.
    #[default]
    Auto,
    /// This host's KVM.
    Kvm,
    /// KVM of an outer Linux that QEMU emulates.
    Nested,
}

words!(Accel {
    Auto = "auto", "/dev/kvm if it runs kernels at hardware speed, else nested";
    Kvm = "kvm", "this host's /dev/kvm";
    Nested = "nested", "KVM of an outer Linux that QEMU emulates";
});

/// The byte of plants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrapChoice {
    /// A byte that the self-test found to work.
    #[default]
    Auto,
    /// A one-byte port write.
    Port,
    /// A breakpoint instruction.
    Int3,
}

words!(TrapChoice {
    Auto = "auto", "what the self-test found to work";
    Port = "port", "a one-byte port write";
    Int3 = "int3", "a breakpoint instruction";
});

/// The format of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

words!(Format {
    Text = "text", "for people";
    Json = "json", "one JSON object a line";
});

/// A guest user space that is built into hyprobe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Opens, reads and writes files, starts processes, powers off.
    Demo,
}

words!(Workload {
    Demo = "demo", "opens, reads and writes files, starts processes, powers off";
});

/// The destination of the guest's serial console.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Console {
    /// The terminal, which is also the console's input.
    #[default]
    Stdio,
    /// No destination.
    None,
    /// This file.
    File(PathBuf),
}

impl Console {
    /// The console for `stdio`, `none`, or a file in `folder`; a file called `none` is `./none`.
    #[must_use]
    pub fn from_text(text: &str, folder: &Path) -> Self {
        match text {
            "stdio" => Self::Stdio,
            "none" => Self::None,
            file => Self::File(folder.join(file)),
        }
    }
}

/// The action at the hits of a probe.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeAction {
    /// Each hit is an event.
    #[default]
    Trace,
    /// Hits are counted.
    Count,
}

words!(ProbeAction {
    Trace = "trace", "each hit is told";
    Count = "count", "hits are counted, and only the summary tells";
});

/// The effect of a hit if the ring has no room for its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// The hit exits, and is reported like any other.
    #[default]
    Exit,
    /// The hit is counted as missed.
    Drop,
}

words!(WhenFull {
    Exit = "exit", "it leaves the guest, and is told like any other";
    Drop = "drop", "it is counted as missed, and the guest runs on";
});

/// The guest's accesses to probed kernel code that find the guest's own bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stealth {
    /// Reads behind the guest's own writes, and by the kernel's own readers of code. Other reads find plants.
    #[default]
    Writes,
    /// All reads: no byte of the guest changes. The processor has debug registers for four probed instructions.
    Registers,
    /// All reads: no byte of the guest changes. Pages with probed code are hidden, and slow.
    Reads,
}

words!(Stealth {
    Writes = "writes", "what the guest has written, and what its kernel reads of code";
    Registers = "registers", "all: no byte of the guest changes, and four instructions can be probed";
    Reads = "reads", "all: no byte of the guest changes, and probed pages are slow";
});

/// How the guest ended.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestEnd {
    /// ACPI power-off.
    Poweroff,
    /// Reset without a panic before it.
    Reset,
    /// The kernel panicked.
    Panic,
    /// A vCPU triple-faulted.
    TripleFault,
    /// All vCPUs halted for ever.
    Halted,
    /// `--timeout` passed.
    Timeout,
    /// Stopped by the user or by a probe.
    Stopped,
    /// The guest wrote a code to the test device.
    Exit,
    /// hyprobe or KVM could not continue; the error gives the reason.
    Failed,
}

words!(GuestEnd {
    Poweroff = "poweroff", "ACPI power-off";
    Reset = "reset", "reset without a panic before it";
    Panic = "panic", "the kernel panics";
    TripleFault = "triple-fault", "a vCPU triple-faults";
    Halted = "halted", "all vCPUs halt for ever";
    Timeout = "timeout", "the time is over";
    Stopped = "stopped", "stopped by the user, or because an expectation failed";
    Exit = "exit", "the test device was given a code";
    Failed = "failed", "hyprobe or KVM could not go on";
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_uses_the_same_words() {
        fn check<W: Word + Serialize>() {
            for &choice in W::ALL {
                let json = serde_json::to_value(choice).expect("json");
                assert_eq!(json, choice.word());
            }
        }
        check::<Boot>();
        check::<Accel>();
        check::<TrapChoice>();
        check::<Format>();
        check::<Workload>();
        check::<ProbeAction>();
        check::<WhenFull>();
        check::<Stealth>();
        check::<GuestEnd>();
    }

    #[test]
    fn a_console_is_a_word_or_a_file() {
        let console = |text| Console::from_text(text, Path::new("/run"));
        assert_eq!(console("none"), Console::None);
        assert_eq!(console("./none"), Console::File("/run/./none".into()));
        assert_eq!(console("/tmp/c.log"), Console::File("/tmp/c.log".into()));
    }
}
