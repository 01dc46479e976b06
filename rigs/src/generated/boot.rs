//! A boot of the test guest with a program.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use address::Gva;
use errors::chain;
use events::{Event, EventSink, Registers, Summary};
use guest_images::testguest::Outcome;
use manifest::{GuestEnd, Location, ProbeConfig, ProbeKind, ProbeSpec, WhenFull};
use probes::{Kernel, Session, SessionConfig};
use vm_memory::{Bytes, GuestAddress};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, Host, HostFacts, Int3Delivery};

use super::program::Program;
use super::record::{How, RECORD_BYTES, Record};
use crate::way::Way;

const MEMORY_BYTES: u64 = 64 << 20;

/// The output of a running guest. Clones share the output.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<SeenInner>>);

#[derive(Debug, Default)]
struct SeenInner {
    told: BTreeMap<u64, (u64, Option<Registers>)>,
    console: Vec<u8>,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, SeenInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for Seen {
    fn event(&self, event: Event) {
        let mut seen = self.lock();
        match event {
            Event::Hit(hit) => {
                let told = seen.told.entry(hit.ip.0).or_default();
                told.0 += 1;
                told.1 = Some(hit.regs);
            }
            // A note about a probe shows in the probe's hits, too.
            Event::Note(_) | Event::Return(_) | Event::Summary(_) => (),
        }
    }
}

impl Write for Seen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().console.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The KVM and the test guest to boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Booter<'a> {
    pub(super) host: &'a Host,
    pub(super) facts: HostFacts,
    /// The test guest with the program's code.
    pub(super) guest: &'a [u8],
    pub(super) timeout: Duration,
}

/// The result of a boot.
#[derive(Debug)]
pub(super) struct Booted {
    records: Vec<u8>,
    /// How the guest ended, if not well.
    pub(super) bad_end: Option<String>,
    pub(super) summary: Summary,
    /// For the address of each probe: the number of reported hits, and the registers of the last hit.
    pub(super) told: BTreeMap<u64, (u64, Option<Registers>)>,
}

impl Booter<'_> {
    /// Whether KVM interprets the guest's kernel: the interpreter has no AVX.
    fn interprets(&self) -> bool {
        self.facts.int3 == Int3Delivery::EmulationFailure
    }

    /// Boots and waits for the end. An error is a failure of the machine, not of the guest.
    pub(super) fn boot(
        &self,
        program: &Program,
        probes: &[Gva],
        way: Option<Way>,
    ) -> Result<Booted, String> {
        let kernel = Kernel::from_vmlinux(self.guest).map_err(chain)?;
        let initrd_address = kernel.symbols().lookup("initrd_address");
        let initrd_address = initrd_address.ok_or("the test guest has no initrd_address")?;
        let file = KernelFile::from_bytes("testguest", self.guest.to_vec()).map_err(chain)?;
        let initrd = program.records();
        let probes: Vec<ProbeConfig> = probes
            .iter()
            .map(|at| {
                ProbeConfig::from(ProbeSpec {
                    kind: ProbeKind::Kprobe,
                    module: None,
                    location: Location::Address(*at),
                })
            })
            .collect();
        let seen = Seen::default();
        let config = SessionConfig {
            file: &file,
            vmlinux: self.guest,
            kernel,
            method: BootMethod::Direct,
            initrd: Some(&initrd),
            cmdline: &format!("run=generated={}", u8::from(!self.interprets())),
            memory_bytes: MEMORY_BYTES,
            cpus: 1,
            probes: &probes,
            injections: &[],
            plant: way.and_then(Way::byte),
            optimise: true,
            when_full: WhenFull::default(),
            stealth: way.map(Way::stealth).unwrap_or_default(),
            console: Console {
                output: Box::new(seen.clone()),
                input: None,
            },
            debug_exit: true,
        };
        let session =
            Session::new(self.host, self.facts, config, Arc::new(seen.clone())).map_err(chain)?;
        let control = session.control();
        let summary = session.run(Some(self.timeout), "kvm").map_err(chain)?;
        let mut address = [0; 4];
        let mut records = vec![0; initrd.len()];
        let memory = control.memory();
        memory
            .read_slice(&mut address, GuestAddress(initrd_address.address.0))
            .map_err(chain)?;
        memory
            .read_slice(
                &mut records,
                GuestAddress(u32::from_le_bytes(address).into()),
            )
            .map_err(chain)?;
        let seen = std::mem::take(&mut *seen.lock());
        let console = String::from_utf8_lossy(&seen.console);
        let bad_end = bad_end(&summary, &console);
        Ok(Booted {
            records,
            bad_end,
            summary,
            told: seen.told,
        })
    }
}

impl Booted {
    pub(super) fn record(&self, number: usize) -> Record<'_> {
        Record(&self.records[number * RECORD_BYTES..][..RECORD_BYTES])
    }

    /// The number of the snippet that had begun and had not ended.
    pub(super) fn running(&self) -> Option<usize> {
        (0..self.records.len() / RECORD_BYTES)
            .find(|number| self.record(*number).how() == How::Running)
    }
}

fn bad_end(summary: &Summary, console: &str) -> Option<String> {
    let guest = &summary.guest;
    let outcome = Outcome::from_console(console);
    if guest.end == GuestEnd::Exit && guest.detail.as_deref() == Some("0") && outcome.is_good() {
        return None;
    }
    let detail = guest.detail.as_deref().unwrap_or("");
    let last = console.lines().next_back().unwrap_or("nothing");
    Some(format!(
        "{:?} {detail}; the guest said last: {last}",
        guest.end
    ))
}
