//! Starting QEMU.
//!
//! QEMU gets only inherited file descriptors: the kernel and the initramfs are files in memory, and the ports are socket pairs. So no file
//! is left in a file system, no other process can connect, and the end of either process is the end of the stream for the other.

#![expect(
    unsafe_code,
    reason = "only between fork and exec can a child be told to die with its parent, and be given file descriptors that \
              no other child gets"
)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use confine::{FileError, Layer};
use outer::{Machine, Qemu};
use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use rustix::process::Signal;
use thiserror::Error;

use super::inputs::Inputs;
use super::protocol::Port;
use crate::config::Sandbox;

/// The parameters of the outer Linux's kernel besides the usual ones: waits for RCU are short. The kernel logs to the console: the log costs
/// no time, and explains a failed boot.
const PARAMETERS: &str = "rcupdate.rcu_expedited=1";

/// Signals caused by the program itself. SIGKILL comes from outside: from the user, or from a host without memory.
const CRASHES: [Signal; 5] = [
    Signal::ABORT,
    Signal::SEGV,
    Signal::BUS,
    Signal::ILL,
    Signal::FPE,
];

/// Variables that reach the hyprobe inside: the kernel puts unknown parameters of the command line into init's environment.
const PASSED_VARIABLES: [&str; 2] = ["RUST_LOG", "RUST_BACKTRACE"];

/// Why QEMU could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// No memory or no file descriptors for QEMU's inputs.
    #[error("cannot prepare {what} for QEMU")]
    Prepare {
        /// The missing input.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The rules for QEMU's files.
    #[error(transparent)]
    Files(#[from] FileError),
    /// QEMU cannot be executed.
    #[error("cannot start {qemu}")]
    Spawn {
        /// The program.
        qemu: Qemu,
        /// The cause.
        source: io::Error,
    },
}

/// A started QEMU. Dropping the value kills QEMU.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    /// The ports, in the order of [`Port::ALL`].
    ports: [Option<UnixStream>; Port::ALL.len()],
    /// The outer Linux's first serial line.
    serial: Option<UnixStream>,
    /// QEMU's monitor, for a QEMU that no longer answers otherwise.
    monitor: UnixStream,
}

impl Running {
    /// Takes hyprobe's end of a port. A port can be taken once.
    pub(super) fn take_port(&mut self, port: Port) -> UnixStream {
        let taken = self.ports[port as usize].take();
        taken.expect("each port is taken once")
    }

    /// The output of the outer Linux on the serial line.
    pub(super) fn take_serial(&mut self) -> UnixStream {
        self.serial.take().expect("the serial line is taken once")
    }

    /// The standard error of QEMU.
    pub(super) fn take_stderr(&mut self) -> impl io::Read + Send + use<> {
        self.child
            .stderr
            .take()
            .expect("stderr is a pipe and is taken once")
    }

    /// QEMU's process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// QEMU's monitor: takes commands as lines.
    pub(super) const fn monitor(&self) -> &UnixStream {
        &self.monitor
    }

