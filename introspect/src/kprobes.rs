//! The kernel's descriptions of its own optimised kprobes.
//!
//! If the instructions allow, the kernel optimises a kprobe: five bytes of text, possibly several
//! instructions, become a jump to a copy of the instructions. To watch one of these instructions,
//! hyprobe has to know the range.

use crate::btf::Btf;

/// Offsets in `struct optimized_kprobe`, in bytes, of members with 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptimisedLayout {
    /// The probed address.
    pub address: u64,
    /// The number of bytes of instructions displaced by the jump.
    pub size: u64,
    /// The next kprobe waiting for optimisation: the address of that kprobe's `next` member, or of
    /// the list's head.
    pub next: u64,
}

impl OptimisedLayout {
    /// The offsets from the kernel's types; `None` if the kernel is built without optimised
    /// kprobes.
    #[must_use]
    pub fn from_btf(btf: &Btf) -> Option<Self> {
        let id = btf.struct_named("optimized_kprobe")?;
        let word = |path| btf.member(id, path).filter(|member| member.size_bytes == 8);
        Some(Self {
            address: word("kp.addr")?.offset_bytes,
            size: word("optinsn.size")?.offset_bytes,
            next: word("list.next")?.offset_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;

    #[test]
    fn layout_is_read_from_the_types() {
        let mut blob = Blob::new();
        let long = blob.int("long unsigned int", 8);
        let links = blob.structure("list_head", 16, &[("next", long, 0), ("prev", long, 8)]);
        let probe = blob.structure("kprobe", 0x70, &[("addr", long, 0x28)]);
        let copy = blob.structure("arch_optimized_insn", 24, &[("size", long, 16)]);
        let members = [
            ("kp", probe, 0),
            ("list", links, 0x70),
            ("optinsn", copy, 0x80),
        ];
        blob.structure("optimized_kprobe", 0x98, &members);
        let btf = Btf::parse(blob.finish()).expect("types");
        let expected = OptimisedLayout {
            address: 0x28,
            size: 0x90,
            next: 0x70,
        };
        assert_eq!(OptimisedLayout::from_btf(&btf), Some(expected));
    }

    #[test]
    fn a_kernel_without_has_none() {
        let btf = Btf::parse(Blob::new().finish()).expect("types");
        assert_eq!(OptimisedLayout::from_btf(&btf), None);
    }
}
