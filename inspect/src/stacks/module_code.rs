//! Modules by the addresses of their code.

use std::ops::Range;

use address::Gva;
use introspect::Module;

/// Modules without symbols. A look-up takes a few steps however many modules a guest lists.
#[derive(Debug)]
pub(super) struct ModuleCode {
    modules: Vec<Module>,
    /// The addresses of code, each with the number of the module, in ascending order.
    parts: Vec<(Range<Gva>, usize)>,
}

impl ModuleCode {
    pub(super) fn new(modules: Vec<Module>) -> Self {
        let code = |(number, module): (usize, &Module)| {
            let code = module.regions().iter().filter(|part| part.kind.is_text());
            let ranges: Vec<_> = code.map(|part| (part.range.clone(), number)).collect();
            ranges
        };
        let mut parts: Vec<_> = modules.iter().enumerate().flat_map(code).collect();
        parts.sort_by_key(|(range, _)| range.start);
        Self { modules, parts }
    }

    /// The module whose code is at `at`. Modules overlap only if the guest lies.
    pub(super) fn module_at(&self, at: Gva) -> Option<&Module> {
        let after = self.parts.partition_point(|(range, _)| range.start <= at);
        let (range, number) = self.parts.get(after.checked_sub(1)?)?;
        range.contains(&at).then(|| &self.modules[*number])
    }
}

#[cfg(test)]
mod tests {
    use introspect::{ModuleRegion, RegionKind};

    use super::*;

    #[test]
    fn module_of_an_address_is_the_one_with_code_there() {
        let part = |from, kind| ModuleRegion {
            range: Gva(from)..Gva(from + 0x100),
            kind,
        };
        let second = vec![
            part(0x3000, RegionKind::Text),
            part(0x1000, RegionKind::InitText),
        ];
        let first = vec![
            part(0x2000, RegionKind::Text),
            part(0x4000, RegionKind::Data),
        ];
        let code = ModuleCode::new(vec![
            Module::with_regions(Gva(1), "first", first),
            Module::with_regions(Gva(2), "second", second),
        ]);
        let name = |at| code.module_at(Gva(at)).map(Module::name);
        assert_eq!(name(0x2000), Some("first"));
        assert_eq!(name(0x30ff), Some("second"));
        assert_eq!(name(0x1080), Some("second"));
        for outside in [0, 0xfff, 0x1100, 0x20ff + 1, 0x4000] {
            assert_eq!(name(outside), None, "{outside:#x}");
        }
    }
}
