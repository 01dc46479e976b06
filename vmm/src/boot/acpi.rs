//! The ACPI tables: hardware-reduced, with neither PIC nor PIT nor PM timer to look for, and no
//! event block to poll.
//!
//! RSDP → XSDT → { FADT → DSDT, MADT }. The DSDT names the processors, the sleep state S5,
//! COM1 and the CMOS clock.

use acpi_tables::aml::{Device, EISAName, IO, Interrupt, Name, Package, ResourceTemplate};
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use super::layout::{ACPI_GPA, ACPI_MAX_BYTES, IOAPIC_GPA, LAPIC_GPA};
use crate::devices::{
    ACPI_RESET_PORT, ACPI_RESET_VALUE, ACPI_S5_SLEEP_TYPE, ACPI_SLEEP_CONTROL_PORT,
    ACPI_SLEEP_STATUS_PORT, CMOS_INDEX_PORT, CMOS_PORTS, COM_PORTS, COM1_GSI, COM1_PORT,
};

/// Largest number of vCPUs in the tables: APIC ids are a single byte, and 0xff addresses all APICs.
pub const MAX_VCPUS: u8 = 254;

const OEM_ID: [u8; 6] = *b"HYPROB";
const OEM_TABLE_ID: [u8; 8] = *b"HYPROBE ";
const OEM_REVISION: u32 = 1;
const HYPERVISOR_ID: [u8; 8] = *b"HYPROBE ";
/// Tables are aligned for readability of a dump; ACPI asks for less.
const TABLE_ALIGN_BYTES: usize = 64;
const DSDT_REVISION: u8 = 2;
const SDT_HEADER_BYTES: u32 = 36;
/// FADT boot flags: there is no VGA. The flags for legacy devices and for an 8042 are clear: the
/// kernel then spends no time on probing for the devices.
const BOOT_ARCH_NO_VGA: u16 = 1 << 2;
/// The CMOS register of the century.
const CMOS_CENTURY: u8 = 0x32;
/// The kernel changes the ids to differ from the CPUs' ids. The tables start with the kernel's choice.
const IOAPIC_ID: u8 = 0;

/// Why the ACPI tables could not be written.
#[derive(Debug, Error)]
pub enum AcpiError {
    /// No or too many vCPUs.
    #[error("{vcpus} vCPUs cannot be described, only 1 to {MAX_VCPUS}")]
    Vcpus {
        /// The number asked for.
        vcpus: u8,
    },
    /// The guest has no RAM at the tables' address.
    #[error("cannot write the ACPI tables to guest-physical 0x{gpa:x}; give the guest more memory")]
    Write {
        /// The address.
        gpa: u64,
        /// The cause.
        source: GuestMemoryError,
    },
}

/// Writes the ACPI tables for a machine with `vcpus` CPUs, whose APIC ids count from zero.
///
/// Returns the address of the RSDP.
///
/// # Errors
///
/// When the number of vCPUs is impossible, or the guest has no RAM at [`ACPI_GPA`].
pub fn write_acpi_tables(memory: &GuestMemoryMmap, vcpus: u8) -> Result<GuestAddress, AcpiError> {
    if !(1..=MAX_VCPUS).contains(&vcpus) {
        return Err(AcpiError::Vcpus { vcpus });
    }
    let mut area = TableArea::new();
    let dsdt = area.append(dsdt(vcpus).as_slice());
    let fadt = area.append(&bytes_of(&fadt(dsdt)));
    let madt = area.append(&bytes_of(&madt(vcpus)));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt.0);
    xsdt.add_entry(madt.0);
    let xsdt = area.append(&bytes_of(&xsdt));
    let image = area.finish(&bytes_of(&Rsdp::new(OEM_ID, xsdt.0)));
    // 254 processors make a DSDT of 13 KiB.
    assert!(
        image.len() <= ACPI_MAX_BYTES,
        "ACPI tables outgrew their area"
    );
    memory
        .write_slice(&image, ACPI_GPA)
        .map_err(|source| AcpiError::Write {
            gpa: ACPI_GPA.0,
            source,
        })?;
    Ok(ACPI_GPA)
}

/// The tables' bytes, with room for the RSDP at the front.
struct TableArea {
    bytes: Vec<u8>,
}

