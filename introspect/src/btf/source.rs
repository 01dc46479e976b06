//! Finding BTF in a kernel image or in guest memory.

use object::{LittleEndian, Object, ObjectSection, read::elf::ElfFile64};

use super::{Btf, BtfError};
use crate::{ImageSource, KernelImage, SymbolTable};

const SECTION: &str = ".BTF";
const START: &str = "__start_BTF";
const STOP: &str = "__stop_BTF";
/// The most bytes between the linker's marks, padding included.
const MAX_BYTES: u64 = 64 << 20;

impl Btf {
    /// The types in the kernel's file, by the section or, when the section headers have been
    /// stripped, by `symbols` at link-time addresses.
    ///
    /// # Errors
    ///
    /// When the kernel has none, or they are not BTF.
    pub fn from_image(image: &KernelImage, symbols: &SymbolTable) -> Result<Self, BtfError> {
        let file = ElfFile64::<LittleEndian>::parse(image.bytes()).map_err(BtfError::Elf)?;
        match file.section_by_name(SECTION) {
            Some(section) => Self::parse(section.data().map_err(BtfError::Elf)?),
            None => Self::from_source(image, symbols),
        }
    }

    /// The types between the linker's marks in `symbols`, which are at link-time addresses; in a
    /// guest's memory they stay for good.
    ///
    /// # Errors
    ///
    /// If the marks are missing, or the bytes between the marks are unreadable or not BTF.
    pub fn from_source(source: &dyn ImageSource, symbols: &SymbolTable) -> Result<Self, BtfError> {
        let address = |name| symbols.address_of(name).ok_or(BtfError::Missing);
        let (start, stop) = (address(START)?, address(STOP)?);
        let bytes = stop.offset_from(start).ok_or(BtfError::Missing)?;
        let len = usize::try_from(bytes)
            .ok()
            .filter(|_| bytes <= MAX_BYTES)
            .ok_or(BtfError::TooLarge { bytes })?;
        let mut blob = vec![0; len];
        source.read_linked(start, &mut blob)?;
        Self::parse(blob)
    }
}
