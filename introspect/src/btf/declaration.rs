//! Types as written in C.

use super::{Btf, Type, TypeId};

/// The most steps from a type to its innermost type; the kernel's function pointers take a dozen.
const MAX_STEPS: usize = 32;

/// The type `ty` as written in C, without the name of a variable: `const char *`, `struct list_head[2]`, `int (*)(…)`. Parameters of
/// functions are left out.
#[must_use]
pub fn declaration(btf: &Btf, ty: TypeId) -> String {
    // What stands behind the innermost type, from the outside in.
    let mut declarator = String::new();
    let mut qualifiers = String::new();
    let mut ty = ty;
    for _ in 0..MAX_STEPS {
        let base = match btf.get(ty) {
            Some(Type::Pointer(target)) => {
                let space = if qualifiers.is_empty() || declarator.is_empty() {
                    ""
                } else {
                    " "
                };
                declarator = format!("*{}{space}{declarator}", qualifiers.trim_end());
                qualifiers.clear();
                ty = target;
                continue;
            }
            Some(Type::Const(target)) => {
                qualifiers.push_str("const ");
                ty = target;
                continue;
            }
            Some(Type::Volatile(target)) => {
                qualifiers.push_str("volatile ");
                ty = target;
                continue;
            }
            Some(Type::Tagged(target) | Type::Variable(target)) => {
                ty = target;
                continue;
            }
            Some(Type::Array { element, len }) => {
                if declarator.starts_with('*') {
                    declarator = format!("({declarator})");
                }
                declarator = format!("{declarator}[{len}]");
                ty = element;
                continue;
            }
            Some(Type::Prototype) => {
                let returns = btf.prototype(ty).map_or(TypeId::VOID, |it| it.returns);
                declarator = format!("({declarator})(…)");
                ty = returns;
                continue;
            }
            Some(Type::Function(prototype)) => {
                ty = prototype;
                continue;
            }
            Some(Type::Void) => "void".to_owned(),
            Some(Type::Struct(_)) => tagged("struct", btf.name_of(ty)),
            Some(Type::Union(_)) => tagged("union", btf.name_of(ty)),
            Some(Type::Enum) => tagged("enum", btf.name_of(ty)),
            // A declaration alone is of a struct nearly always; the few unions have the flag that is not kept.
            Some(Type::Forward) => tagged("struct", btf.name_of(ty)),
            Some(Type::Int(_) | Type::Float(_) | Type::Typedef(_) | Type::Other) => {
                btf.name_of(ty).unwrap_or("?").to_owned()
            }
            None => "?".to_owned(),
        };
        let space = if declarator.is_empty() || declarator.starts_with('[') {
            ""
        } else {
            " "
        };
        return format!("{qualifiers}{base}{space}{declarator}");
    }
    "?".to_owned()
}

fn tagged(tag: &str, name: Option<&str>) -> String {
    format!("{tag} {}", name.unwrap_or("{…}"))
}
