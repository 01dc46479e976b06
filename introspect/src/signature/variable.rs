//! The variables of a function at an instruction, as debug information describes them.

use super::declared::{pointer, sole_named, sole_pointee};
use super::names::EnumNames;
use super::{
    Kind, MAX_DECLARED_BYTES, MAX_NAME_BYTES, Parameter, Shape, Signature, ValuePlace,
    buffers_are_no_strings, shortened,
};
use crate::btf::Btf;
use crate::operand::SizedOperand;

/// A variable at an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variable {
    /// The name in the source.
    pub name: String,
    /// The type in C.
    pub declared: String,
    /// The value; `None` if the code has none at the instruction, or none that fits into a word.
    pub operand: Option<SizedOperand>,
}

impl Signature {
    /// The most variables that are shown.
    pub const MAX_VARIABLES: usize = super::MAX_PARAMS;

    /// The signature of an instruction with `variables`, of which the first are kept. The kernel's `types` have the names of enumerators and the
    /// members of structs; without `types`, values are numbers.
    #[must_use]
    pub fn of_variables(types: Option<&Btf>, variables: &[Variable]) -> Self {
        let params = variables.iter().take(Self::MAX_VARIABLES);
        let params = params.map(|variable| {
            let Variable {
                name,
                declared,
                operand,
            } = variable;
            Parameter {
                name: shortened(name, MAX_NAME_BYTES),
                place: operand.map_or(ValuePlace::Elsewhere, ValuePlace::Operand),
                shape: Shape {
                    declared: shortened(declared, MAX_DECLARED_BYTES),
                    kind: operand.map_or(Kind::Larger, |it| kind_of_operand(types, declared, it)),
                    macros: None,
                },
                pointee: types
                    .filter(|_| operand.is_some())
                    .and_then(|types| sole_pointee(types, declared)),
            }
        });
        let mut params: Vec<Parameter> = params.collect();
        buffers_are_no_strings(&mut params, |_| true);
        let names = match types {
            Some(types) => EnumNames::new(types, params.iter().flat_map(Parameter::kinds)),
            None => EnumNames::default(),
        };
        Self {
            params,
            returns: None,
            names,
        }
    }
}

