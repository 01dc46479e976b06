//! What can be chosen about a run, in the same words on the command line and in a manifest.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::GuestEnd;

/// A choice between words.
pub trait Word: Copy + 'static {
    /// Every choice, in the order in which they are offered.
    const ALL: &'static [Self];

    /// What is written.
    fn word(self) -> &'static str;

    /// What it means, in a few words.
    fn about(self) -> &'static str;

    /// The choice that is written so.
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

/// How the kernel is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boot {
    /// It is unpacked by hyprobe and entered where it was linked.
    #[default]
    Direct,
    /// It unpacks itself in the guest, and moves itself if it has KASLR.
    BzImage,
}

words!(Boot {
    Direct = "direct", "hyprobe unpacks the kernel: fast, no KASLR";
    BzImage = "bzimage", "the guest unpacks its kernel, with KASLR";
});

/// Where the guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// Wherever it runs well.
    #[default]
    Auto,
    /// On this host's KVM.
    Kvm,
    /// In an outer Linux that QEMU emulates.
    Nested,
}

words!(Accel {
    Auto = "auto", "/dev/kvm if it runs kernels at hardware speed, else nested";
    Kvm = "kvm", "this host's /dev/kvm";
    Nested = "nested", "KVM of an outer Linux that QEMU emulates";
});

/// What is planted where a probe is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrapChoice {
    /// What the self-test found to work.
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

/// How events are written.
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

/// A guest user space that hyprobe brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Opens, reads and writes files, starts processes, powers off.
    Demo,
}

words!(Workload {
    Demo = "demo", "opens, reads and writes files, starts processes, powers off";
});

/// Where the guest's serial console goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Console {
    /// To the terminal, which also types into it.
    #[default]
    Stdio,
    /// Nowhere.
    None,
    /// Into this file.
    File(PathBuf),
}

impl Console {
    /// What is written: `stdio`, `none`, or else a file in `folder`; one called `none` is `./none`.
    #[must_use]
    pub fn from_text(text: &str, folder: &Path) -> Self {
        match text {
            "stdio" => Self::Stdio,
            "none" => Self::None,
            file => Self::File(folder.join(file)),
        }
    }
}

/// What is done at the hits of a probe.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeAction {
    /// Each is told.
    #[default]
    Trace,
    /// They are counted.
    Count,
}

words!(ProbeAction {
    Trace = "trace", "each hit is told";
    Count = "count", "hits are counted, and only the summary tells";
});

/// What a hit does that a detour has no room to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// It leaves the guest, and is told like any other.
    #[default]
    Exit,
    /// It is counted as missed.
    Drop,
}

words!(WhenFull {
    Exit = "exit", "it leaves the guest, and is told like any other";
    Drop = "drop", "it is counted as missed, and the guest runs on";
});

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
