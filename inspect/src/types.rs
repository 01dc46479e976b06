//! Declarations of a kernel's types in C, with the offset and the size of each member.

use std::fmt::Write as _;

use introspect::Btf;
use introspect::btf::{Declarator, Member, StructId, Type, TypeId, declaration};
use thiserror::Error;

use crate::expression::{EvaluateError, ParseError, TypeName};

/// The deepest nesting of nameless structs and unions.
const MAX_DEPTH: usize = 16;
/// The most members and enumerators; the kernel's largest struct has 900.
const MAX_LINES: usize = 20_000;
/// The column of the comments.
const COLUMN: usize = 56;
const INDENT: &str = "    ";

/// Why a type has no declaration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeclarationError {
    /// The text is no type's name.
    #[error("`{text}` is not the name of a type: {source}")]
    Name {
        /// The text.
        text: String,
        /// The mistake.
        source: ParseError,
    },
    /// The type is not known.
    #[error(transparent)]
    Unknown(EvaluateError),
}

/// The declaration of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The declaration in C, with a line for each member. The names are the guest's: the caller escapes each line.
    pub text: String,
    /// The size of a value in bytes; `None` for a function, and for a type with no more than a name.
    pub size: Option<u64>,
    /// The members of a struct or union, with those of nameless ones among them.
    pub members: Vec<DeclaredMember>,
}

/// A member of a struct or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredMember {
    /// The path: a member of a nameless type's member has dots.
    pub name: String,
    /// The type in C.
    pub declared: String,
    /// The offset from the beginning of the declared type, in bytes.
    pub offset: u64,
    /// The size in bytes; 0 for a flexible array.
    pub size: u64,
    /// For a bit field: the first bit in the byte at `offset`, and the number of bits.
    pub bits: Option<(u8, u8)>,
}

impl Declaration {
    /// The declaration of the type or function called `name`: `struct file`, `file`, `pid_t`, `vfs_read`. Without a keyword, the first of
    /// struct, union, enum, typedef and function counts.
    ///
    /// # Errors
    ///
    /// If there is no such type.
    pub fn find(types: &Btf, name: &str) -> Result<Self, DeclarationError> {
        let parsed = TypeName::parse(name).map_err(|source| DeclarationError::Name {
            text: name.to_owned(),
            source,
        })?;
        let found = match &parsed.words[..] {
            [word] => by_word(types, word),
            _ => None,
        };
        let ty = match found {
            Some(ty) => ty,
            None => parsed.find(types).map_err(DeclarationError::Unknown)?,
        };
        Ok(Self::of(types, ty))
    }

    fn of(types: &Btf, ty: TypeId) -> Self {
        let mut writer = Writer {
            types,
            text: String::new(),
            members: Vec::new(),
            lines: MAX_LINES,
        };
        writer.declare(ty);
        Self {
            text: writer.text,
            size: types.size_of(ty),
            members: writer.members,
        }
    }
}

fn by_word(types: &Btf, word: &str) -> Option<TypeId> {
    let record = types.struct_named(word).or_else(|| types.union_named(word));
    let record = record.map(TypeId::from).or_else(|| types.enum_named(word));
    let other = record.or_else(|| types.type_named(word));
    other.or_else(|| types.function_named(word))
}

struct Writer<'t> {
    types: &'t Btf,
    text: String,
    members: Vec<DeclaredMember>,
    /// The number of lines that may still be written.
    lines: usize,
}

