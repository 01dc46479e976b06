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
/// Each guest's first line has this.
const UP: &str = ": up ";
const MIB: u64 = 1 << 20;
/// The detour memory that a guest can write to, and that is not allocated before.
const DETOUR_MIB: u64 = 128;
/// What hyprobe may use besides: its own, symbols, probes, 16 MiB of events.
const OWN_MIB: u64 = 192;
/// What the launcher of a nested run may use: while it makes the outer Linux's initramfs, and once the guest runs.
const LAUNCHER_MIB: u64 = 512;
const LAUNCHER_SINCE_UP_MIB: u64 = 96;
/// What QEMU may use besides its machine's RAM: translated code, most of all.
const QEMU_MIB: u64 = 1536;
/// Files of a boot, and the most that each may have.
const OUTPUTS: [(&str, u64); 4] = [
    ("events", 256 * MIB),
    ("console", 64 * MIB),
    ("stdout", 16 * MIB),
    ("stderr", 16 * MIB),
];

/// A boot to be made.
#[derive(Debug)]
pub struct Boot<'a> {
    pub(super) backend: Backend,
    pub(super) seed: u64,
    pub(super) guest: &'a HostileGuest,
    pub(super) hyprobe: &'a Path,
    /// Where the images are: hyprobe reads them, and changes nothing there.
    pub(super) cache: &'a Path,
    /// The directory of this boot; it is emptied.
    pub(super) dir: &'a Path,
}

/// A boot that was made.
#[derive(Clone, Debug)]
pub struct Booted {
    /// How it ended, unless it failed.
    pub end: Option<End>,
    /// What was wrong.
    pub failures: Vec<String>,
    /// KVM's or QEMU's own words, if one of them ended the run.
    pub why: Option<String>,
    /// From the start of the process to its end.
    pub took: Duration,
    /// What the guest did, as far as it has said so.
    pub acts: Acts,
    /// Probes that were added and removed while it ran.
    pub added: u64,
    /// As above.
    pub removed: u64,
    /// Answered requests of the operator.
    pub requests: u64,
    /// As above.
    pub refused: u64,
    /// VM exits for probes, as far as hyprobe has said so: of those that were removed, and of the summary. (Hits are
    /// counted in the guest's memory, where the guest can write.)
    pub exits: u64,
    /// The slowest answer of the control socket.
    pub slowest: Duration,
    /// The most memory of hyprobe's: nested, since the guest began; otherwise with what the guest has written to of its RAM.
    pub hyprobe_kib: u64,
    /// The most memory of QEMU's.
    pub qemu_kib: u64,
}

impl Boot<'_> {
    /// Boots, watches and judges.
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
            asked: plan.asked(self.guest.timeout),
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

    /// Nested, everything is a hundred times slower.
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
                // A process that is gone by now is found so above.
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
            }
            // A busy host takes its time until the guest begins, from where on `--timeout` counts.
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
