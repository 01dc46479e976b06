//! The variables of a section.

use super::{Btf, Type, TypeId, format};

/// A variable of a section of the kernel's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionVariable<'b> {
    /// The name.
    pub name: &'b str,
    /// The type as declared.
    pub ty: TypeId,
    /// The offset from the beginning of the section in bytes.
    pub offset: u64,
    /// The size in bytes.
    pub size: u64,
}

impl Btf {
    /// The variables of the section called `name`, for instance `.data..percpu`. Empty if the types do not have the section, as with
    /// an old pahole.
    pub fn section_variables(&self, name: &str) -> impl Iterator<Item = SectionVariable<'_>> {
        let section = self.find(name, &[format::DATA_SECTION]);
        let record = section.and_then(|section| self.records.record(section));
        let variables = record.into_iter().flat_map(|record| record.variables());
        variables.filter_map(|(variable, offset, size)| {
            let Some(Type::Variable(ty)) = self.get(variable) else {
                return None;
            };
            Some(SectionVariable {
                name: self.name_of(variable)?,
                ty,
                offset: offset.into(),
                size: size.into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;

    #[test]
    fn section_has_its_variables_with_offsets_and_nothing_else() {
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let first = blob.record("first", (format::VARIABLE, false), 0, int, &[0]);
        let twin = blob.record("twin", (format::VARIABLE, false), 0, int, &[0]);
        // A type that is no variable, and a type that is not there.
        let body = [first, 8, 4, twin, 16, 4, int, 24, 4, 99, 32, 4];
        blob.record(".data..percpu", (format::DATA_SECTION, false), 4, 64, &body);
        let types = Btf::parse(blob.finish()).expect("types");
        let found = types.section_variables(".data..percpu");
        let found: Vec<_> = found
            .map(|variable| (variable.name, variable.offset, variable.size))
            .collect();
        assert_eq!(found, [("first", 8, 4), ("twin", 16, 4)]);
        assert_eq!(types.section_variables(".data").count(), 0);
        assert_eq!(types.section_variables("first").count(), 0);
    }
}