impl Writer<'_> {
    fn line(&mut self, level: usize, text: &str, comment: &str) {
        let line = format!("{}{text}", INDENT.repeat(level));
        // Writing to a string cannot fail.
        let _ = match comment.is_empty() {
            true => writeln!(self.text, "{line}"),
            false => writeln!(self.text, "{line:<COLUMN$} /* {comment} */"),
        };
    }

    fn declare(&mut self, ty: TypeId) {
        let types = self.types;
        let name = types.name_of(ty).unwrap_or_default();
        match types.get(ty) {
            Some(Type::Struct(id) | Type::Union(id)) => {
                let head = declaration(types, ty);
                self.line(0, &format!("{head} {{"), "");
                self.members(id, 1, 0, Some(""));
                let size = types.size_of(ty).unwrap_or(0);
                self.line(0, "};", &format!("size: {size}"));
            }
            Some(Type::Enum) => {
                self.line(0, &format!("enum {name} {{"), "");
                self.enumerators(ty, 1);
                let size = types.size_of(ty).unwrap_or(0);
                self.line(0, "};", &format!("size: {size}"));
            }
            Some(Type::Typedef(target)) => {
                let declared = Declarator::new(types, target, name);
                let nameless = declared.base.filter(|base| types.name_of(*base).is_none());
                let record = nameless.and_then(|base| types.as_struct(base));
                match record {
                    Some(id) => {
                        let keyword = self.keyword(id.into());
                        self.line(0, &format!("typedef {keyword} {{"), "");
                        let prefix = types.as_struct(target).map(|_| "");
                        self.members(id, 1, 0, prefix);
                        self.line(0, &format!("}} {};", declared.declarator), "");
                    }
                    None => self.line(0, &format!("typedef {};", declared.with_base(types)), ""),
                }
            }
            Some(Type::Function(prototype)) => {
                let declared = self.function(prototype, name);
                self.line(0, &declared, "");
            }
            _ => {
                let size = types.size_of(ty);
                let size = size.map_or_else(String::new, |size| format!("size: {size}"));
                self.line(0, &format!("{};", declaration(types, ty)), &size);
            }
        }
    }

    fn function(&self, prototype: TypeId, name: &str) -> String {
        let types = self.types;
        let Some(prototype) = types.prototype(prototype) else {
            return format!("? {name}(?);");
        };
        let params = prototype.params.iter().map(|param| {
            let name = param.name.as_deref().unwrap_or_default();
            Declarator::new(types, param.ty, name).with_base(types)
        });
        let dots = prototype.variadic.then(|| "...".to_owned());
        let params: Vec<String> = params.chain(dots).collect();
        let params = match params.is_empty() {
            true => "void".to_owned(),
            false => params.join(", "),
        };
        let head = Declarator::new(types, prototype.returns, &format!("{name}({params})"));
        format!("{};", head.with_base(types))
    }

    fn keyword(&self, ty: TypeId) -> &'static str {
        match self.types.get(ty) {
            Some(Type::Union(_)) => "union",
            Some(Type::Enum) => "enum",
            _ => "struct",
        }
    }

    /// Whether a value of the type has the struct at its base in it, rather than behind a pointer.
    fn is_inside(&self, ty: TypeId) -> bool {
        let types = self.types;
        let mut ty = types.stripped(ty);
        for _ in 0..MAX_DEPTH {
            match ty.and_then(|ty| types.get(ty)) {
                Some(Type::Array { element, .. }) => ty = types.stripped(element),
                Some(Type::Struct(_) | Type::Union(_)) => return true,
                _ => return false,
            }
        }
        false
    }

    fn enumerators(&mut self, ty: TypeId, level: usize) {
        let types = self.types;
        let Some(of_enum) = types.as_enum(ty) else {
            return;
        };
        let is_signed = of_enum.is_signed();
        for (name, value) in of_enum.values() {
            if !self.has_room(level) {
                return;
            }
            let value = match is_signed {
                true => value.to_string(),
                false => value.cast_unsigned().to_string(),
            };
            self.line(level, &format!("{name} = {value},"), "");
        }
    }

    /// Counts a line; says so at the last.
    fn has_room(&mut self, level: usize) -> bool {
        match self.lines.checked_sub(1) {
            Some(lines) => {
                self.lines = lines;
                if lines == 0 {
                    self.line(level, "…", "");
                }
                lines > 0
            }
            None => false,
        }
    }

    /// The members of `id`, which is `base` bytes behind the beginning of the declared type. Their paths begin with `prefix`; without one,
    /// they are no members of the declared type.
    fn members(&mut self, id: StructId, level: usize, base: u64, prefix: Option<&str>) {
        let types = self.types;
        for (name, member) in types.members(id) {
            if !self.has_room(level) {
                return;
            }
            let offset = base.saturating_add(member.offset_bytes);
            let declared = Declarator::new(types, member.ty, name.unwrap_or_default());
            if let (Some(name), Some(prefix)) = (name, prefix) {
                self.members.push(DeclaredMember {
                    name: format!("{prefix}{name}"),
                    declared: declaration(types, member.ty),
                    offset,
                    size: member.size_bytes,
                    bits: member.bits.map(|bits| (bits.offset, bits.size)),
                });
            }
            let nameless = declared.base.filter(|base| types.name_of(*base).is_none());
            let is_enum = nameless.is_some_and(|base| types.get(base) == Some(Type::Enum));
            match nameless.and_then(|base| types.as_struct(base)) {
                Some(inner) if level < MAX_DEPTH => {
                    let keyword = self.keyword(inner.into());
                    self.line(level, &format!("{}{keyword} {{", declared.qualifiers), "");
                    // The members of an array's elements have no offsets of their own, and those behind a pointer are elsewhere.
                    let prefix = prefix.filter(|_| types.as_struct(member.ty).is_some());
                    let prefix = prefix.map(|prefix| match name {
                        Some(name) => format!("{prefix}{name}."),
                        None => prefix.to_owned(),
                    });
                    let base = if self.is_inside(member.ty) { offset } else { 0 };
                    self.members(inner, level + 1, base, prefix.as_deref());
                    let tail = format!("}} {};", declared.declarator).replace("} ;", "};");
                    self.line(level, &tail, &place(offset, &member));
                }
                _ if is_enum && level < MAX_DEPTH => {
                    self.line(level, "enum {", "");
                    if let Some(base) = nameless {
                        self.enumerators(base, level + 1);
                    }
                    let tail = format!("}} {};", declared.declarator);
                    self.line(level, &tail, &place(offset, &member));
                }
                _ => {
                    let width = member.bits.map(|bits| format!(":{}", bits.size));
                    let declared = declared.with_base(types) + &width.unwrap_or_default();
                    self.line(level, &format!("{declared};"), &place(offset, &member));
                }
            }
        }
    }
}

