//! One boot of a hostile guest, from a directory of its own.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guest_images::hostile::Acts;
use rustix::process::{Pid, Signal, kill_process};

use super::campaign::HostileError;
use super::files::Snapshot;
use super::guest::HostileGuest;
use super::operator::{Operated, Operator};
use super::plan::Plan;
use super::processes::Peaks;
use super::verdict::{End, Left};
use crate::busy::random::Random;
use crate::launch::file_error;
use crate::line::Backend;

/// hyprobe starts a guest within this time.
const START_TIME: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);
/// A word of each guest's first line.
const UP: &str = ": up ";
const MIB: u64 = 1 << 20;
/// The detour memory: a page is allocated when the guest writes to the page.
const DETOUR_MIB: u64 = 128;
/// The limit of hyprobe's memory besides the guest's: code, symbols, probes, 16 MiB of events.
const OWN_MIB: u64 = 192;
/// The limits of the launcher's memory in a nested run: while the launcher builds the outer Linux's initramfs, and while the guest runs.
const LAUNCHER_MIB: u64 = 512;
const LAUNCHER_SINCE_UP_MIB: u64 = 96;
/// The limit of QEMU's memory besides its machine's RAM: mostly translated code.
const QEMU_MIB: u64 = 1536;
/// The files of a boot, with the maximum size of each.
const OUTPUTS: [(&str, u64); 4] = [
    ("events", 256 * MIB),
    ("console", 64 * MIB),
    ("stdout", 16 * MIB),
    ("stderr", 16 * MIB),
];

/// The parameters of a boot.
#[derive(Debug)]
pub struct Boot<'a> {
    pub(super) backend: Backend,
    pub(super) seed: u64,
    pub(super) guest: &'a HostileGuest,
    pub(super) hyprobe: &'a Path,
    /// The directory of the images, which hyprobe only reads.
    pub(super) cache: &'a Path,
    /// The directory of this boot. The rig empties the directory first.
    pub(super) dir: &'a Path,
}

/// The result of a boot.
#[derive(Clone, Debug)]
pub struct Booted {
    /// The end of the run, unless the boot failed.
    pub end: Option<End>,
    /// The reason of a failure.
    pub failures: Vec<String>,
    /// The error message of KVM or QEMU, if KVM or QEMU ended the run.
    pub why: Option<String>,
    /// From the start of the process to its end.
    pub took: Duration,
    /// The acts of the guest, as far as the guest has printed them.
    pub acts: Acts,
    /// Probes that the operator added while the guest ran.
    pub added: u64,
    /// Probes that the operator removed while the guest ran.
    pub removed: u64,
    /// Requests of the operator that were answered.
    pub requests: u64,
    /// Requests of the operator that were refused.
    pub refused: u64,
    /// VM exits for probes, by hyprobe's answers and summary. (Hits are counted in the guest's memory, which the guest can overwrite.)
    pub exits: u64,
    /// The slowest answer of the control socket.
    pub slowest: Duration,
    /// The peak memory of hyprobe. Nested, since the guest's first instruction; otherwise, with the guest's RAM in use.
    pub hyprobe_kib: u64,
    /// The peak memory of QEMU.
    pub qemu_kib: u64,
}

