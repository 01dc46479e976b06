//! The places of members in the kernel's structs.

use std::ops::Range;

use introspect::Btf;
use introspect::btf::{Slot, StructId};
use thiserror::Error;

/// The largest struct to be read at once: `task_struct` has some 10 KiB.
const MAX_STRUCT_BYTES: usize = 64 << 10;

/// The kernel's types lack a struct or a member.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the kernel's types do not describe `{0}`")]
pub struct NoType(String);

/// A struct of the kernel.
#[derive(Clone, Copy)]
pub(crate) struct StructType<'b> {
    btf: &'b Btf,
    id: StructId,
    name: &'static str,
}

impl<'b> StructType<'b> {
    pub(crate) fn named(btf: &'b Btf, name: &'static str) -> Result<Self, NoType> {
        let id = btf
            .struct_named(name)
            .ok_or_else(|| NoType(format!("struct {name}")))?;
        Ok(Self { btf, id, name })
    }

    /// The number at `path`, which ends within the largest struct.
    pub(crate) fn slot(&self, path: &str) -> Result<Slot, NoType> {
        Slot::find(self.btf, self.id, path)
            .filter(|slot| slot.end() <= MAX_STRUCT_BYTES)
            .ok_or_else(|| self.without(path))
    }

    /// The bytes of the member at `path`, at most `most`.
    pub(crate) fn bytes(&self, path: &str, most: u64) -> Result<Range<usize>, NoType> {
        let member = self.btf.member(self.id, path);
        let range = member.and_then(|member| {
            let start = usize::try_from(member.offset_bytes).ok()?;
            let len = usize::try_from(member.size_bytes.min(most)).ok()?;
            Some(start..start.checked_add(len)?)
        });
        range
            .filter(|range| range.end <= MAX_STRUCT_BYTES && !range.is_empty())
            .ok_or_else(|| self.without(path))
    }

    /// The byte, the shift and the mask of the bit field at `path`, which lies within a byte.
    pub(crate) fn bits(&self, path: &str) -> Result<(usize, u8, u8), NoType> {
        let member = self.btf.member(self.id, path);
        let place = member.and_then(|member| {
            let bits = member.bits.filter(|bits| bits.offset + bits.size <= 8)?;
            let mask = 1_u16.checked_shl(bits.size.into())?.wrapping_sub(1);
            let at = usize::try_from(member.offset_bytes).ok()?;
            Some((at, bits.offset, u8::try_from(mask).ok()?))
        });
        place.ok_or_else(|| self.without(path))
    }

    /// The size in bytes.
    pub(crate) fn size(&self) -> Result<usize, NoType> {
        let size = self.btf.size_of(self.id);
        size.and_then(|size| usize::try_from(size).ok())
            .filter(|size| (1..=MAX_STRUCT_BYTES).contains(size))
            .ok_or_else(|| NoType(format!("the size of struct {}", self.name)))
    }

    /// The error of a struct without `path`.
    pub(crate) fn without(&self, path: &str) -> NoType {
        NoType(format!("struct {}.{path}", self.name))
    }
}
