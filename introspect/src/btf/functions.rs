//! Parameters and return types of functions.

use super::{Btf, FuncProto, Param, TypeId, format};

/// The kernel's functions take at most a dozen; eBPF allows five.
const MAX_PARAMS: usize = 64;
/// The most functions of one name that are compared; stock kernels have a dozen.
const MAX_NAMESAKES: usize = 64;

/// What is known of the functions of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedProto {
    /// There are none.
    None,
    /// All have this prototype.
    Sole(FuncProto),
    /// Two of them differ, or a prototype cannot be read.
    Several,
}

impl Btf {
    /// The prototype of the function called `name`; the first prototype if functions of different
    /// files share the name.
    #[must_use]
    pub fn func_proto(&self, name: &str) -> Option<FuncProto> {
        let function = self.records.record(self.find(name, &[format::FUNCTION])?)?;
        self.prototype(TypeId(function.size_or_type))
    }

    /// The prototype of the functions called `name`, of which there may be several: static functions
    /// of different files may share the name. If a module has functions of the name, the kernel's do not count.
    #[must_use]
    pub fn shared_proto(&self, name: &str) -> SharedProto {
        let mut first = None;
        let mut is_module = false;
        for function in self.find_all(name, &[format::FUNCTION]).take(MAX_NAMESAKES) {
            if is_module && !self.records.is_above_base(function) {
                break;
            }
            is_module = self.records.is_above_base(function);
            let record = self.records.record(function);
            let Some(proto) = record.and_then(|it| self.prototype(TypeId(it.size_or_type))) else {
                return SharedProto::Several;
            };
            if first.as_ref().is_some_and(|first| *first != proto) {
                return SharedProto::Several;
            }
            first = Some(proto);
        }
        first.map_or(SharedProto::None, SharedProto::Sole)
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