impl Boot<'_> {
    /// Boots the guest, watches the run and judges its end.
    ///
    /// # Errors
    ///
    /// The rig itself fails: its files, or the start of the process.
    pub fn run(&self) -> Result<Booted, HostileError> {
        let out = self.prepare()?;
        let own = ["home", "tmp", "cwd"].map(|name| self.dir.join(name));
        let guest = self.guest.kernel.parent();
        let watched: Vec<_> = own
            .iter()
            .map(PathBuf::as_path)
            .chain([self.cache])
            .chain(guest)
            .collect();
        let before = Snapshot::of(&watched).map_err(HostileError::Snapshot)?;
        let plan = Plan::new(&mut Random::new(self.seed), self.guest.attack);
        let socket = out.join("x.sock");
        let began = Instant::now();
        let mut child = self.start(&out, &socket)?;
        let (is_up, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let console = out.join("console");
        let operator = Operator {
            socket: &socket,
            probes: &self.guest.probes,
            console: &console,
            is_up: &is_up,
            is_over: &is_over,
            stops_after: match plan {
                Plan::Stop(after) => Some(after),
                Plan::Wait | Plan::Signal(_) => None,
            },
            answer_time: self.answer_time(),
        };
        let (run, operated) = std::thread::scope(|scope| {
            let operating = scope.spawn(|| operator.run(self.seed));
            let run = self.watch(&mut child, plan, &console, &is_up);
            is_over.store(true, Ordering::Release);
            let operated = operating.join().unwrap_or_else(|_| Operated {
                failure: Some("the rig's operator panicked".to_owned()),
                ..Operated::default()
            });
            (run, operated)
        });
        let (status, peaks) = run?;
        let took = began.elapsed();
        let mut failures: Vec<String> = operated.failure.into_iter().collect();
        let after = Snapshot::of(&watched).map_err(HostileError::Snapshot)?;
        failures.extend(after.changes(&before));
        failures.extend(self.check_outputs(&out));
        failures.extend(self.check_memory(peaks));
        let said = format!(
            "{}\n{}",
            read(&out.join("stdout")),
            read(&out.join("stderr"))
        );
        let said_by_guest = read(&console);
        if !said_by_guest.contains(UP) {
            failures.push("the guest has not begun".to_owned());
        }
        let left = status.map(|status| Left {
            status,
            said: &said,
            end_request: plan.end_request(self.guest.timeout),
            interpreted_below: match self.backend {
                Backend::Nested => None,
                _ => Some(self.guest.memory_mib * MIB),
            },
        });
        let end = match &left {
            Some(left) => left.end().map_err(|failure| failures.push(failure)).ok(),
            None => {
                failures.push(format!("the run has not ended after {took:?}"));
                None
            }
        };
        Ok(Booted {
            end,
            failures,
            took,
            why: left.and_then(|left| left.why().map(str::to_owned)),
            acts: Acts::from_console(&said_by_guest),
            added: operated.added,
            removed: operated.removed,
            requests: operated.requests,
            refused: operated.refused,
            exits: operated.exits.saturating_add(exits_of_summary(&said)),
            slowest: operated.slowest,
            hyprobe_kib: match self.backend {
                Backend::Nested => peaks.since_up_kib,
                _ => peaks.hyprobe_kib,
            },
            qemu_kib: peaks.qemu_kib,
        })
    }

    /// A nested guest is a hundred times slower.
    fn answer_time(&self) -> Duration {
        match self.backend {
            Backend::Nested => Duration::from_secs(60),
            _ => Duration::from_secs(10),
        }
    }

    /// hyprobe ends a run itself within this time of its timeout (docs/nested.md).
    fn grace(&self) -> Duration {
        match self.backend {
            Backend::Nested => Duration::from_secs(180 + 60 + 15 + 15),
            _ => Duration::from_secs(45),
        }
    }

    fn prepare(&self) -> Result<PathBuf, HostileError> {
        match std::fs::remove_dir_all(self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(file_error("remove", self.dir)(error).into());
            }
            _ => {}
        }
        for name in ["home", "tmp", "cwd", "out"] {
            let path = self.dir.join(name);
            std::fs::create_dir_all(&path).map_err(file_error("create", &path))?;
        }
        for name in ["home/.profile", "tmp/other", "cwd/notes"] {
            let path = self.dir.join(name);
            std::fs::write(&path, "the user's\n").map_err(file_error("write", &path))?;
        }
        Ok(self.dir.join("out"))
    }

    fn start(&self, out: &Path, socket: &Path) -> Result<Child, HostileError> {
        let create = |name| {
            let path = out.join(name);
            File::create(&path).map_err(file_error("create", &path))
        };
        let accel = match self.backend {
            Backend::Nested => "nested",
            _ => "kvm",
        };
        let mut command = Command::new(self.hyprobe);
        command
            .args(["run", "--accel", accel, "--cpus", "2", "--kernel"])
            .arg(&self.guest.kernel)
            .args(["--memory", &format!("{}M", self.guest.memory_mib)])
            .args(["--cmdline", &self.guest.cmdline(self.seed)])
            .args(["--timeout", &format!("{}s", self.guest.timeout.as_secs())])
            .arg("--control")
            .arg(socket)
            .arg("--console")
            .arg(out.join("console"))
            .arg("-o")
            .arg(out.join("events"));
        if let Some(initrd) = &self.guest.initrd {
            command.arg("--initrd").arg(initrd);
        }
        for probe in &self.guest.first {
            command.args(["-p", probe]);
        }
        command
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", self.dir.join("home"))
            .env("TMPDIR", self.dir.join("tmp"))
            .env("HYPROBE_CACHE", self.cache)
            .current_dir(self.dir.join("cwd"))
            .stdin(Stdio::null())
            .stdout(create("stdout")?)
            .stderr(create("stderr")?);
        command.spawn().map_err(|source| HostileError::Start {
            path: self.hyprobe.to_owned(),
            source,
        })
    }

    /// Waits for the process, and kills it at the deadline.
    fn watch(
        &self,
        child: &mut Child,
        plan: Plan,
        console: &Path,
        is_up: &AtomicBool,
    ) -> Result<(Option<ExitStatus>, Peaks), HostileError> {
        let (mut peaks, mut signalled) = (Peaks::default(), false);
        let (began, mut up) = (Instant::now(), None);
        loop {
            peaks.look(child.id(), up.is_some());
            if up.is_none() && read(console).contains(UP) {
                up = Some(Instant::now());
                is_up.store(true, Ordering::Release);
            }
            if let Some(status) = child.try_wait().map_err(HostileError::Wait)? {
                return Ok((Some(status), peaks));
            }
            if let Plan::Signal(after) = plan
                && !signalled
                && up.is_some_and(|up| up.elapsed() > after)
            {
                signalled = true;
                // The next iteration finds a process that has ended meanwhile.
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
            }
            // `--timeout` counts from the guest's first instruction, which a busy host reaches late.
            let is_late = match up {
                Some(up) => up.elapsed() > self.guest.timeout + self.grace(),
                None => began.elapsed() > START_TIME + self.guest.timeout + self.grace(),
            };
            if is_late {
                child
                    .kill()
                    .and_then(|()| child.wait())
                    .map_err(HostileError::Wait)?;
                return Ok((None, peaks));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn check_outputs(&self, out: &Path) -> Vec<String> {
        let missing = OUTPUTS.iter().filter(|(name, _)| !out.join(name).is_file());
        let mut wrong: Vec<_> = missing
            .map(|(name, _)| format!("there is no {name}"))
            .collect();
        for entry in std::fs::read_dir(out).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
            match OUTPUTS.iter().find(|(output, _)| name == *output) {
                Some((_, most)) if bytes <= *most => {}
                Some(_) => wrong.push(format!("{name:?} has {bytes} bytes")),
                None => wrong.push(format!("{name:?} is left behind")),
            }
        }
        wrong
    }

    fn check_memory(&self, peaks: Peaks) -> Vec<String> {
        let guest = self.guest.memory_mib;
        let (hyprobe, since_up, qemu) = match self.backend {
            // The guest's memory is QEMU's, and two copies of the initramfs and the outer Linux, too.
            Backend::Nested => (LAUNCHER_MIB, LAUNCHER_SINCE_UP_MIB, guest + QEMU_MIB),
            _ => (guest + DETOUR_MIB + OWN_MIB, u64::MAX >> 10, 0),
        };
        let check = |name, kib: u64, mib: u64| {
            (kib > mib * 1024)
                .then(|| format!("{name} has used {} MiB, more than {mib}", kib / 1024))
        };
        [
            check("hyprobe", peaks.hyprobe_kib, hyprobe),
            check(
                "hyprobe, since the guest began,",
                peaks.since_up_kib,
                since_up,
            ),
            check("QEMU", peaks.qemu_kib, qemu),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn read(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// From the summary's last line: "58 probes: 106 hits, 0 missed, 104 exits".
fn exits_of_summary(said: &str) -> u64 {
    let exits = |line: &str| {
        line.strip_suffix(" exits")?
            .rsplit(' ')
            .next()?
            .parse()
            .ok()
    };
    said.lines().rev().find_map(exits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_of_the_summary_are_read() {
        let said = "x
58 probes: 106 hits, 0 missed, 104 exits
";
        assert_eq!(exits_of_summary(said), 104);
        assert_eq!(exits_of_summary("nothing"), 0);
    }
}