    /// The exit status of QEMU, if QEMU has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(status.to_string())
    }

    /// Whether a signal of QEMU's own making has ended QEMU.
    pub(super) fn has_crashed(&mut self) -> bool {
        let status = self.child.try_wait().ok().flatten();
        let signal = status.and_then(|status| status.signal());
        signal.is_some_and(|signal| CRASHES.map(Signal::as_raw).contains(&signal))
    }

    /// Ends QEMU. Reads from the ports then reach the end of the stream.
    pub(super) fn kill(&mut self) {
        // An error means that QEMU has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts QEMU.
///
/// QEMU dies with the calling *thread*, so the caller must be the thread that waits for the run.
pub(super) fn start(qemu: &Qemu, inputs: &Inputs) -> Result<Running, StartError> {
    let kernel = in_memory("the outer kernel", &inputs.kernel)?;
    let initramfs = in_memory("the outer initramfs", &inputs.initramfs)?;
    let (serial, serial_theirs) = pair()?;
    let (monitor, monitor_theirs) = pair()?;
    let mut ports = [const { None }; Port::ALL.len()];
    let mut theirs = Vec::new();
    for port in Port::ALL {
        let (ours, end) = pair()?;
        ports[port as usize] = Some(ours);
        theirs.push((port, end));
    }

    let machine = Machine {
        kernel: &path_of(&kernel),
        initramfs: &path_of(&initramfs),
        cpus: inputs.cpus,
        memory_mib: inputs.memory_mib,
        parameters: &parameters(|name| std::env::var(name).ok()),
    };
    let mut command = Command::new(qemu.path());
    command
        .args(qemu.sandbox())
        .args(qemu.thread_names())
        .args(machine.options())
        .args(["-chardev", &chardev("serial", serial_theirs.as_raw_fd())])
        .args(["-serial", "chardev:serial"])
        .args(["-chardev", &chardev("monitor", monitor_theirs.as_raw_fd())])
        .args(["-monitor", "chardev:monitor"]);
    // The number of ports decides on the number of virtqueues, 62 by default. Port 0 is kept free for a console.
    let controller = format!("virtio-serial-pci,max_ports={}", Port::ALL.len() + 1);
    command.args(["-device", &controller]);
    for (port, end) in &theirs {
        let name = port.name();
        command
            .args(["-chardev", &chardev(name, end.as_raw_fd())])
            .args([
                "-device",
                &format!("virtserialport,chardev={name},name={name}"),
            ]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // ctrl-C at the terminal is for hyprobe alone, which then asks the run inside to end.
        .process_group(0);

    let mut given: Vec<OwnedFd> = vec![
        kernel.into(),
        initramfs.into(),
        serial_theirs.into(),
        monitor_theirs.into(),
    ];
    given.extend(theirs.into_iter().map(|(_, end)| end.into()));
    let layer = match inputs.sandbox {
        Sandbox::On => Some(qemu.layer()?),
        Sandbox::Off => None,
    };
    let rules = layer.as_ref().and_then(Layer::fd);
    let parent = rustix::process::getpid();
    let prepare = move || {
        for file in &given {
            rustix::io::fcntl_setfd(file.as_fd(), FdFlags::empty())?;
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the call above.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        rules.map_or(Ok(()), confine::enter_layer)
    };
    // SAFETY: after a fork of a process with threads only async-signal-safe functions may be called: `prepare` makes
    // four kinds of system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn().map_err(|source| StartError::Spawn {
        qemu: qemu.clone(),
        source,
    })?;
    // `command` owns QEMU's ends of the sockets. Without the drop, the streams would have no end.
    drop(command);
    Ok(Running {
        child,
        ports,
        serial: Some(serial),
        monitor,
    })
}

fn parameters(variable: impl Fn(&str) -> Option<String>) -> String {
    let mut line = PARAMETERS.to_owned();
    for name in PASSED_VARIABLES {
        let plain = |value: &String| value.chars().all(|c| c.is_ascii_graphic() && c != '"');
        if let Some(value) = variable(name).filter(plain) {
            line.push_str(&format!(" {name}={value}"));
        }
    }
    line
}

fn chardev(id: &str, fd: RawFd) -> String {
    format!("socket,id={id},fd={fd}")
}

fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn pair() -> Result<(UnixStream, UnixStream), StartError> {
    UnixStream::pair().map_err(|source| StartError::Prepare {
        what: "a virtio-serial port",
        source,
    })
}

fn in_memory(what: &'static str, bytes: &[u8]) -> Result<File, StartError> {
    let write = || {
        let mut file = File::from(rustix::fs::memfd_create("hyprobe", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(file)
    };
    write().map_err(|source| StartError::Prepare { what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_variables_reach_the_kernel_s_command_line() {
        let line = parameters(|name| (name == "RUST_LOG").then(|| "vmm=debug".into()));
        assert!(line.ends_with(" RUST_LOG=vmm=debug"), "{line}");
        let line = parameters(|_| Some("x -- y".into()));
        assert_eq!(line, PARAMETERS);
    }

    #[test]
    fn a_file_in_memory_is_read_by_its_path() {
        let file = in_memory("x", b"kernel").expect("memfd");
        assert_eq!(std::fs::read(path_of(&file)).expect("read"), b"kernel");
    }
}