impl TableArea {
    fn new() -> Self {
        Self {
            bytes: vec![0; Rsdp::len().next_multiple_of(TABLE_ALIGN_BYTES)],
        }
    }

    fn append(&mut self, table: &[u8]) -> GuestAddress {
        let offset = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        self.bytes.extend_from_slice(table);
        self.bytes
            .resize(self.bytes.len().next_multiple_of(TABLE_ALIGN_BYTES), 0);
        GuestAddress(ACPI_GPA.0 + offset)
    }

    fn finish(mut self, rsdp: &[u8]) -> Vec<u8> {
        self.bytes[..rsdp.len()].copy_from_slice(rsdp);
        self.bytes
    }
}

fn fadt(dsdt: GuestAddress) -> impl Aml {
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt.0)
        .flag(Flags::Wbinvd)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless)
        .flag(Flags::HwReducedAcpi)
        .preferred_pm_profile(PmProfile::EnterpriseServer);
    fadt.iapc_boot_arch = BOOT_ARCH_NO_VGA.into();
    fadt.century = CMOS_CENTURY;
    fadt.reset_reg = io_register(ACPI_RESET_PORT);
    fadt.reset_value = ACPI_RESET_VALUE;
    fadt.sleep_control_reg = io_register(ACPI_SLEEP_CONTROL_PORT);
    fadt.sleep_status_reg = io_register(ACPI_SLEEP_STATUS_PORT);
    fadt.hypervisor_vendor_identity = u64::from_le_bytes(HYPERVISOR_ID).into();
    fadt.finalize()
}

fn io_register(port: u16) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        u64::from(port),
    )
}

fn madt(vcpus: u8) -> impl Aml {
    let lapic = LocalInterruptController::Address(low_address(LAPIC_GPA));
    let mut madt = MADT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION, lapic);
    for id in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(IOAPIC_ID, low_address(IOAPIC_GPA), 0));
    madt
}

fn low_address(gpa: GuestAddress) -> u32 {
    u32::try_from(gpa.0).unwrap_or_default()
}

fn dsdt(vcpus: u8) -> Sdt {
    let mut aml = Vec::new();
    for id in 0..vcpus {
        let hid = Name::new("_HID".into(), &"ACPI0007");
        let uid = Name::new("_UID".into(), &id);
        let path = format!("_SB_.C{id:03X}");
        Device::new(path.as_str().into(), vec![&hid, &uid]).to_aml_bytes(&mut aml);
    }
    let s5 = Package::new(vec![&ACPI_S5_SLEEP_TYPE]);
    Name::new("_S5_".into(), &s5).to_aml_bytes(&mut aml);
    com1(&mut aml);
    rtc(&mut aml);

    let mut dsdt = Sdt::new(
        *b"DSDT",
        SDT_HEADER_BYTES,
        DSDT_REVISION,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    );
    dsdt.append_slice(&aml);
    dsdt
}

fn com1(aml: &mut dyn AmlSink) {
    let ports = IO::new(COM1_PORT, COM1_PORT, 1, COM_PORTS);
    // Consumer, edge, active high, exclusive.
    let irq = Interrupt::new(true, true, false, false, u32::from(COM1_GSI));
    let resources = ResourceTemplate::new(vec![&ports, &irq]);
    let hid = EISAName::new("PNP0501");
    let hid = Name::new("_HID".into(), &hid);
    let uid = Name::new("_UID".into(), &0u8);
    let crs = Name::new("_CRS".into(), &resources);
    Device::new("_SB_.COM1".into(), vec![&hid, &uid, &crs]).to_aml_bytes(aml);
}

/// The CMOS clock. If the DSDT lacks the clock, the kernel makes up a clock of its own, with an
/// interrupt that does not exist.
fn rtc(aml: &mut dyn AmlSink) {
    let ports = IO::new(CMOS_INDEX_PORT, CMOS_INDEX_PORT, 1, CMOS_PORTS);
    let resources = ResourceTemplate::new(vec![&ports]);
    let hid = EISAName::new("PNP0B00");
    let hid = Name::new("_HID".into(), &hid);
    let crs = Name::new("_CRS".into(), &resources);
    Device::new("_SB_.RTC_".into(), vec![&hid, &crs]).to_aml_bytes(aml);
}

fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
