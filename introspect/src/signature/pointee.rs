//! The members of a small struct that a parameter points to.
//!
//! A struct whose members say something in a line is shown: few numbers and strings, no structs within. A struct of pointers alone,
//! for instance a list, says nothing.

use std::sync::Arc;

use super::kind::Kind;
use super::{MAX_NAME_BYTES, Macros, Shape, shortened};
use crate::btf::{Btf, StructId, Type, TypeId};

/// Larger structs are not shown.
const MAX_STRUCT_BYTES: u64 = 32;
/// Structs with more members are not shown.
const MAX_MEMBERS: usize = 6;
/// The deepest nesting of nameless structs and unions.
const MAX_DEPTH: usize = 4;
/// The most members looked at: a nameless struct may have none of its own, and a guest chooses the types of its modules.
const MAX_VISITED: usize = 64;
/// The argument of `openat2`.
const OPEN_HOW: &str = "open_how";
/// The member of [`OPEN_HOW`] that is made of macros.
const FLAGS: &str = "flags";

/// A small struct behind a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointee {
    /// The number of bytes to read.
    pub bytes: usize,
    /// The members; those of a union overlap.
    pub members: Box<[PointeeMember]>,
}

/// A member of a small struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointeeMember {
    /// The name in the source.
    pub name: Arc<str>,
    /// The offset in bytes.
    pub at: usize,
    /// The type.
    pub shape: Shape,
}

impl Pointee {
    /// The struct that a parameter of the type `ty` points to; `None` for all other types, and for a struct that is not shown.
    pub(super) fn of(types: &Btf, ty: TypeId) -> Option<Self> {
        let Type::Pointer(target) = types.get(types.stripped(ty)?)? else {
            return None;
        };
        Self::of_struct(types, types.stripped(target)?)
    }

    /// The struct `ty`; `None` if it is not shown.
    pub(super) fn of_struct(types: &Btf, ty: TypeId) -> Option<Self> {
        let Type::Struct(id) = types.get(ty)? else {
            return None;
        };
        let bytes = types
            .size_of(id)
            .filter(|bytes| *bytes <= MAX_STRUCT_BYTES)?;
        let mut search = MemberSearch {
            types,
            is_open_how: types.name_of(ty) == Some(OPEN_HOW),
            bytes,
            visits: MAX_VISITED,
            members: Vec::new(),
        };
        search.collect(id, 0, MAX_DEPTH)?;
        let members = search.members;
        let says_something = |member: &PointeeMember| member.shape.kind != Kind::Pointer;
        members.iter().any(says_something).then(|| Self {
            bytes: usize::try_from(bytes).unwrap_or_default(),
            members: members.into(),
        })
    }
}

impl PointeeMember {
    /// The member's value in the struct's bytes.
    #[must_use]
    pub fn word(&self, bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        let held = bytes.get(self.at..).unwrap_or_default();
        let held = &held[..held.len().min(word.len())];
        word[..held.len()].copy_from_slice(held);
        // The bytes of the next member have no meaning for the type.
        u64::from_le_bytes(word)
    }
}

/// The members found so far of a struct.
struct MemberSearch<'s> {
    types: &'s Btf,
    /// Whether the struct is [`OPEN_HOW`].
    is_open_how: bool,
    /// The size of the struct.
    bytes: u64,
    /// The number of members that may still be looked at.
    visits: usize,
    members: Vec<PointeeMember>,
}

