//! Per-CPU variables.
//!
//! In the kernel, `gs` points to the processor's own data. Up to 6.14 the symbol of a per-CPU
//! variable is an offset into the processor's data. Since then the symbol is an address in the
//! kernel's image, which moves with the kernel, and `gs` is the distance from the image's address
//! to the processor's data. In both cases the sum of the two is the address.
//!
//! The names of the two variables below have changed: `current_task` and `cpu_number` up to 6.1,
//! members of `pcpu_hot` up to 6.14, the old names again.

use address::Gva;

use crate::{SymbolTable, btf::Btf};

/// A per-CPU variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerCpu(Gva);

impl PerCpu {
    /// The pointer to the `struct task_struct` of the processor's current task, 8 bytes; `None` if
    /// the kernel does not say.
    #[must_use]
    pub fn current_task(btf: Option<&Btf>, symbols: &SymbolTable) -> Option<Self> {
        Self::named("current_task", btf, symbols)
    }

    /// The processor's number, 4 bytes; `None` if the kernel does not say.
    #[must_use]
    pub fn cpu_number(btf: Option<&Btf>, symbols: &SymbolTable) -> Option<Self> {
        Self::named("cpu_number", btf, symbols)
    }

    fn named(name: &str, btf: Option<&Btf>, symbols: &SymbolTable) -> Option<Self> {
        if let Some(at) = symbols.address_of(name) {
            return Some(Self(at));
        }
        let btf = btf?;
        let member = btf.member(btf.struct_named("pcpu_hot")?, name)?;
        let hot = symbols.address_of("pcpu_hot")?;
        Some(Self(hot.wrapping_add(member.offset_bytes)))
    }

    /// The distance from `gs`, in a kernel moved by `slide`: as a signed number, the distance fits
    /// the displacement of an instruction.
    #[must_use]
    pub fn from_gs(self, slide: i64) -> i64 {
        // An offset is no kernel address, and does not move with the kernel.
        let at = self.0.0.cast_signed();
        let slide = if at < 0 { slide } else { 0 };
        at.wrapping_add(slide)
    }

    /// The variable's address on a processor with the base `gs_base` in `gs`, in a kernel moved by
    /// `slide`.
    #[must_use]
    pub fn at(self, gs_base: u64, slide: i64) -> Gva {
        Gva(gs_base.wrapping_add_signed(self.from_gs(slide)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolTableBuilder;
    use crate::btf::synthetic::Blob;

    fn variables(symbol: &str, at: u64) -> (Option<PerCpu>, Option<PerCpu>) {
        let mut blob = Blob::new();
        let long = blob.int("long unsigned int", 8);
        let int = blob.int("int", 4);
        blob.structure(
            "pcpu_hot",
            64,
            &[("current_task", long, 0), ("cpu_number", int, 12)],
        );
        let mut symbols = SymbolTableBuilder::new();
        symbols.push(Gva(at), 'D', symbol);
        let btf = Btf::parse(blob.finish()).expect("types");
        let symbols = symbols.build();
        (
            PerCpu::current_task(Some(&btf), &symbols),
            PerCpu::cpu_number(Some(&btf), &symbols),
        )
    }

    #[test]
    fn an_offset_does_not_move_and_an_address_does() {
        let gs = 0xffff_8880_0dc0_0000;
        let (task, number) = variables("cpu_number", 0x1_9030);
        assert_eq!(task, None);
        let number = number.expect("6.1");
        assert_eq!(number.at(gs, 0x40_0000), Gva(gs + 0x1_9030));

        let (task, number) = variables("pcpu_hot", 0x3_5000);
        let (task, number) = (task.expect("6.12"), number.expect("6.12"));
        assert_eq!(task.at(gs, 0x40_0000), Gva(gs + 0x3_5000));
        assert_eq!(number.at(gs, 0x40_0000), Gva(gs + 0x3_500c));

        let (_, number) = variables("cpu_number", 0xffff_ffff_83db_d018);
        let number = number.expect("7.2");
        assert_eq!(number.at(0x1000, 0x40_0000), Gva(0xffff_ffff_841b_e018));
        assert!(i32::try_from(number.from_gs(0x40_0000)).is_ok());
    }

    #[test]
    fn kernel_without_the_symbol_has_no_variable() {
        assert_eq!(variables("current", 8), (None, None));
    }
}
