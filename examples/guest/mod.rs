//! The shared part of the examples: boots the kernel and initrd named on the command line with some probes, until the guest ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use events::{Event, EventSink};
use manifest::{ProbeConfig, ProbeSpec, Stealth, WhenFull};
use probes::{EngineAction, Kernel, Session, SessionConfig};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, Host, self_test};

/// The handlers print; events are not needed.
#[derive(Debug)]
struct Silent;

impl EventSink for Silent {
    fn event(&self, _event: Event) {}
}

/// Boots `KERNEL INITRD` on this host's KVM with these probes, and prints how often each was hit.
pub(crate) fn run(probes: &[(&str, EngineAction)]) -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initrd] = arguments.as_slice() else {
        return Err("usage: KERNEL INITRD".into());
    };
    let host = Host::open()?;
    let facts = self_test(&host)?;
    let file = KernelFile::open(Path::new(kernel))?;
    let vmlinux = file.vmlinux()?;
    let probes = probes
        .iter()
        .map(|(spec, action)| {
            let probe = ProbeConfig::from(spec.parse::<ProbeSpec>()?);
            Ok(probe.with_action(action.clone()))
        })
        .collect::<Result<Vec<ProbeConfig<EngineAction>>, manifest::SpecError>>()?;
    let session = Session::new(
        &host,
        facts,
        SessionConfig {
            file: &file,
            vmlinux: &vmlinux,
            kernel: Kernel::from_vmlinux(&*vmlinux)?,
            method: BootMethod::Direct,
            initrd: Some(&std::fs::read(initrd)?),
            cmdline: "console=ttyS0 loglevel=3 panic=-1",
            memory_bytes: 256 << 20,
            cpus: 2,
            probes: &probes,
            injections: &[],
            plant: None,
            optimise: true,
            when_full: WhenFull::default(),
            stealth: Stealth::default(),
            console: Console {
                output: Box::new(std::io::stderr()),
                input: None,
            },
            debug_exit: false,
        },
        Arc::new(Silent),
    )?;
    let summary = session.run(Some(Duration::from_secs(120)), "kvm")?;
    for probe in summary.probes {
        println!("{}: {} hits", probe.probe, probe.hits);
    }
    Ok(())
}