/// How the value of `operand` is read, whose type is `declared`. The operand has the size and the sign.
fn kind_of_operand(types: Option<&Btf>, declared: &str, operand: SizedOperand) -> Kind {
    let SizedOperand {
        bytes, is_signed, ..
    } = operand;
    let integer = Kind::Integer {
        bytes,
        signed: is_signed,
    };
    if bytes == 8
        && let Some(pointer) = pointer(declared)
    {
        return pointer;
    }
    if matches!(declared, "bool" | "_Bool") {
        return Kind::Bool;
    }
    if declared.starts_with("struct ") || declared.starts_with("union ") {
        return Kind::Word { bytes };
    }
    let named = types.and_then(|types| Some(Kind::of(types, sole_named(types, declared)?)));
    match named {
        Some(Kind::Bool) if bytes == 1 => Kind::Bool,
        // A typedef of a pointer.
        Some(pointer @ (Kind::Pointer | Kind::String)) if bytes == 8 => pointer,
        Some(Kind::Enum {
            ty, bytes: size, ..
        }) if size == bytes => Kind::Enum {
            ty,
            bytes,
            signed: is_signed,
        },
        // A small struct, by the name of a typedef.
        Some(Kind::Word { bytes: size }) if size == bytes => Kind::Word { bytes },
        _ => integer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;

    fn types() -> Btf {
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let order = blob.enumeration("order", false, &[("ASCENDING", 0), ("DESCENDING", 1)]);
        blob.record("order_t", (8, false), 0, order, &[]);
        blob.structure("pair", 8, &[("a", int, 0), ("b", int, 4)]);
        Btf::parse(blob.finish()).expect("types")
    }

    fn variable(name: &str, declared: &str, operand: &str) -> Variable {
        Variable {
            name: name.to_owned(),
            declared: declared.to_owned(),
            operand: (!operand.is_empty()).then(|| operand.parse().expect("an operand")),
        }
    }

    fn kinds(types: Option<&Btf>, variables: &[(&str, &str)]) -> Vec<Kind> {
        let variables = variables.iter();
        let variables: Vec<_> = variables
            .map(|(declared, operand)| variable("v", declared, operand))
            .collect();
        let params = Signature::of_variables(types, &variables).params;
        params.into_iter().map(|param| param.shape.kind).collect()
    }

    #[test]
    fn operand_has_the_size_and_the_sign_of_a_number() {
        let int = |bytes, signed| Kind::Integer { bytes, signed };
        let variables = [
            ("loff_t", "-8@%rbx"),
            ("u8", "1@%al"),
            ("long", "-4@%eax"),
            ("mystery_t", "2@4(%rsp)"),
            ("bool", "1@%al"),
            ("struct file *", "8@%rdi"),
            ("const char *", "8@%rdi"),
            ("int (*)(…)", "8@%rdi"),
            ("struct kiocb", ""),
            ("struct file *const", "8@%rdi"),
            ("const char *const volatile", "8@%rdi"),
            ("struct fd", "8@%rdi"),
        ];
        let expected = [
            int(8, true),
            int(1, false),
            int(4, true),
            int(2, false),
            Kind::Bool,
            Kind::Pointer,
            Kind::String,
            Kind::Pointer,
            Kind::Larger,
            Kind::Pointer,
            Kind::String,
            Kind::Word { bytes: 8 },
        ];
        let types = types();
        for types in [None, Some(&types)] {
            assert_eq!(kinds(types, &variables), expected, "{types:?}");
        }
    }

    #[test]
    fn enums_and_structs_are_found_by_their_names() {
        let types = types();
        let variables = [
            variable("a", "enum order", "4@%eax"),
            variable("b", "order_t", "4@(%rsp)"),
            variable("c", "struct pair *", "8@&16(%rsp)"),
        ];
        let signature = Signature::of_variables(Some(&types), &variables);
        for param in &signature.params[..2] {
            let meaning = signature.meaning(&param.shape, 1);
            assert_eq!(meaning.as_deref(), Some("DESCENDING"), "{param:?}");
        }
        let pair = signature.params[2].pointee.as_ref().expect("a struct");
        assert_eq!(pair.members.len(), 2);
        assert!(signature.needs_memory());
        let [first, _, last] = &variables;
        let in_registers = [first.clone(), last.clone()];
        assert!(!Signature::of_variables(Some(&types), &in_registers).needs_memory());
        // Of two enums of one name, none is meant.
        let mut blob = Blob::new();
        for first in ["A", "B"] {
            blob.enumeration("order", false, &[(first, 0)]);
        }
        let two = Btf::parse(blob.finish()).expect("types");
        let integer = Kind::Integer {
            bytes: 4,
            signed: false,
        };
        assert_eq!(kinds(Some(&two), &[("enum order", "4@%eax")]), [integer]);
        // An enum of another size than the operand's is another enum.
        assert_eq!(
            kinds(Some(&types), &[("enum order", "1@%al")]),
            [Kind::Integer {
                bytes: 1,
                signed: false
            }]
        );
    }

    #[test]
    fn buffer_is_no_string_although_its_length_has_no_value() {
        for operand in ["", "8@%rdx"] {
            let variables = [
                variable("buf", "const char *", "8@%rsi"),
                variable("count", "size_t", operand),
            ];
            let signature = Signature::of_variables(None, &variables);
            assert_eq!(signature.params[0].shape.kind, Kind::Pointer);
            assert!(!signature.needs_memory());
        }
    }

    #[test]
    fn first_variables_are_kept() {
        let many = vec![variable("v", "int", "-4@%eax"); Signature::MAX_VARIABLES + 5];
        let signature = Signature::of_variables(None, &many);
        assert_eq!(signature.params.len(), Signature::MAX_VARIABLES);
    }
}
