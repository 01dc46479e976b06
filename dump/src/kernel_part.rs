//! The kernel in the guest's memory: where its text and its direct map of RAM are, and its VMCOREINFO.

use address::{Gpa, Gva};
use inspect::KernelView;

use crate::vmcoreinfo::{self, Located};

/// The direct map of kernels that do not choose its address: with page tables of four levels, and of five.
const DIRECT_MAPS: [Gva; 2] = [Gva(0xffff_8880_0000_0000), Gva(0xff11_0000_0000_0000)];
/// The address at which a kernel's image would be with `phys_base` 0, less its physical address: the kernel's `__START_KERNEL_map`.
pub(crate) const START_KERNEL_MAP: Gva = Gva(0xffff_ffff_8000_0000);

/// A contiguous mapping of the kernel's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextMapping {
    /// The first address.
    pub at: Gva,
    /// The guest-physical address.
    pub gpa: Gpa,
    /// The length in bytes.
    pub bytes: u64,
}

/// The parts of a core file that depend on the guest's kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelPart {
    /// The kernel's image, from `_text` to `_end`.
    pub text: Option<TextMapping>,
    /// The address at which the kernel maps guest-physical address 0.
    pub direct_map: Option<Gva>,
    /// The contents of the note VMCOREINFO; empty if nothing is known.
    pub vmcoreinfo: Vec<u8>,
    /// For each missing part a sentence.
    pub remarks: Vec<String>,
}

impl KernelPart {
    /// Finds the parts of `kernel`. `slide` is the distance from the linked to the running address, if known. `translate` walks the kernel's
    /// page tables. `banner` is the kernel's version line.
    pub fn find(
        kernel: &KernelView<'_>,
        slide: Option<i64>,
        translate: &dyn Fn(Gva) -> Option<Gpa>,
        banner: Option<&str>,
    ) -> Self {
        let mut remarks = Vec::new();
        let Some(slide) = slide else {
            remarks.push(
                "the kernel has not reported its running address: the dump has no kernel addresses and no VMCOREINFO".to_owned(),
            );
            return Self {
                remarks,
                ..Self::default()
            };
        };
        let text = text(kernel, translate);
        if text.is_none() {
            remarks.push(
                "the kernel's symbols `_text` and `_end` are missing or not mapped: the dump has no segment for the kernel's text"
                    .to_owned(),
            );
        }
        let direct_map = text.and_then(|text| direct_map(kernel, text.gpa, translate));
        if direct_map.is_none() {
            remarks.push(
                "the kernel's direct map is not known: the segments of RAM have guest-physical addresses only".to_owned(),
            );
        }
        let located = Located {
            slide,
            phys_base: text.map(|text| phys_base(&text)),
        };
        let vmcoreinfo = match vmcoreinfo::read(kernel) {
            Ok(prepared) => vmcoreinfo::completed(prepared, located),
            Err(missing) => {
                remarks.push(format!(
                    "{missing}: hyprobe writes a VMCOREINFO with the kernel's version and place only"
                ));
                vmcoreinfo::completed(vmcoreinfo::smallest(banner), located)
            }
        };
        Self {
            text,
            direct_map,
            vmcoreinfo,
            remarks,
        }
    }
}

fn text(kernel: &KernelView<'_>, translate: &dyn Fn(Gva) -> Option<Gpa>) -> Option<TextMapping> {
    let at = kernel.address_of("_text")?;
    let end = kernel.address_of("_end")?;
    Some(TextMapping {
        at,
        gpa: translate(at)?,
        bytes: end.offset_from(at).filter(|bytes| *bytes > 0)?,
    })
}

/// The kernel's `phys_base`.
fn phys_base(text: &TextMapping) -> i64 {
    let without = text.at.wrapping_sub(START_KERNEL_MAP.0);
    text.gpa.wrapping_sub(without.0).0.cast_signed()
}

/// The address of the direct map, which maps the text at `text`, too.
fn direct_map(
    kernel: &KernelView<'_>,
    text: Gpa,
    translate: &dyn Fn(Gva) -> Option<Gpa>,
) -> Option<Gva> {
    let chosen = kernel.address_of("page_offset_base");
    let chosen = chosen.and_then(|at| kernel.pointer(at).ok());
    let mut candidates = chosen.into_iter().chain(DIRECT_MAPS);
    candidates.find(|base| translate(base.wrapping_add(text.0)) == Some(text))
}

#[cfg(test)]
mod tests {
    use inspect::{KernelMemory, NotReadable};
    use introspect::SymbolTableBuilder;

    use super::*;

