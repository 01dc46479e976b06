//! Parameters and return types of functions.

use super::{Btf, FuncProto, Param, TypeId, format};

/// The kernel's functions take at most a dozen; eBPF allows five.
const MAX_PARAMS: usize = 64;

impl Btf {
    /// The prototype of the function called `name`; the first prototype if functions of different
    /// files share the name.
    #[must_use]
    pub fn func_proto(&self, name: &str) -> Option<FuncProto> {
        let function = self.records.record(self.find(name, &[format::FUNCTION])?)?;
        self.prototype(TypeId(function.size_or_type))
    }

    /// The prototype with the number `ty`; `None` if `ty` is no prototype.
    #[must_use]
    pub fn prototype(&self, ty: TypeId) -> Option<FuncProto> {
        let record = self.records.record(ty)?;
        if record.kind != format::PROTOTYPE || record.params().len() > MAX_PARAMS {
            return None;
        }
        let params = record.params().map(|(name, ty)| Param {
            name: self.records.string(name).map(str::to_owned),
            ty,
        });
        let mut params: Vec<Param> = params.collect();
        // A parameter without name and type stands for the dots.
        let variadic = params
            .last()
            .is_some_and(|last| last.ty == TypeId::VOID && last.name.is_none());
        if variadic {
            params.pop();
        }
        Some(FuncProto {
            params,
            variadic,
            returns: TypeId(record.size_or_type),
        })
    }
}
