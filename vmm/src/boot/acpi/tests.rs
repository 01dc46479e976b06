use super::*;

/// The tables as the guest finds them.
struct Tables(Vec<u8>);

impl Tables {
    fn of(vcpus: u8) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        assert_eq!(write_acpi_tables(&memory, vcpus).unwrap(), ACPI_GPA);
        let mut bytes = vec![0; ACPI_MAX_BYTES];
        memory.read_slice(&mut bytes, ACPI_GPA).unwrap();
        Self(bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    /// Reads the table with its address at `at`: checksum good, signature as expected.
    fn at_pointer(&self, at: usize, signature: &[u8]) -> (usize, &[u8]) {
        let start = usize::try_from(self.u64(at) - ACPI_GPA.0).unwrap();
        let length = u32::from_le_bytes(self.0[start + 4..start + 8].try_into().unwrap());
        let table = &self.0[start..start + usize::try_from(length).unwrap()];
        assert_eq!(&table[..4], signature);
        assert_eq!(sum(table), 0);
        (start, table)
    }

    fn xsdt(&self) -> usize {
        assert_eq!(&self.0[..8], b"RSD PTR ");
        assert_eq!((sum(&self.0[..20]), sum(&self.0[..36])), (0, 0));
        self.at_pointer(24, b"XSDT").0
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

fn contains(table: &[u8], bytes: &[u8]) -> bool {
    table.windows(bytes.len()).any(|window| window == bytes)
}

#[test]
fn fadt_is_hardware_reduced_and_names_our_ports() {
    let tables = Tables::of(1);
    let (_, fadt) = tables.at_pointer(tables.xsdt() + 36, b"FACP");
    let flags = u32::from_le_bytes(fadt[112..116].try_into().unwrap());
    assert_eq!(flags & (1 << 20 | 1 << 10), 1 << 20 | 1 << 10);
    assert_eq!(fadt[8], 6);
    let port = |at: usize| u16::from_le_bytes(fadt[at + 4..at + 6].try_into().unwrap());
    assert_eq!(
        (fadt[116], port(116), fadt[128]),
        (1, ACPI_RESET_PORT, ACPI_RESET_VALUE)
    );
    assert_eq!((fadt[244], port(244)), (1, ACPI_SLEEP_CONTROL_PORT));
    assert_eq!((fadt[256], port(256)), (1, ACPI_SLEEP_STATUS_PORT));
}

#[test]
fn madt_has_every_cpu_and_one_ioapic() {
    let tables = Tables::of(3);
    let (_, madt) = tables.at_pointer(tables.xsdt() + 44, b"APIC");
    // No PC/AT PICs.
    assert_eq!(madt[40..44], [0; 4]);
    for cpu in 0..3 {
        let at = 44 + 8 * usize::from(cpu);
        assert_eq!(madt[at..at + 8], [0, 8, cpu, cpu, 1, 0, 0, 0]);
    }
    assert_eq!(madt[68..], [1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
}

#[test]
fn dsdt_has_the_ports_and_the_way_off() {
    let tables = Tables::of(2);
    let (fadt, _) = tables.at_pointer(tables.xsdt() + 36, b"FACP");
    let (_, dsdt) = tables.at_pointer(fadt + 140, b"DSDT");
    assert!(contains(dsdt, b"_S5_\x12\x04\x01\x0a\x05"));
    assert!(contains(dsdt, b"C000") && contains(dsdt, b"C001") && !contains(dsdt, b"C002"));
    // The clock: IO 0x70–0x71 and no interrupt.
    assert!(contains(dsdt, &[0x47, 1, 0x70, 0, 0x70, 0, 1, 2, 0x79]));
    // IO 0x3f8–0x3ff; edge-triggered, active-high, exclusive GSI 4.
    assert!(contains(dsdt, &[0x47, 1, 0xf8, 3, 0xf8, 3, 1, 8]));
    assert!(contains(dsdt, &[0x89, 6, 0, 0b0011, 1, 4, 0, 0, 0]));
}

#[test]
fn the_largest_machine_fits() {
    let tables = Tables::of(MAX_VCPUS);
    let (_, madt) = tables.at_pointer(tables.xsdt() + 44, b"APIC");
    assert_eq!(madt.len(), 44 + 254 * 8 + 12);
}

#[test]
fn impossible_numbers_of_cpus_are_refused() {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    for vcpus in [0, 255] {
        let error = write_acpi_tables(&memory, vcpus).unwrap_err();
        assert!(matches!(error, AcpiError::Vcpus { .. }), "{error}");
    }
}
