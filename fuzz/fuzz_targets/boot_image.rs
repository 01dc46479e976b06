//! Fuzz target for a kernel file: unpacking, loading into guest memory, and reading of symbols, types and patch sites.

#![cfg_attr(fuzzing, no_main)]

use std::sync::LazyLock;

use address::Gva;
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, Symbols, fuzz_target, kernel_file};
use introspect::patchsites::synthetic::TEXT;
use introspect::{Btf, KernelImage, KernelLayout, Modules, PatchSites, kallsyms};
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vmm::boot::synthetic::{Packer, bzimage};
use vmm::boot::{BootMethod, BootRequest, KernelFile, LoadedKernel, prepare};

const RAM_BYTES: usize = 8 << 20;
/// Maximum size of a kernel for the search for symbols: a payload of some bytes unpacks to 512 MiB.
const SEARCHED_BYTES: usize = 1 << 20;

/// The symbols of [`KERNELS`].
const SYMBOLS: [Symbols; 2] = [Symbols::Kallsyms, Symbols::Sections];
static KERNELS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| SYMBOLS.map(kernel_file));
/// The files of the undamaged kernels: packing takes longer than all the rest.
static PACKED: LazyLock<Vec<(Packer, Symbols, Vec<u8>)>> = LazyLock::new(|| {
    let packers = Packer::ALL.into_iter();
    let pairs = packers.flat_map(|packer| {
        SYMBOLS
            .into_iter()
            .zip(&*KERNELS)
            .map(move |pair| (packer, pair))
    });
    pairs
        .map(|(packer, (symbols, kernel))| (packer, symbols, bzimage(&packer.pack(kernel))))
        .collect()
});

/// The format of the file, and the changes to the file.
#[derive(Arbitrary, Debug)]
struct Case {
    format: Format,
    /// Whether sections hold the kernel's symbols and types.
    has_sections: bool,
    /// Changes to the ELF file before the packing.
    kernel: Vec<Damage>,
    /// Changes to the finished file.
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
    let is_accepted = boot(case.bytes());
    let is_whole = case.kernel.is_empty() && case.file.is_empty();
    assert!(is_accepted || !is_whole, "a valid kernel is refused");
});

/// Loads the kernel with each boot method of the format, and reads the kernel. Returns whether a direct boot is possible and all data are
/// found.
fn boot(file: Vec<u8>) -> bool {
    let Ok(kernel) = KernelFile::from_bytes("kernel", file) else {
        return false;
    };
    load(&kernel, BootMethod::BzImage, &[]);
    let Ok(vmlinux) = kernel.vmlinux() else {
        return false;
    };
    let is_read = read(&vmlinux);
    load(&kernel, BootMethod::Direct, &vmlinux) && is_read
}

impl Case {
    fn bytes(&self) -> Vec<u8> {
        let symbols = if self.has_sections {
            Symbols::Sections
        } else {
            Symbols::Kallsyms
        };
        let mut file = match (self.format.packer(), self.kernel.is_empty()) {
            (None, _) => self.damaged_kernel(symbols),
            (Some(packer), false) => bzimage(&packer.pack(&self.damaged_kernel(symbols))),
            (Some(packer), true) => {
                let packed = PACKED
                    .iter()
                    .find(|known| (known.0, known.1) == (packer, symbols));
                packed.expect("all pairs").2.clone()
            }
        };
        damage(&mut file, &self.file);
        file
    }

    fn damaged_kernel(&self, symbols: Symbols) -> Vec<u8> {
        let mut kernel = match symbols {
            Symbols::Kallsyms => KERNELS[0].clone(),
            Symbols::Sections => KERNELS[1].clone(),
        };
        damage(&mut kernel, &self.kernel);
        kernel
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

/// Whether the kernel has a banner, symbols, text, types, modules and patch sites.
fn read(vmlinux: &[u8]) -> bool {
    if vmlinux.len() > SEARCHED_BYTES {
        return false;
    }
    let Ok(image) = KernelImage::parse(vmlinux) else {
        return false;
    };
    let (base, range) = (image.link_virtual_base(), image.virtual_range());
    let _ = (image.physical_range(), image.link_physical_base());
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
    let symbols = kallsyms::from_image(&image).unwrap_or_default();
    let layout = KernelLayout::from_symbols(&symbols);
    let types = Btf::from_image(&image, &symbols);
    let modules = types.map(|types| Modules::new(&types).is_ok());
    let sites = PatchSites::read(&image, &symbols);
    image.banner().is_some() && layout.is_some() && modules.unwrap_or(false) && !sites.is_empty()
}
