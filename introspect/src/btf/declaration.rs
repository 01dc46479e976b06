//! Types as written in C.

use super::{Btf, Type, TypeId};

/// The most steps from a type to its innermost type; the kernel's function pointers take a dozen.
const MAX_STEPS: usize = 32;

/// The type `ty` as written in C, without the name of a variable: `const char *`, `struct list_head[2]`, `int (*)(…)`. Parameters of
/// functions are left out.
#[must_use]
pub fn declaration(btf: &Btf, ty: TypeId) -> String {
    Declarator::new(btf, ty, "").with_base(btf)
}

/// The parts of a declaration in C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declarator {
    /// `const ` and `volatile ` before the innermost type.
    pub qualifiers: String,
    /// The innermost type, which is no pointer, array or function; `None` for an endless or broken type.
    pub base: Option<TypeId>,
    /// The variable with the pointers, arrays and functions around: `*name[2]`.
    pub declarator: String,
}

impl Declarator {
    /// The declaration of the variable `name` with the type `ty`. Without a name, it is the type alone.
    #[must_use]
    pub fn new(btf: &Btf, ty: TypeId, name: &str) -> Self {
        // What stands behind the innermost type, from the outside in.
        let mut declarator = name.to_owned();
        let mut qualifiers = String::new();
        let mut ty = ty;
        for _ in 0..MAX_STEPS {
            match btf.get(ty) {
                Some(Type::Pointer(target)) => {
                    let space = if qualifiers.is_empty() || declarator.is_empty() {
                        ""
                    } else {
                        " "
                    };
                    declarator = format!("*{}{space}{declarator}", qualifiers.trim_end());
                    qualifiers.clear();
                    ty = target;
                }
                Some(Type::Const(target)) => {
                    qualifiers.push_str("const ");
                    ty = target;
                }
                Some(Type::Volatile(target)) => {
                    qualifiers.push_str("volatile ");
                    ty = target;
                }
                Some(Type::Tagged(target) | Type::Variable(target)) => {
                    ty = target;
                }
                Some(Type::Array { element, len }) => {
                    if declarator.starts_with('*') {
                        declarator = format!("({declarator})");
                    }
                    declarator = format!("{declarator}[{len}]");
                    ty = element;
                }
                Some(Type::Prototype) => {
                    let returns = btf.prototype(ty).map_or(TypeId::VOID, |it| it.returns);
                    declarator = format!("({declarator})(…)");
                    ty = returns;
                }
                Some(Type::Function(prototype)) => {
                    ty = prototype;
                }
                Some(_) => {
                    return Self {
                        qualifiers,
                        base: Some(ty),
                        declarator,
                    };
                }
                None => break,
            }
        }
        Self {
            qualifiers,
            base: None,
            declarator,
        }
    }

    /// The declaration with the name of the innermost type in front.
    #[must_use]
    pub fn with_base(&self, btf: &Btf) -> String {
        self.with(
            &self
                .base
                .map_or_else(|| "?".to_owned(), |base| base_name(btf, base)),
        )
    }

    /// The declaration with `base` as the innermost type.
    #[must_use]
    pub fn with(&self, base: &str) -> String {
        let (qualifiers, declarator) = (&self.qualifiers, &self.declarator);
        let space = if declarator.is_empty() || declarator.starts_with('[') {
            ""
        } else {
            " "
        };
        format!("{qualifiers}{base}{space}{declarator}")
    }
}

fn base_name(btf: &Btf, ty: TypeId) -> String {
    match btf.get(ty) {
        Some(Type::Void) => "void".to_owned(),
        Some(Type::Struct(_)) => tagged("struct", btf.name_of(ty)),
        Some(Type::Union(_)) => tagged("union", btf.name_of(ty)),
        Some(Type::Enum) => tagged("enum", btf.name_of(ty)),
        // A declaration alone is of a struct nearly always; the few unions have the flag that is not kept.
        Some(Type::Forward) => tagged("struct", btf.name_of(ty)),
        _ => btf.name_of(ty).unwrap_or("?").to_owned(),
    }
}

fn tagged(tag: &str, name: Option<&str>) -> String {
    format!("{tag} {}", name.unwrap_or("{…}"))
}
