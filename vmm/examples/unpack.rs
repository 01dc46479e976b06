//! Writes the ELF vmlinux of a bzImage: `unpack VMLINUZ VMLINUX`.

use std::path::Path;

use hyprobe_vmm::boot::KernelFile;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = arguments.as_slice() else {
        return Err("usage: unpack VMLINUZ VMLINUX".into());
    };
    std::fs::write(to, KernelFile::open(Path::new(from))?.vmlinux()?)?;
    Ok(())
}
