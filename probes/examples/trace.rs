//! Boots a kernel on this host's KVM and prints what its probes tell:
//! `trace KERNEL INITRD|- CMDLINE CPUS PROBE…`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use events::{Event, EventSink};
use hyprobe_probes::{Kernel, Session, SessionConfig};
use manifest::{ProbeConfig, ProbeSpec, Stealth, WhenFull};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, Host, self_test};

#[derive(Debug)]
struct Print(bool);

impl EventSink for Print {
    fn event(&self, event: Event) {
        match event {
            Event::Hit(hit) if self.0 => println!(
                "hit {} cpu{} {} {:?}",
                hit.probe, hit.vcpu, hit.symbol, hit.args
            ),
            Event::Return(ret) if self.0 => println!(
                "ret {} cpu{} = {} after {} ns",
                ret.probe, ret.vcpu, ret.retval, ret.took_ns
            ),
            Event::Hit(_) | Event::Return(_) => (),
            other => println!("{other:?}"),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initrd, cmdline, cpus, probes @ ..] = arguments.as_slice() else {
        return Err("usage: trace KERNEL INITRD|- CMDLINE CPUS PROBE…".into());
    };
    let host = Host::open()?;
    let facts = self_test(&host)?;
    let file = KernelFile::open(Path::new(kernel))?;
    let vmlinux = file.vmlinux()?;
    let initrd = if initrd == "-" {
        None
    } else {
        Some(std::fs::read(initrd)?)
    };
    let probes = probes
        .iter()
        .map(|probe| probe.parse())
        .collect::<Result<Vec<ProbeSpec>, _>>()?;
    let probes: Vec<ProbeConfig> = probes.into_iter().map(ProbeConfig::from).collect();
    let quiet = std::env::var_os("QUIET").is_some();
    let method = if std::env::var_os("BZIMAGE").is_some() {
        BootMethod::BzImage
    } else {
        BootMethod::Direct
    };
    let config = SessionConfig {
        file: &file,
        vmlinux: &vmlinux,
        kernel: Kernel::from_vmlinux(&*vmlinux)?,
        method,
        initrd: initrd.as_deref(),
        cmdline,
        memory_bytes: 256 << 20,
        cpus: cpus.parse()?,
        probes: &probes,
        injections: &[],
        plant: match std::env::var("PLANT").as_deref() {
            Ok("port") => Some(text::PlantByte::Port),
            Ok("int3") => Some(text::PlantByte::Int3),
            _ => None,
        },
        optimise: true,
        when_full: WhenFull::default(),
        stealth: Stealth::default(),
        console: Console {
            output: Box::new(std::io::stdout()),
            input: None,
        },
        debug_exit: true,
    };
    let session = Session::new(&host, facts, config, Arc::new(Print(!quiet)))?;
    let summary = session.run(Some(Duration::from_secs(100)), "kvm")?;
    println!(
        "{:?} after {:?}",
        summary.guest,
        Duration::from_nanos(summary.ran_ns)
    );
    for probe in summary.probes {
        println!("{probe:?}");
    }
    Ok(())
}
