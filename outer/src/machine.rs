//! The machine that QEMU emulates, and the command line of the kernel.

use std::ffi::OsString;
use std::path::Path;

/// The start of the kernel's command line, for every emulator.
///
/// - panic: the reset comes at once, since a wait would help no user; `-no-reboot` turns the reset into QEMU's end.
/// - no mitigations: nothing speculates under emulation.
/// - the crypto self-tests and the policies of security modules only cost time here.
pub const COMMAND_LINE: &str = "console=ttyS0,115200 panic=-1 mitigations=off no_timer_check cryptomgr.notests=1 \
                                random.trust_cpu=on lsm=";
/// The further parameters for QEMU.
///
/// - TCG derives the TSC from the host's TSC, so the kernel need not calibrate or watch the TSC, nor time its delay loop by the TSC.
/// - pid 1's C library copies one page after the other: TCG looks up the address anew where the library copies several pages at once. The kernel
///   gives parameters that it does not know to pid 1 as environment.
/// - the first CPU boots alone. pid 1 then starts the others, and moves to them ([`crate::init::set_up`]): every guest keeps off the first CPU,
///   because QEMU's other CPUs damage the state of the first CPU (`docs/nested.md`).
/// - QEMU loses interrupts of a CPU that runs a guest. The timer of each CPU is therefore periodic: QEMU repeats the interrupt without the
///   kernel, and each delivers the lost ones too. A timer that the kernel arms for one interrupt at a time stops at the first loss.
const QEMU_PARAMETERS: &str = "tsc=reliable maxcpus=1 highres=off nohz=off lapic=notscdeadline \
                                GLIBC_TUNABLES=glibc.cpu.x86_non_temporal_threshold=0xfffffffffffffff";
/// The number of the kernel's timer interrupts in a second (`CONFIG_HZ` of Debian). With another number, the kernel's delays last longer or shorter.
const TICKS_A_SECOND: u64 = 250;

/// TCG emulates SVM with NPT, and no VMX. It executes `rep movsb` and `rep stosb` byte by byte, so the CPU does not offer them as fast: kernels
/// clear and copy pages eight bytes at a time instead.
const FIXED: &str = "-name hyprobe-outer -nodefaults -no-user-config -display none -no-reboot -machine pc,usb=off,vmport=off,dump-guest-core=off \
                     -accel tcg,thread=multi -cpu max,+svm,+npt,-la57,-erms,-fsrm";

/// The memory of Linux, of the program that is pid 1, and of the program's copy of the guest's kernel with the symbols.
const OVERHEAD_BYTES: u64 = 512 << 20;

/// A machine for the outer Linux in QEMU. The caller adds the serial line and further devices.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// An ELF vmlinux: QEMU enters the vmlinux directly (PVH), so the outer Linux need not unpack a kernel under emulation.
    pub kernel: &'a Path,
    /// The initramfs.
    pub initramfs: &'a Path,
    /// CPUs that do work. One more stays idle: the first.
    pub cpus: u8,
    /// RAM, see [`memory_mib`].
    pub memory_mib: u64,
    /// Further parameters of the kernel, separated by spaces.
    pub parameters: &'a str,
}

impl Machine<'_> {
    /// QEMU's options. Measures the frequency of the TSC, which takes some milliseconds.
    #[must_use]
    pub fn options(&self) -> Vec<OsString> {
        let cpus = self.cpus.saturating_add(1).to_string();
        let memory = format!("{}M", self.memory_mib);
        let line = command_line(vmm::tsc_khz(), self.parameters);
        let mut options: Vec<OsString> = FIXED.split_ascii_whitespace().map(Into::into).collect();
        options.extend(["-smp", &cpus, "-m", &memory, "-append", &line].map(Into::into));
        options.extend(["-kernel".into(), self.kernel.into()]);
        options.extend(["-initrd".into(), self.initramfs.into()]);
        options
    }
}

/// The RAM for guests with `guest_bytes` of RAM: the guests' RAM, the initramfs twice (as loaded, and as unpacked), and the memory of Linux
/// and of pid 1.
#[must_use]
pub fn memory_mib(guest_bytes: u64, initramfs_bytes: usize) -> u64 {
    let initramfs = u64::try_from(initramfs_bytes).unwrap_or(u64::MAX);
    guest_bytes
        .saturating_add(initramfs.saturating_mul(2))
        .saturating_add(OVERHEAD_BYTES)
        .div_ceil(1 << 20)
}

/// The frequency is measured on the host: on a busy host, the outer Linux would measure a wrong value, and have a wrong clock.
fn command_line(tsc_khz: u64, parameters: &str) -> String {
    let delay = tsc_khz.saturating_mul(1000) / TICKS_A_SECOND;
    format!("{COMMAND_LINE} {QEMU_PARAMETERS} tsc_early_khz={tsc_khz} lpj={delay} {parameters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_for_the_guest_and_the_outer_linux() {
        assert_eq!(memory_mib(256 << 20, 64 << 20), 256 + 2 * 64 + 512);
        assert_eq!(memory_mib(1, 0), 513);
        assert!(memory_mib(u64::MAX, usize::MAX) > 1 << 40);
    }

    #[test]
    fn first_cpu_is_added_and_boots_alone() {
        let machine = Machine {
            kernel: Path::new("k"),
            initramfs: Path::new("i"),
            cpus: 2,
            memory_mib: 7,
            parameters: "quiet",
        };
        let options = machine.options();
        let after = |option: &str| {
            let at = options.iter().position(|found| found == option);
            options[at.expect("option") + 1].to_str().expect("text")
        };
        assert_eq!((after("-smp"), after("-m")), ("3", "7M"));
        assert_eq!((after("-kernel"), after("-initrd")), ("k", "i"));
        let line = after("-append");
        for parameter in [" maxcpus=1 ", " highres=off nohz=off lapic=notscdeadline "] {
            assert!(line.contains(parameter), "{line}");
        }
        let value = |name: &str| {
            let words = line.split(' ');
            let mut values = words.filter_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
            values.next().expect("a number")
        };
        assert_eq!(value("lpj="), value("tsc_early_khz=") * 4);
        assert!(line.ends_with(" quiet"), "{line}");
    }
}
