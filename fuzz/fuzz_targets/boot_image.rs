//! A kernel file: its unpacking, its place in guest memory, and what is read from it.

#![cfg_attr(fuzzing, no_main)]

use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use introspect::{Btf, Gva, KernelImage, KernelLayout, PatchSites, SymbolTable, kallsyms};
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vmm::boot::synthetic::{Packer, Segment, bzimage, elf};
use vmm::boot::{BootMethod, BootRequest, KernelFile, LoadedKernel, prepare};

const RAM_BYTES: usize = 8 << 20;
const TEXT: u64 = 0xffff_ffff_8100_0000;
/// The largest kernel that is searched for symbols: a payload of some bytes unpacks to 512 MiB.
const SEARCHED_BYTES: usize = 1 << 20;

/// What the file is, and the changes to it.
#[derive(Arbitrary, Debug)]
struct Case {
    format: Format,
    /// To the ELF file, before it is packed.
    kernel: Vec<Damage>,
    /// To the file.
    file: Vec<Damage>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Format {
    Elf,
    Gzip,
    Bzip2,
    Xz,
    Lzma,
    Lz4,
    Zstd,
}

impl Format {
    fn packer(self) -> Option<Packer> {
        Some(match self {
            Self::Elf => return None,
            Self::Gzip => Packer::Gzip,
            Self::Bzip2 => Packer::Bzip2,
            Self::Xz => Packer::Xz,
            Self::Lzma => Packer::Lzma,
            Self::Lz4 => Packer::Lz4,
            Self::Zstd => Packer::Zstd,
        })
    }
}

fuzz_target!(|case: Case| {
    let is_booted = boot(case.bytes());
    let is_whole = case.kernel.is_empty() && case.file.is_empty();
    assert!(is_booted || !is_whole, "a valid kernel is refused");
});

/// Loads the kernel in each way that its format has, and reads it. Whether a direct boot is possible.
fn boot(file: Vec<u8>) -> bool {
    let Ok(kernel) = KernelFile::from_bytes("kernel", file) else {
        return false;
    };
    load(&kernel, BootMethod::BzImage, &[]);
    let Ok(vmlinux) = kernel.vmlinux() else {
        return false;
    };
    read(&vmlinux);
    load(&kernel, BootMethod::Direct, &vmlinux)
}

impl Case {
    fn bytes(&self) -> Vec<u8> {
        let mut text = b"Linux version 6.1.0-fuzz (somebody@example) #1 SMP\n\0".to_vec();
        text.resize(0x400, 0x90);
        let segments = [
            Segment {
                paddr: 0x10_0000,
                vaddr: TEXT,
                bytes: &text,
                memsz: 0x1000,
            },
            Segment {
                paddr: 0x20_0000,
                vaddr: 0x1000,
                bytes: b"data",
                memsz: 0x3000,
            },
        ];
        let mut file = elf(0x10_0000, &segments);
        damage(&mut file, &self.kernel);
        if let Some(packer) = self.format.packer() {
            file = bzimage(&packer.pack(&file));
        }
        damage(&mut file, &self.file);
        file
    }
}

fn damage(file: &mut [u8], changes: &[Damage]) {
    changes.iter().for_each(|change| change.apply(file, 0));
}

fn load(kernel: &KernelFile, method: BootMethod, vmlinux: &[u8]) -> bool {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM_BYTES)]);
    let request = BootRequest {
        kernel,
        vmlinux,
        method,
        initrd: Some(b"initrd"),
        cmdline: "console=ttyS0",
        vcpus: 2,
        ram_bytes: RAM_BYTES as u64,
    };
    let Ok(prepared) = prepare(&memory.expect("memory"), &request) else {
        return false;
    };
    let LoadedKernel { ranges, end, .. } = prepared.kernel;
    assert!(end.0 <= RAM_BYTES as u64, "{end:?}");
    assert!(ranges.iter().all(|range| range.end() <= end), "{ranges:?}");
    let initrd = prepared.initrd.expect("an initrd");
    assert!(
        initrd.start >= end && initrd.end().0 <= RAM_BYTES as u64,
        "{initrd:?}"
    );
    true
}

fn read(vmlinux: &[u8]) {
    if vmlinux.len() > SEARCHED_BYTES {
        return;
    }
    let Ok(image) = KernelImage::parse(vmlinux) else {
        return;
    };
    let (base, range) = (image.link_virtual_base(), image.virtual_range());
    let _ = (
        image.physical_range(),
        image.link_physical_base(),
        image.banner(),
    );
    for address in [
        base,
        range.start,
        range.end,
        Gva(TEXT + 0x20),
        Gva(u64::MAX),
    ] {
        let _ = image.to_physical(address).map(|gpa| image.to_virtual(gpa));
        let _ = image.bytes_at(address, 16);
    }
    let symbols = kallsyms::from_image(&image).unwrap_or_else(|_| SymbolTable::default());
    let _ = KernelLayout::from_symbols(&symbols);
    let _ = Btf::from_image(&image, &symbols);
    let _ = PatchSites::read(&image, &symbols);
}
