//! Members by path.

use super::{BitField, Btf, Member, StructId, Type, TypeId, format::Record};

const MEMBER_BYTES: usize = 12;
/// The deepest nesting of nameless structs; the kernel nests four.
const MAX_ANONYMOUS_DEPTH: usize = 16;
/// The most members visited for one name, the members of nameless structs included. `task_struct`
/// has 300.
const MAX_VISITED: usize = 1 << 17;

/// A member as in the BTF record.
#[derive(Clone, Copy)]
struct Field<'b> {
    name: Option<&'b str>,
    ty: TypeId,
    /// From the beginning of the struct holding the member.
    bit_offset: u64,
    /// `None` if the record does not mark a bit field.
    bit_size: Option<u8>,
}

impl Btf {
    /// The member of `id` at `path`: names with dots between them, each but the last the name of an
    /// embedded struct or union. The lookup descends into nameless structs and unions, as in C.
    #[must_use]
    pub fn member(&self, id: StructId, path: &str) -> Option<Member> {
        let mut base: u64 = 0;
        let mut holder = id;
        let mut names = path.split('.').peekable();
        while let Some(name) = names.next() {
            let mut visits = MAX_VISITED;
            let field = self.field(holder, name, MAX_ANONYMOUS_DEPTH, &mut visits)?;
            if names.peek().is_none() {
                return self.finish(base, &field);
            }
            base = base.checked_add(field.bit_offset)?;
            holder = self.as_struct(field.ty)?;
        }
        None
    }

    /// The names of the members of `id` in order, without the members of nameless structs.
    pub fn member_names(&self, id: StructId) -> impl Iterator<Item = &str> {
        self.fields(id).filter_map(|field| field.name)
    }

    /// The struct or union behind the typedefs and qualifiers of `ty`.
    #[must_use]
    pub fn as_struct(&self, ty: TypeId) -> Option<StructId> {
        match self.get(self.stripped(ty)?)? {
            Type::Struct(id) | Type::Union(id) => Some(id),
            _ => None,
        }
    }

    /// The field called `name`, with the offset counted from `id`.
    fn field(
        &self,
        id: StructId,
        name: &str,
        depth: usize,
        visits: &mut usize,
    ) -> Option<Field<'_>> {
        for field in self.fields(id) {
            *visits = visits.checked_sub(1)?;
            if field.name == Some(name) {
                return Some(field);
            }
            let inner = (field.name.is_none() && depth > 0)
                .then(|| self.as_struct(field.ty))
                .flatten()
                .and_then(|inner| self.field(inner, name, depth - 1, visits));
            if let Some(inner) = inner {
                let bit_offset = inner.bit_offset.checked_add(field.bit_offset)?;
                return Some(Field {
                    bit_offset,
                    ..inner
                });
            }
        }
        None
    }

    fn fields(&self, id: StructId) -> impl Iterator<Item = Field<'_>> {
        let record = self.record(id.0);
        record.into_iter().flat_map(move |record| {
            (0..record.count).map_while(move |number| self.nth_field(&record, number))
        })
    }

    fn nth_field(&self, record: &Record, number: usize) -> Option<Field<'_>> {
        let at = record.body.checked_add(number.checked_mul(MEMBER_BYTES)?)?;
        let offset = self.word(at + 8)?;
        let [low, middle, high, bits] = offset.to_le_bytes();
        let (bit_offset, bits) = if record.flag {
            (u32::from_le_bytes([low, middle, high, 0]), bits)
        } else {
            (offset, 0)
        };
        Some(Field {
            name: self.string(self.word(at)?),
            ty: TypeId(self.word(at + 4)?),
            bit_offset: u64::from(bit_offset),
            bit_size: (bits != 0).then_some(bits),
        })
    }

    /// Makes the member of `field` in a struct beginning at bit `base`.
    fn finish(&self, base: u64, field: &Field<'_>) -> Option<Member> {
        let start = base.checked_add(field.bit_offset)?;
        let offset_bytes = start / 8;
        let Some(size) = field.bit_size.or_else(|| self.narrow_int(field.ty)) else {
            return Some(Member {
                offset_bytes,
                size_bytes: self.size_of(field.ty).unwrap_or(0),
                bits: None,
                ty: field.ty,
            });
        };
        let offset = u8::try_from(start % 8).ok()?;
        Some(Member {
            offset_bytes,
            size_bytes: (u64::from(offset) + u64::from(size)).div_ceil(8),
            bits: Some(BitField { offset, size }),
            ty: field.ty,
        })
    }

    /// The size in bits of an integer with fewer bits than the bytes have: early compilers wrote a
    /// bit field like this. A `bool` has 8 bits.
    fn narrow_int(&self, ty: TypeId) -> Option<u8> {
        match self.get(self.stripped(ty)?)? {
            Type::Int(int) if u64::from(int.bits) < int.size_bytes.saturating_mul(8) => {
                (int.bits != 0).then_some(int.bits)
            }
            _ => None,
        }
    }
}
