//! The parameters and the return value of a function, ready to be read at a hit.
//!
//! A [`Signature`] is made once for a function, from the kernel's types ([`crate::Btf`]). At a hit, each parameter is a register, or a word
//! of the stack, by the System V ABI; the type says how many of its bits count, and what they mean.

mod declared;
mod kind;
mod names;
mod open_flags;
mod place;
mod pointee;
mod syscall;
mod tracepoint;
mod variable;

use std::borrow::Cow;
use std::sync::Arc;

use crate::btf::{Btf, SharedProto, TypeId, declaration};

pub use kind::Kind;
use names::EnumNames;
pub use open_flags::Macros;
use open_flags::open_flags;
use place::Places;
pub use place::ValuePlace;
pub use pointee::{Pointee, PointeeMember};
pub use variable::Variable;

/// The types of a function.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The parameters in order, without a final `...`.
    pub params: Vec<Parameter>,
    /// The return value; `None` for `void`.
    pub returns: Option<Shape>,
    names: EnumNames,
}

/// A named parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name in the source; `argN` without one.
    pub name: Arc<str>,
    /// Where the caller has put the value.
    pub place: ValuePlace,
    /// The type.
    pub shape: Shape,
    /// For a pointer to a small struct: the struct.
    pub pointee: Option<Pointee>,
}

impl Parameter {
    fn is_integer(&self) -> bool {
        matches!(self.shape.kind, Kind::Integer { .. })
    }

    /// The types of the value and of what it points to.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let members = self.pointee.iter().flat_map(|pointee| &pointee.members);
        let members = members.map(|member| member.shape.kind);
        std::iter::once(self.shape.kind).chain(members)
    }
}

/// A type, as far as the value is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The type in C.
    pub declared: Arc<str>,
    /// How the value is read.
    pub kind: Kind,
    /// The macros of which a number is made; BTF has none.
    pub macros: Option<Macros>,
}

/// Why a function has no types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untyped {
    /// The types have no function of the name.
    #[error("the kernel's type information (BTF) does not have the function")]
    Unknown,
    /// Functions of one name in several files, with different parameters.
    #[error("the kernel has several functions of this name with different parameters")]
    Ambiguous,
    /// More parameters than any function of Linux has.
    #[error("the function has more than {MAX_PARAMS} parameters")]
    TooMany,
    /// The compiler has changed the parameters, as the symbol's suffix says.
    #[error("the compiler has changed the function's parameters (`{suffix}`)")]
    Changed {
        /// The suffix with its dot.
        suffix: &'static str,
    },
}

/// Stock kernels have functions with up to 18 parameters.
const MAX_PARAMS: usize = 20;
/// Longer names are cut: each probe has its own.
const MAX_NAME_BYTES: usize = 48;
const MAX_DECLARED_BYTES: usize = 96;
/// The beginnings of the names of lengths.
const LENGTHS: [&str; 5] = ["count", "len", "size", "nbytes", "n"];

/// Suffixes of symbols whose parameters the compiler may have dropped or split.
const CHANGED: [&str; 3] = [".isra.", ".constprop.", ".part."];

impl Signature {
    /// The signature of the function with the symbol `symbol`.
    ///
    /// # Errors
    ///
    /// If the types do not have the function, or not for certain.
    pub fn of_function(types: &Btf, symbol: &str) -> Result<Self, Untyped> {
        let changed = CHANGED.into_iter().find(|suffix| symbol.contains(suffix));
        if let Some(suffix) = changed {
            return Err(Untyped::Changed { suffix });
        }
        let prototype = match types.shared_proto(symbol) {
            SharedProto::None => return Err(Untyped::Unknown),
            SharedProto::Several => return Err(Untyped::Ambiguous),
            SharedProto::Sole(prototype) => prototype,
        };
        if prototype.params.len() > MAX_PARAMS {
            return Err(Untyped::TooMany);
        }
        let mut places = Places::behind_result(result_bytes(types, prototype.returns));
        let params = (0..).zip(&prototype.params);
        let params = params.map(|(number, param)| Parameter {
            name: match &param.name {
                Some(name) => shortened(name, MAX_NAME_BYTES),
                None => format!("arg{number}").into(),
            },
            place: places.next(types.size_of(param.ty)),
            shape: Shape::new(types, param.ty),
            pointee: Pointee::of(types, param.ty),
        });
        let mut params: Vec<Parameter> = params.collect();
        buffers_are_no_strings(&mut params, Parameter::is_integer);
        let returns = types.stripped(prototype.returns) != Some(TypeId::VOID);
        let returns = returns.then(|| Shape::new(types, prototype.returns));
        let kinds = params.iter().flat_map(Parameter::kinds);
        let kinds = kinds.chain(returns.iter().map(|shape| shape.kind));
        let names = EnumNames::new(types, kinds);
        Ok(Self {
            params,
            returns,
            names,
        })
    }

