//! Boots a kernel without probes: `boot KERNEL [INITRD [CMDLINE]]`. First prints the facts about the host.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyprobe_vmm::boot::{BootMethod, KernelFile};
use hyprobe_vmm::{
    Console, Host, Int3Exits, Machine, MachineConfig, NoTraps, TrapHandler, self_test,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let host = Host::open()?;
    let facts = self_test(&host)?;
    println!("{facts:#?}");
    let Some(kernel) = arguments.next() else {
        return Ok(());
    };
    let kernel = KernelFile::open(Path::new(&kernel))?;
    let vmlinux = kernel.vmlinux()?;
    let initrd = arguments.next().map(std::fs::read).transpose()?;
    let cmdline = arguments
        .next()
        .unwrap_or_else(|| "console=ttyS0 panic=-1".to_owned());
    let config = MachineConfig {
        kernel: &kernel,
        vmlinux: &vmlinux,
        method: BootMethod::Direct,
        initrd: initrd.as_deref(),
        cmdline: &cmdline,
        memory_bytes: 256 << 20,
        cpus: 2,
        console: Console {
            output: Box::new(std::io::stdout()),
            input: None,
        },
        debug_exit: true,
        int3: Int3Exits::Alone,
    };
    let (mut machine, _) = Machine::new(&host, facts, config)?;
    let handler: Arc<dyn TrapHandler> = Arc::new(NoTraps);
    machine.start(&handler)?;
    println!("{:?}", machine.wait(Some(Duration::from_secs(120))));
    Ok(())
}
