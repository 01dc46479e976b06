//! Members by path.

use super::{BitField, Btf, Int, Member, StructId, Type, TypeId, record::RecordMember};

/// The deepest nesting of nameless structs; the kernel nests four.
const MAX_ANONYMOUS_DEPTH: usize = 16;
/// The most members visited for one name, the members of nameless structs included. `task_struct`
/// has 300.
const MAX_VISITED: usize = 1 << 17;

impl Btf {
    /// The member of `id` at `path`: names with dots between them, each but the last the name of an
    /// embedded struct or union. The lookup descends into nameless structs and unions, as in C.
    #[must_use]
    pub fn member(&self, id: StructId, path: &str) -> Option<Member> {
        let mut base: u64 = 0;
        let mut holder = id;
        let mut names = path.split('.').peekable();
        while let Some(name) = names.next() {
            let mut search = MemberSearch {
                btf: self,
                name,
                visits: MAX_VISITED,
            };
            let found = search.find(holder, MAX_ANONYMOUS_DEPTH)?;
            if names.peek().is_none() {
                return describe(self, base, &found);
            }
            base = base.checked_add(found.bit_offset)?;
            holder = self.as_struct(found.ty)?;
        }
        None
    }

    /// The names of the members of `id` in order, without the members of nameless structs.
    pub fn member_names(&self, id: StructId) -> impl Iterator<Item = &str> {
        record_members(self, id).filter_map(|member| self.records.string(member.name))
    }

    /// The members of `id` in order. A nameless struct or union is one member, without a name.
    pub fn members(&self, id: StructId) -> impl Iterator<Item = (Option<&str>, Member)> {
        record_members(self, id).filter_map(|member| {
            let name = self.records.string(member.name);
            Some((name, describe(self, 0, &member)?))
        })
    }

    /// The struct or union behind the typedefs and qualifiers of `ty`.
    #[must_use]
    pub fn as_struct(&self, ty: TypeId) -> Option<StructId> {
        match self.get(self.stripped(ty)?)? {
            Type::Struct(id) | Type::Union(id) => Some(id),
            _ => None,
        }
    }
}

/// The search for a name among the members of a struct or union.
struct MemberSearch<'s> {
    btf: &'s Btf,
    name: &'s str,
    /// The number of members left to visit.
    visits: usize,
}

impl MemberSearch<'_> {
    /// The member in `id`, or in nameless structs and unions nested at most `depth` deep, with the
    /// offset counted from `id`.
    fn find(&mut self, id: StructId, depth: usize) -> Option<RecordMember> {
        for member in record_members(self.btf, id) {
            self.visits = self.visits.checked_sub(1)?;
            let name = self.btf.records.string(member.name);
            if name == Some(self.name) {
                return Some(member);
            }
            let inner = (name.is_none() && depth > 0)
                .then(|| self.btf.as_struct(member.ty))
                .flatten()
                .and_then(|inner| self.find(inner, depth - 1));
            if let Some(inner) = inner {
                let bit_offset = inner.bit_offset.checked_add(member.bit_offset)?;
                return Some(RecordMember {
                    bit_offset,
                    ..inner
                });
            }
        }
        None
    }
}

fn record_members(btf: &Btf, id: StructId) -> impl Iterator<Item = RecordMember> + use<'_> {
    let record = btf.records.record(id.0);
    record.into_iter().flat_map(|record| record.members())
}

/// Describes a member of a struct beginning at bit `base`.
fn describe(btf: &Btf, base: u64, member: &RecordMember) -> Option<Member> {
    let start = base.checked_add(member.bit_offset)?;
    let offset_bytes = start / 8;
    let ty = member.ty;
    let narrow_int = || match btf.get(btf.stripped(ty)?)? {
        Type::Int(int) => narrow_bits(int),
        _ => None,
    };
    let Some(size) = member.bit_size.or_else(narrow_int) else {
        return Some(Member {
            offset_bytes,
            size_bytes: btf.size_of(ty).unwrap_or(0),
            bits: None,
            ty,
        });
    };
    let offset = u8::try_from(start % 8).ok()?;
    Some(Member {
        offset_bytes,
        size_bytes: (u64::from(offset) + u64::from(size)).div_ceil(8),
        bits: Some(BitField { offset, size }),
        ty,
    })
}

/// The size in bits of an integer with fewer bits than the bytes have: early compilers wrote a bit
/// field like this. A `bool` has 8 bits.
fn narrow_bits(int: Int) -> Option<u8> {
    let is_narrow = u64::from(int.bits) < int.size_bytes.saturating_mul(8);
    (is_narrow && int.bits != 0).then_some(int.bits)
}