    /// Whether the values are those of variables.
    #[must_use]
    pub fn is_of_variables(&self) -> bool {
        let is_operand = |param: &Parameter| matches!(param.place, ValuePlace::Operand(_));
        self.params.iter().any(is_operand)
    }

    /// Whether a parameter needs more than the registers: a string, a word of the stack, or a variable in memory. Small structs are extra.
    #[must_use]
    pub fn needs_memory(&self) -> bool {
        let is_in_memory = |param: &Parameter| {
            let is_value_there = match param.place {
                ValuePlace::Stack(_) => true,
                ValuePlace::Operand(operand) => operand.is_in_memory(),
                ValuePlace::Register(_) | ValuePlace::Elsewhere => false,
            };
            is_value_there || param.shape.kind == Kind::String
        };
        self.params.iter().any(is_in_memory)
    }

    /// The name of `value` in the enum of `shape`, among the first hundred or so of the signature's enums, or the names of its flags.
    #[must_use]
    pub fn meaning(&self, shape: &Shape, value: i64) -> Option<Cow<'_, str>> {
        match (shape.kind, shape.macros) {
            (Kind::Enum { ty, .. }, _) => self.names.name(ty, value),
            (Kind::Integer { bytes, .. }, Some(Macros::OpenFlags)) => {
                let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
                let flags = value.cast_unsigned() << unused >> unused;
                Some(Cow::Owned(open_flags(flags)))
            }
            _ => None,
        }
    }
}

/// A pointer to characters with a length behind it is a buffer. A length is an integer, or a variable `may_be_length` that has one's name.
fn buffers_are_no_strings(params: &mut [Parameter], may_be_length: impl Fn(&Parameter) -> bool) {
    let is_length = |param: &Parameter| {
        let is_named = |length: &&str| match param.name.strip_prefix(*length) {
            Some(rest) => rest.is_empty() || length.len() > 1,
            None => param.name.ends_with(&format!("_{length}")),
        };
        may_be_length(param) && LENGTHS.iter().any(is_named)
    };
    let before_length: Vec<bool> = params.iter().skip(1).map(is_length).collect();
    for (param, is_buffer) in params.iter_mut().zip(before_length) {
        if is_buffer && param.shape.kind == Kind::String {
            param.shape.kind = Kind::Pointer;
        }
    }
}

fn shortened(text: &str, most: usize) -> Arc<str> {
    if text.len() <= most {
        return text.into();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)]).into()
}

/// The size of a returned struct or union; `None` for other types.
fn result_bytes(types: &Btf, returns: TypeId) -> Option<u64> {
    types.as_struct(returns).and_then(|id| types.size_of(id))
}