    const LINKED: Gva = Gva(0xffff_ffff_8100_0000);
    const SLIDE: i64 = 0x200_0000;
    const TEXT_GPA: Gpa = Gpa(0x700_0000);
    const DIRECT: Gva = Gva(0xffff_9bc0_0000_0000);
    const PREPARED: &[u8] = b"OSRELEASE=6.1.0\nPAGESIZE=4096\n";
    const DATA: u64 = 0x5000;

    /// The kernel's words at offsets from `_text`, and the prepared text in the direct map.
    struct Kernel {
        words: Vec<(u64, u64)>,
    }

    impl KernelMemory for Kernel {
        fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
            let len = buf.len();
            if at == DIRECT.wrapping_add(DATA) && len <= PREPARED.len() {
                buf.copy_from_slice(&PREPARED[..len]);
                return Ok(());
            }
            let offset = at
                .wrapping_sub(LINKED.0)
                .wrapping_sub(SLIDE.cast_unsigned());
            let word = self.words.iter().find(|(known, _)| *known == offset.0);
            let (_, word) = word.filter(|_| len == 8).ok_or(NotReadable { at, len })?;
            buf.copy_from_slice(&word.to_le_bytes());
            Ok(())
        }
    }

    fn find(words: &[(u64, u64)], slide: Option<i64>) -> KernelPart {
        let mut symbols = SymbolTableBuilder::new();
        for (offset, name) in [
            (0, "_text"),
            (0x100, "page_offset_base"),
            (0x108, "vmcoreinfo_data"),
            (0x110, "vmcoreinfo_size"),
            (0x10_0000, "_end"),
        ] {
            symbols.push(LINKED.wrapping_add(offset), 'D', name);
        }
        let symbols = symbols.build();
        let memory = Kernel {
            words: words.to_vec(),
        };
        let view = KernelView::new(&memory, &symbols, None, slide.unwrap_or(0));
        let running = LINKED.wrapping_add(SLIDE.cast_unsigned());
        let translate = |at: Gva| match (at.offset_from(running), at.offset_from(DIRECT)) {
            (Some(offset), _) => Some(TEXT_GPA.wrapping_add(offset)),
            (None, Some(gpa)) => Some(Gpa(gpa)),
            (None, None) => None,
        };
        let banner = Some("Linux version 6.1.0-x (builder) #1");
        KernelPart::find(&view, slide, &translate, banner)
    }

    fn vmcoreinfo_text(part: &KernelPart) -> &str {
        std::str::from_utf8(&part.vmcoreinfo).expect("text")
    }

    #[test]
    fn addresses_and_missing_keys_are_those_of_the_running_kernel() {
        let part = find(
            &[
                (0x100, DIRECT.0),
                (0x108, DIRECT.0 + DATA),
                (0x110, PREPARED.len() as u64),
            ],
            Some(SLIDE),
        );
        assert_eq!(part.remarks, [""; 0]);
        assert_eq!(part.direct_map, Some(DIRECT));
        let text = part.text.expect("the text");
        assert_eq!((text.at.0, text.gpa), (0xffff_ffff_8300_0000, TEXT_GPA));
        assert_eq!(text.bytes, 0x10_0000);
        let phys_base = 0x700_0000 - 0x300_0000;
        let expected = format!(
            "OSRELEASE=6.1.0\nPAGESIZE=4096\nKERNELOFFSET=2000000\nNUMBER(phys_base)={phys_base}\n"
        );
        assert_eq!(vmcoreinfo_text(&part), expected);
    }

    #[test]
    fn kernel_without_prepared_text_gets_the_smallest_one_and_a_remark() {
        let part = find(&[(0x100, DIRECT.0), (0x108, 0), (0x110, 0)], Some(SLIDE));
        assert!(
            vmcoreinfo_text(&part).starts_with("OSRELEASE=6.1.0-x\nPAGESIZE=4096\nKERNELOFFSET=")
        );
        assert_eq!(part.remarks.len(), 1, "{:?}", part.remarks);
    }

    #[test]
    fn wrong_direct_map_is_not_believed() {
        let part = find(&[(0x100, 0x1234_5000)], Some(SLIDE));
        assert_eq!(part.direct_map, None);
        assert_eq!(part.remarks.len(), 2, "{:?}", part.remarks);
    }

    #[test]
    fn kernel_without_an_address_is_left_out() {
        let part = find(&[], None);
        assert_eq!((part.text, part.direct_map), (None, None));
        assert!(part.vmcoreinfo.is_empty());
        assert_eq!(part.remarks.len(), 1);
    }
}
