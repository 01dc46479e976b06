//! QEMU's gdbstub with a breakpoint that continues: the time of a hit if another process is asked at each hit, for scale.
//!
//! QEMU's TCG runs the stock guest, without KVM. A minimal client does the work of a debugger at a breakpoint without a condition: the
//! client gets the stop, removes the breakpoint, steps, sets the breakpoint again and continues.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use address::Gva;
use probes::Kernel;
use vmm::boot::KernelFile;

use super::{Measured, Overhead, nanos, stock};
use crate::line::{Line, Timing};
use errors::chain;

/// The way's name in the lines.
pub(super) const WAY: &str = "gdbstub";
const FUNCTION: &str = "__x64_sys_getppid";
const PROGRAM: &str = "qemu-system-x86_64";
const ARGUMENTS: &str = "-nodefaults -no-user-config -display none -no-reboot -machine pc -accel tcg -cpu max -m 256M -S \
                         -gdb stdio";
const CMDLINE: &str = "nokaslr panic=-1 rounds=0";
/// The number of hits before the measurement, and the number of measured hits.
const WARM_UP: usize = 20;
const HITS: usize = 300;

/// A running QEMU, which ends when the value is dropped.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn gdbstub(overhead: &Overhead<'_>) -> Measured {
    let files = overhead.stock.ok_or("no stock kernel")?;
    let image = files.image.ok_or("no packed kernel")?;
    let file = KernelFile::open(files.kernel).map_err(chain)?;
    let vmlinux = file.vmlinux().map_err(chain)?;
    let kernel = Kernel::from_vmlinux(&*vmlinux).map_err(chain)?;
    let function = kernel
        .symbols()
        .lookup(FUNCTION)
        .ok_or_else(|| format!("no {FUNCTION}"))?;
    let mut qemu = start(image, files.initrd)?;
    let mut client = Client::new(&mut qemu)?;
    let at = Breakpoint(function.address);
    client.ask(&at.put())?;
    let mut times = Vec::new();
    client.send("c")?;
    client.await_stop()?;
    for _ in 0..WARM_UP + HITS {
        let began = Instant::now();
        client.ask(&at.take_away())?;
        client.send("s")?;
        client.await_stop()?;
        client.ask(&at.put())?;
        client.send("c")?;
        client.await_stop()?;
        times.push(nanos(began.elapsed()));
    }
    Ok(vec![Line::Timing(Timing {
        backend: overhead.backend,
        guest: stock::NAME.to_owned(),
        way: WAY.to_owned(),
        cpus: 1,
        calls: 1,
        rounds_ns: times.split_off(WARM_UP),
        hits: HITS as u64,
        exits: 0,
    })])
}

fn start(image: &Path, initrd: &Path) -> Result<Qemu, String> {
    let calls = WARM_UP + HITS + 10;
    let child = Command::new(PROGRAM)
        .args(ARGUMENTS.split_ascii_whitespace())
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", &format!("{CMDLINE} calls={calls}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    Ok(Qemu(child.map_err(chain)?))
}

/// Requests about a breakpoint of a single byte.
struct Breakpoint(Gva);

impl Breakpoint {
    fn put(&self) -> String {
        format!("Z0,{:x},1", self.0.0)
    }

    fn take_away(&self) -> String {
        format!("z0,{:x},1", self.0.0)
    }
}

/// Speaks GDB's remote serial protocol.
struct Client {
    to: ChildStdin,
    from: ChildStdout,
}

impl Client {
    fn new(qemu: &mut Qemu) -> Result<Self, String> {
        let (to, from) = (qemu.0.stdin.take(), qemu.0.stdout.take());
        let (to, from) = to.zip(from).ok_or("no pipes")?;
        let mut client = Self { to, from };
        // The reason of the stop; QEMU then knows of a client.
        client.send("?")?;
        client.await_stop()?;
        Ok(client)
    }

    fn send(&mut self, request: &str) -> Result<(), String> {
        let packet = packet(request);
        self.to.write_all(packet.as_bytes()).map_err(chain)?;
        self.to.flush().map_err(chain)?;
        match self.byte()? {
            b'+' => Ok(()),
            other => Err(format!(
                "QEMU answers {request:?} with {:?}",
                char::from(other)
            )),
        }
    }

    /// Sends a request for a change, and expects `OK`.
    fn ask(&mut self, request: &str) -> Result<(), String> {
        self.send(request)?;
        match &*self.receive()? {
            "OK" => Ok(()),
            other => Err(format!("QEMU answers {request:?} with {other:?}")),
        }
    }

    fn await_stop(&mut self) -> Result<(), String> {
        let reply = self.receive()?;
        match reply.get(..3) {
            Some("T05" | "S05") => Ok(()),
            _ => Err(format!("the guest did not stop at a breakpoint: {reply:?}")),
        }
    }

    fn receive(&mut self) -> Result<String, String> {
        while self.byte()? != b'$' {}
        let mut data = String::new();
        loop {
            match self.byte()? {
                b'#' => break,
                byte => data.push(char::from(byte)),
            }
        }
        // The sum of the bytes, unchecked: a pipe changes none.
        self.byte()?;
        self.byte()?;
        self.to.write_all(b"+").map_err(chain)?;
        Ok(data)
    }

    fn byte(&mut self) -> Result<u8, String> {
        let mut byte = [0];
        self.from.read_exact(&mut byte).map_err(chain)?;
        Ok(byte[0])
    }
}

fn packet(request: &str) -> String {
    let sum = request.bytes().fold(0_u8, u8::wrapping_add);
    format!("${request}#{sum:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packets of GDB's manual, and of a real session.
    #[test]
    fn a_packet_has_its_sum() {
        assert_eq!(packet("OK"), "$OK#9a");
        assert_eq!(packet("?"), "$?#3f");
        assert_eq!(packet("s"), "$s#73");
    }
}
