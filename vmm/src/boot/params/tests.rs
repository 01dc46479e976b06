use super::*;
use crate::boot::header::SetupHeader;

const MIB: u64 = 1 << 20;

fn kernel(end: u64) -> LoadedKernel {
    let range = RamRange {
        start: HIGH_RAM_GPA,
        bytes: end - HIGH_RAM_GPA.0,
    };
    LoadedKernel {
        entry: HIGH_RAM_GPA,
        ranges: vec![range],
        end: GuestAddress(end),
        header: SetupHeader::for_elf(),
    }
}

fn params<'a>(kernel: &'a LoadedKernel, cmdline: &'a str, ram_bytes: u64) -> BootParams<'a> {
    BootParams {
        kernel,
        cmdline,
        initrd: None,
        rsdp: ACPI_GPA,
        ram_bytes,
    }
}

fn memory(ram_bytes: u64) -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&ram_regions(ram_bytes)).unwrap()
}

fn u32_at(memory: &GuestMemoryMmap, offset: u64) -> u32 {
    memory
        .read_obj(GuestAddress(ZERO_PAGE_GPA.0 + offset))
        .unwrap()
}

#[test]
fn zero_page_has_the_addresses_of_all_parts() {
    let memory = memory(64 * MIB);
    let kernel = kernel(16 * MIB);
    let initrd = vec![7; 5000];
    let mut params = params(&kernel, "console=ttyS0", 64 * MIB);
    params.initrd = Some(&initrd);
    let placed = write_boot_params(&memory, &params).unwrap();

    let start = 64 * MIB - 2 * PAGE_BYTES;
    assert_eq!(
        placed.initrd,
        Some(RamRange {
            start: GuestAddress(start),
            bytes: 5000
        })
    );
    assert_eq!(
        memory.read_obj::<u8>(GuestAddress(start + 4999)).unwrap(),
        7
    );
    assert_eq!(u32_at(&memory, 0x218), u32::try_from(start).unwrap());
    assert_eq!(u32_at(&memory, 0x21c), 5000);
    assert_eq!(u32_at(&memory, 0x228), 0x2_0000);
    assert_eq!(u32_at(&memory, 0x070), 0xe_0000);
    assert_eq!(u32_at(&memory, 0x202), u32::from_le_bytes(*b"HdrS"));
    assert_eq!(u32_at(&memory, 0x210) & 0xffff, 0x01ff);
    let mut cmdline = [0xff; 14];
    memory.read_slice(&mut cmdline, CMDLINE_GPA).unwrap();
    assert_eq!(&cmdline, b"console=ttyS0\0");
}

#[test]
fn memory_map_lists_usable_and_reserved_ranges() {
    let memory = memory(64 * MIB);
    let kernel = kernel(16 * MIB);
    write_boot_params(&memory, &params(&kernel, "", 64 * MIB)).unwrap();
    assert_eq!(u32_at(&memory, 0x1e8) & 0xff, 4);
    let entry = |n: u64| {
        let at = ZERO_PAGE_GPA.0 + 0x2d0 + 20 * n;
        let start: u64 = memory.read_obj(GuestAddress(at)).unwrap();
        let bytes: u64 = memory.read_obj(GuestAddress(at + 8)).unwrap();
        let kind: u32 = memory.read_obj(GuestAddress(at + 16)).unwrap();
        (start, bytes, kind)
    };
    assert_eq!(entry(0), (0, 0x9_fc00, E820_RAM));
    assert_eq!(entry(1), (0x9_fc00, 0x400, E820_RESERVED));
    assert_eq!(entry(2), (0xe_0000, 0x2_0000, E820_RESERVED));
    assert_eq!(entry(3), (MIB, 63 * MIB, E820_RAM));
}

#[test]
fn memory_above_the_gap_is_listed() {
    let map = e820_map(5 << 30);
    let high = RamRange {
        start: GuestAddress(4 << 30),
        bytes: 2 << 30,
    };
    assert_eq!(map.last(), Some(&(high, E820_RAM)));
    let below = RamRange {
        start: HIGH_RAM_GPA,
        bytes: (3 << 30) - MIB,
    };
    assert!(map.contains(&(below, E820_RAM)));
}

#[test]
fn an_initrd_stays_below_the_kernels_limit() {
    let kernel = kernel(16 * MIB);
    let place = place_initrd(&params(&kernel, "", 4 << 30), 0x1000).unwrap();
    assert_eq!(place.end(), GuestAddress(0x3800_0000));
}

#[test]
fn initrd_that_does_not_fit_is_refused_with_the_needed_size() {
    let kernel = kernel(16 * MIB);
    let error = place_initrd(&params(&kernel, "", 20 * MIB), 5 << 20).unwrap_err();
    assert!(error.to_string().contains("at least 22 MiB"), "{error}");
    assert!(place_initrd(&params(&kernel, "", 21 * MIB), 5 << 20).is_ok());
}

#[test]
fn an_empty_initrd_is_refused() {
    let kernel = kernel(16 * MIB);
    let error = place_initrd(&params(&kernel, "", 20 * MIB), 0).unwrap_err();
    assert!(matches!(error, ParamsError::InitrdEmpty));
}

#[test]
fn unusable_command_lines_are_refused() {
    let kernel = kernel(16 * MIB);
    let memory = memory(32 * MIB);
    let long = "x".repeat(2048);
    let error = write_boot_params(&memory, &params(&kernel, &long, 32 * MIB)).unwrap_err();
    assert!(
        matches!(
            error,
            ParamsError::CmdlineTooLong {
                bytes: 2048,
                max: 2047
            }
        ),
        "{error}"
    );
    assert!(write_boot_params(&memory, &params(&kernel, &long[1..], 32 * MIB)).is_ok());
    let error = write_boot_params(&memory, &params(&kernel, "a\0b", 32 * MIB)).unwrap_err();
    assert!(
        matches!(error, ParamsError::CmdlineNul { at: 1 }),
        "{error}"
    );
}

#[test]
fn too_little_memory_is_an_error() {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
    let error = write_boot_params(&memory, &params(&kernel(2 * MIB), "", 0x1000)).unwrap_err();
    assert!(
        matches!(error, ParamsError::Write { gpa: 0x2_0000, .. }),
        "{error}"
    );
}