fn place(offset: u64, member: &Member) -> String {
    match member.bits {
        Some(bits) => format!("{offset:>5}:{} {:>5}", bits.offset, member.size_bytes),
        None => format!("{offset:>5}   {:>5}", member.size_bytes),
    }
}

#[cfg(test)]
mod tests {
    use introspect::btf::synthetic::{Blob, sample};

    use super::*;

    fn text(name: &str) -> String {
        let types = Btf::parse(sample()).expect("the sample");
        let declaration = Declaration::find(&types, name).unwrap_or_else(|error| panic!("{error}"));
        let lines = declaration.text.lines();
        let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn members_have_offsets_and_sizes() {
        let expected = "struct outer {
int first; /* 0 4 */
union {
long whole; /* 8 8 */
int half; /* 8 4 */
}; /* 8 8 */
struct inner inner; /* 16 16 */
int grid[2][3]; /* 32 24 */
long tail; /* 56 8 */
}; /* size: 72 */";
        assert_eq!(text("outer"), expected);
        assert_eq!(text("struct outer"), expected);
        let types = Btf::parse(sample()).expect("the sample");
        let members = Declaration::find(&types, "outer")
            .expect("a struct")
            .members;
        let half = members.iter().find(|member| member.name == "half");
        assert_eq!(half.map(|half| (half.offset, half.size)), Some((8, 4)));
    }

    #[test]
    fn bit_fields_enums_typedefs_and_functions_are_declared() {
        let flags =
            "struct flags {\nint bits:12; /* 0:3 2 */\nint plain; /* 4 4 */\n}; /* size: 8 */";
        assert_eq!(text("flags"), flags);
        let state = "enum state {\nBAD = -1,\nGOOD = 0,\nFINE = 7,\n}; /* size: 4 */";
        assert_eq!(text("enum state"), state);
        assert_eq!(text("alias_t"), "typedef const long alias_t;");
        assert_eq!(text("open"), "int open(struct outer *where, int);");
        assert_eq!(text("print"), "void print(struct outer *format, ...);");
        assert_eq!(text("int"), "int; /* size: 4 */");
    }

    #[test]
    fn members_behind_a_pointer_are_no_members_of_the_type() {
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let inner = blob.structure("", 8, &[("a", int, 0), ("b", int, 4)]);
        let pointer = blob.pointer(inner);
        let array = blob.array(inner, 2);
        let members = [
            ("first", int, 0),
            ("to", pointer, 8),
            ("of", array, 16),
            ("in", inner, 32),
        ];
        blob.structure("outer", 40, &members);
        let types = Btf::parse(blob.finish()).expect("types");
        let outer = Declaration::find(&types, "outer").expect("a struct");
        let names = outer
            .members
            .iter()
            .map(|member| (&*member.name, member.offset));
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                ("first", 0),
                ("to", 8),
                ("of", 16),
                ("in", 32),
                ("in.a", 32),
                ("in.b", 36)
            ]
        );
        let offsets = outer.text.lines().filter(|line| line.contains("int b;"));
        let offsets = offsets.map(|line| line.split_whitespace().nth(3));
        assert_eq!(
            offsets.collect::<Vec<_>>(),
            [Some("4"), Some("20"), Some("36")]
        );
    }

    #[test]
    fn unsigned_enumerators_have_no_sign() {
        let mut blob = Blob::new();
        let body = [blob.string("LAST"), u32::MAX, u32::MAX];
        blob.record("wide", (19, false), 1, 8, &body);
        let types = Btf::parse(blob.finish()).expect("types");
        let wide = Declaration::find(&types, "wide").expect("an enum");
        assert!(
            wide.text.contains("LAST = 18446744073709551615,"),
            "{}",
            wide.text
        );
    }

    #[test]
    fn unknown_type_has_near_names() {
        let types = Btf::parse(sample()).expect("the sample");
        let error = Declaration::find(&types, "struct outre").expect_err("no such struct");
        assert_eq!(error.to_string(), "the kernel has no type `struct outre`");
        let DeclarationError::Unknown(EvaluateError::NoType { near, .. }) = error else {
            panic!("{error}")
        };
        assert_eq!(near.first().map(String::as_str), Some("outer"), "{near:?}");
        let error = Declaration::find(&types, "a.b").expect_err("no name");
        assert!(
            error
                .to_string()
                .starts_with("`a.b` is not the name of a type"),
            "{error}"
        );
    }
}