impl MemberSearch<'_> {
    /// Appends the members of `id` at `base`, and of nameless structs and unions in it. `None` if one cannot be shown in a word.
    fn collect(&mut self, id: StructId, base: u64, depth: usize) -> Option<()> {
        for (name, member) in self.types.members(id) {
            self.visits = self.visits.checked_sub(1)?;
            let at = base.checked_add(member.offset_bytes)?;
            if at.checked_add(member.size_bytes)? > self.bytes {
                return None;
            }
            let Some(name) = name else {
                let inner = self.types.as_struct(member.ty)?;
                self.collect(inner, at, depth.checked_sub(1)?)?;
                continue;
            };
            let mut shape = Shape::new(self.types, member.ty);
            shape.macros = self.is_open_how.then_some(Macros::OpenFlags);
            shape.macros = shape.macros.filter(|_| name == FLAGS);
            let is_shown = !matches!(shape.kind, Kind::Larger | Kind::Word { .. });
            if member.bits.is_some() || !is_shown || self.members.len() == MAX_MEMBERS {
                return None;
            }
            self.members.push(PointeeMember {
                name: shortened(name, MAX_NAME_BYTES),
                at: usize::try_from(at).ok()?,
                shape,
            });
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Signature;
    use crate::btf::synthetic::Blob;

    /// What a parameter of the type `ty` shows.
    fn pointee(mut blob: Blob, ty: u32) -> Option<Pointee> {
        blob.function("f", 0, &[("p", ty)]);
        let types = Btf::parse(blob.finish()).expect("types");
        let signature = Signature::of_function(&types, "f").expect("typed");
        signature.params[0].pointee.clone()
    }

    #[test]
    fn small_struct_has_its_members_and_those_of_nameless_ones() {
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let long = blob.int("long", 8);
        let char = blob.int("char", 1);
        let constant = blob.constant(char);
        let text = blob.pointer(constant);
        let both = blob.structure("", 8, &[("hash", int, 0), ("len", int, 4)]);
        let members = [("", both, 0), ("name", text, 8), ("rest", long, 16)];
        let name = blob.structure("qstr", 24, &members);
        let pointer = blob.pointer(name);
        let pointee = pointee(blob, pointer).expect("shown");
        let members = pointee.members.iter();
        let members: Vec<_> = members.map(|member| (&*member.name, member.at)).collect();
        let expected = [("hash", 0), ("len", 4), ("name", 8), ("rest", 16)];
        assert_eq!((pointee.bytes, &*members), (24, &expected[..]));
        assert_eq!(pointee.members[2].shape.kind, Kind::String);
        let bytes: Vec<u8> = (1..=20).collect();
        let kind = pointee.members[1].shape.kind;
        assert_eq!(kind.number(pointee.members[1].word(&bytes)), 0x0807_0605);
        assert_eq!(pointee.members[3].word(&bytes), 0x1413_1211);
    }

    #[test]
    fn only_the_flags_of_an_opened_file_are_macros() {
        let macros = |holder: &str| {
            let mut blob = Blob::new();
            let long = blob.int("long unsigned int", 8);
            let members = [("flags", long, 0), ("mode", long, 8)];
            let holder = blob.structure(holder, 16, &members);
            let pointer = blob.pointer(holder);
            let pointee = pointee(blob, pointer).expect("shown");
            let members = pointee.members.iter();
            members
                .map(|member| member.shape.macros)
                .collect::<Vec<_>>()
        };
        assert_eq!(macros("open_how"), [Some(Macros::OpenFlags), None]);
        assert_eq!(macros("other"), [None, None]);
    }

    #[test]
    fn nameless_structs_without_end_and_members_beyond_the_struct_are_not_shown() {
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let mut inner = blob.structure("", 0, &[]);
        for _ in 0..MAX_DEPTH {
            inner = blob.structure("", 0, &[("", inner, 0); 500]);
        }
        let top = blob.structure("top", 8, &[("", inner, 0), ("value", int, 0)]);
        let pointer = blob.pointer(top);
        assert_eq!(pointee(blob, pointer), None);
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let short = blob.structure("short", 4, &[("value", int, 0), ("beyond", int, 4)]);
        let pointer = blob.pointer(short);
        assert_eq!(pointee(blob, pointer), None);
    }

    #[test]
    fn struct_that_says_nothing_in_a_line_is_not_shown() {
        let names: Vec<String> = (0..7).map(|number| format!("member_{number}")).collect();
        for number in 0..8 {
            let mut blob = Blob::new();
            let int = blob.int("int", 4);
            let to_int = blob.pointer(int);
            let inner = blob.structure("inner", 4, &[("value", int, 0)]);
            let many: Vec<_> = names.iter().map(|name| (name.as_str(), int, 0)).collect();
            let hidden = match number {
                0 => blob.structure("list", 16, &[("next", to_int, 0), ("prev", to_int, 8)]),
                1 => blob.structure("nested", 8, &[("inner", inner, 0), ("value", int, 4)]),
                2 => blob.structure("large", 40, &[("value", int, 0)]),
                3 => blob.structure("many", 28, &many),
                // Three bits, in a struct with bit fields.
                4 => blob.structure_in_bits("bits", (4, true), 4, &[("low", int, 3 << 24)]),
                5 => blob.structure("empty", 0, &[]),
                6 => int,
                _ => to_int,
            };
            let pointer = blob.pointer(hidden);
            assert_eq!(pointee(blob, pointer), None, "{number}");
        }
    }
}
