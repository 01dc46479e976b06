//! What functions take and return.

use super::{Btf, FuncProto, Param, TypeId, format};

const PARAM_BYTES: usize = 8;
/// The kernel's functions take at most a dozen; eBPF allows five.
const MAX_PARAMS: usize = 64;

impl Btf {
    /// The prototype of the function called `name`. Functions of different files may share a name:
    /// this is the first's.
    #[must_use]
    pub fn func_proto(&self, name: &str) -> Option<FuncProto> {
        let function = self.record(self.find(name, &[format::FUNCTION])?)?;
        self.prototype(TypeId(function.size_or_type))
    }

    /// The prototype that `ty` is.
    #[must_use]
    pub fn prototype(&self, ty: TypeId) -> Option<FuncProto> {
        let record = self.record(ty)?;
        if record.kind != format::PROTOTYPE || record.count > MAX_PARAMS {
            return None;
        }
        let mut params = Vec::with_capacity(record.count);
        for number in 0..record.count {
            let at = record.body + number * PARAM_BYTES;
            params.push(Param {
                name: self.string(self.word(at)?).map(str::to_owned),
                ty: TypeId(self.word(at + 4)?),
            });
        }
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