impl Shape {
    fn new(types: &Btf, ty: TypeId) -> Self {
        Self {
            declared: shortened(&declaration(types, ty), MAX_DECLARED_BYTES),
            kind: Kind::of(types, ty),
            macros: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;

    fn types() -> Btf {
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let char = blob.int("char", 1);
        let constant = blob.constant(char);
        let text = blob.pointer(constant);
        let buffer = blob.pointer(char);
        let pair = blob.structure("pair", 16, &[("a", int, 0), ("b", int, 8)]);
        let mode = blob.enumeration("mode", true, &[("OFF", 0), ("BAD", u32::MAX)]);
        let callback = blob.function("", int, &[("", int)]) - 1;
        let callback = blob.pointer(callback);
        blob.function(
            "open",
            int,
            &[
                ("name", text),
                ("pair", pair),
                ("buffer", buffer),
                ("mode", mode),
                ("call", callback),
                ("late", int),
            ],
        );
        blob.function("done", 0, &[]);
        blob.function("write", int, &[("data", text), ("count", int)]);
        blob.function("copy", int, &[("from", text), ("name_len", int)]);
        blob.function("log", int, &[("text", text), ("node", int)]);
        let large = blob.structure("large", 24, &[("a", int, 0)]);
        blob.function("make", large, &[("size", int)]);
        blob.function("twice", int, &[("a", int)]);
        blob.function("twice", int, &[("a", text)]);
        Btf::parse(blob.finish()).expect("types")
    }

    #[test]
    fn parameters_have_names_types_and_places() {
        let signature = Signature::of_function(&types(), "open").expect("typed");
        let told = signature.params.iter().map(|param| {
            let shape = &param.shape;
            format!("{} {}: {:?}", param.name, shape.declared, param.place)
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                "name const char *: Register(0)",
                "pair struct pair: Elsewhere",
                "buffer char *: Register(3)",
                "mode enum mode: Register(4)",
                "call int (*)(…): Register(5)",
                "late int: Stack(8)",
            ]
        );
        let kinds = signature.params.iter().map(|param| param.shape.kind);
        let kinds: Vec<_> = kinds.collect();
        assert_eq!(kinds[0], Kind::String);
        assert_eq!(kinds[2], Kind::Pointer);
        assert!(signature.needs_memory());
        let mode = &signature.params[3].shape;
        assert_eq!(
            signature
                .meaning(mode, mode.kind.number(0xffff_ffff))
                .as_deref(),
            Some("BAD")
        );
        assert_eq!(signature.meaning(mode, 7), None);
    }

    #[test]
    fn signature_keeps_neither_the_blob_nor_a_large_enum() {
        let mut blob = Blob::new();
        let numbers = || 0..1000u32;
        let names: Vec<String> = numbers().map(|number| format!("NAME_{number}")).collect();
        let values: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(numbers()).collect();
        let mode = blob.enumeration("mode", false, &values);
        blob.function("set", mode, &[("mode", mode), ("other", mode)]);
        let bytes: Arc<[u8]> = blob.finish().into();
        let held = Arc::downgrade(&bytes);
        let signature =
            Signature::of_function(&Btf::parse(bytes).expect("types"), "set").expect("typed");
        assert!(held.upgrade().is_none(), "the blob is freed");
        let returns = signature.returns.as_ref().expect("a value");
        assert_eq!(signature.meaning(returns, 100).as_deref(), Some("NAME_100"));
        assert_eq!(signature.meaning(returns, 999), None);
    }

    #[test]
    fn flags_of_an_enum_have_their_names_if_all_of_them_are_known() {
        let meaning = |count: u32| {
            let mut blob = Blob::new();
            let names: Vec<String> = (0..count).map(|bit| format!("BIT_{bit}")).collect();
            let flags = names.iter().map(String::as_str).zip((0..32).cycle());
            let flags: Vec<(&str, u32)> = flags.map(|(name, bit)| (name, 1 << bit)).collect();
            let mode = blob.enumeration("mode", false, &flags);
            blob.function("set", 0, &[("mode", mode)]);
            let types = Btf::parse(blob.finish()).expect("types");
            let signature = Signature::of_function(&types, "set").expect("typed");
            let meaning = signature.meaning(&signature.params[0].shape, 0x45);
            meaning.map(Cow::into_owned)
        };
        assert_eq!(meaning(3).as_deref(), Some("BIT_0|BIT_2|0x40"));
        // A signature has the first 128 enumerators.
        let whole = u32::try_from(names::MAX_ENUMERATORS).expect("few");
        assert_eq!(meaning(whole).as_deref(), Some("BIT_0|BIT_2|BIT_6"));
        assert_eq!(meaning(whole + 1), None);
    }

    #[test]
    fn the_place_of_a_large_result_comes_before_the_parameters() {
        let signature = Signature::of_function(&types(), "make").expect("typed");
        assert_eq!(signature.params[0].place, ValuePlace::Register(1));
    }

    #[test]
    fn characters_before_a_length_are_a_buffer() {
        let kind = |function| {
            let signature = Signature::of_function(&types(), function).expect("typed");
            signature.params[0].shape.kind
        };
        assert_eq!(kind("write"), Kind::Pointer);
        assert_eq!(kind("copy"), Kind::Pointer);
        assert_eq!(kind("log"), Kind::String);
    }

    #[test]
    fn void_functions_return_nothing() {
        let signature = Signature::of_function(&types(), "done").expect("typed");
        assert!(signature.params.is_empty() && signature.returns.is_none());
        assert!(!signature.needs_memory());
    }

    #[test]
    fn uncertain_function_has_no_types() {
        let of = |symbol| Signature::of_function(&types(), symbol).map(|_| ()).err();
        assert_eq!(of("close"), Some(Untyped::Unknown));
        assert_eq!(of("twice"), Some(Untyped::Ambiguous));
        assert_eq!(
            of("open.isra.0"),
            Some(Untyped::Changed { suffix: ".isra." })
        );
    }
}
