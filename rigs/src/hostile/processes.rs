//! The memory of a process and its children, as the kernel counts it.

use std::collections::BTreeMap;

/// Fields of a process's status.
const PEAK: &str = "VmHWM";
const NOW: &str = "VmRSS";

/// The peak memory of hyprobe and of its QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Peaks {
    pub(super) hyprobe_kib: u64,
    /// hyprobe's peak since the guest began. Before, the files of a nested run take more.
    pub(super) since_up_kib: u64,
    pub(super) qemu_kib: u64,
}

impl Peaks {
    /// Looks at the process `hyprobe`, and at its children.
    pub(super) fn look(&mut self, hyprobe: u32, is_up: bool) {
        self.hyprobe_kib = self.hyprobe_kib.max(kib(hyprobe, PEAK).unwrap_or(0));
        if is_up {
            self.since_up_kib = self.since_up_kib.max(kib(hyprobe, NOW).unwrap_or(0));
        }
        for child in children(hyprobe) {
            self.qemu_kib = self.qemu_kib.max(kib(child, PEAK).unwrap_or(0));
        }
    }
}

fn status(process: u32) -> Option<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    Some(
        fields
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect(),
    )
}

fn kib(process: u32, field: &str) -> Option<u64> {
    let status = status(process)?;
    status.get(field)?.strip_suffix(" kB")?.trim().parse().ok()
}

fn children(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let lists = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|id| id.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_and_a_child_are_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .expect("sleep");
        let mut peaks = Peaks::default();
        peaks.look(std::process::id(), true);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(
            peaks.hyprobe_kib > 1000 && peaks.since_up_kib > 1000 && peaks.qemu_kib > 0,
            "{peaks:?}"
        );
    }
}
