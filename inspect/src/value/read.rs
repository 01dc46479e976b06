//! Reads values.

use std::borrow::Cow;

use address::Gva;
use introspect::Btf;
use introspect::btf::{BitField, Enum, Int, StructId, Type, TypeId, declaration};

use super::object::Object;
use super::tree::{Field, Pointee, Value};
use crate::view::KernelView;

/// The most nameless structs in each other.
const MAX_NAMELESS: usize = 16;

/// What is shown of a value at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Structs in structs.
    pub depth: usize,
    /// Numbers, pointers, strings and structs together.
    pub values: usize,
    /// Elements of each array.
    pub elements: u32,
    /// Characters of each string.
    pub characters: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth: 4,
            values: 4096,
            elements: 32,
            characters: 256,
        }
    }
}

/// Reads values of a kernel's types, within limits for all of them together.
#[derive(Debug)]
pub struct Reader<'k> {
    view: KernelView<'k>,
    types: &'k Btf,
    limits: Limits,
    /// The number of values that may still be read.
    left: usize,
}

impl<'k> Reader<'k> {
    /// A reader of values of `types`, which are the kernel's own or a module's.
    #[must_use]
    pub fn new(view: KernelView<'k>, types: &'k Btf, limits: Limits) -> Self {
        Self {
            view,
            types,
            limits,
            left: limits.values,
        }
    }

    /// The value of type `ty` in memory at `at`; `bits` are those of a bit field.
    pub fn at(&mut self, at: Gva, ty: TypeId, bits: Option<BitField>) -> Value {
        let size = match bits {
            Some(bits) => (u64::from(bits.offset) + u64::from(bits.size)).div_ceil(8),
            None => self.types.size_of(ty).unwrap_or(0),
        };
        let object = Object::read(&self.view, at, size);
        if object.is_missing() {
            return Value::Fault(at);
        }
        self.value(&object, 0, ty, bits, self.limits.depth)
    }

    /// The value of type `ty` with the lowest bytes of `word`.
    pub fn of_word(&mut self, word: u64, ty: TypeId) -> Value {
        let object = Object::of_bytes(&word.to_le_bytes());
        self.value(&object, 0, ty, None, self.limits.depth)
    }

    /// A pointer with the symbol at its target.
    #[must_use]
    pub fn pointer(&self, address: Gva) -> Value {
        let symbol = self.view.symbol_at(address);
        Value::Pointer(Pointee { address, symbol })
    }

    fn value(
        &mut self,
        object: &Object,
        offset: u64,
        ty: TypeId,
        bits: Option<BitField>,
        depth: usize,
    ) -> Value {
        let Some(left) = self.left.checked_sub(1) else {
            return Value::Omitted;
        };
        self.left = left;
        let Some(ty) = self.types.stripped(ty) else {
            return Value::Omitted;
        };
        match self.types.get(ty) {
            Some(Type::Struct(id) | Type::Union(id)) => match depth.checked_sub(1) {
                Some(depth) => {
                    let mut fields = Vec::new();
                    let omitted = self.fields(object, offset, id, depth, MAX_NAMELESS, &mut fields);
                    Value::Struct { fields, omitted }
                }
                None => Value::Omitted,
            },
            Some(Type::Array { element, len }) => self.array(object, offset, element, len, depth),
            Some(kind) => match self.bytes(object, offset, ty, bits) {
                Ok(bytes) => self.scalar(&bytes, ty, kind, bits),
                Err(Some(missing)) => Value::Fault(missing),
                Err(None) => Value::Omitted,
            },
            None => Value::Omitted,
        }
    }

    fn bytes(
        &self,
        object: &Object,
        offset: u64,
        ty: TypeId,
        bits: Option<BitField>,
    ) -> Result<Vec<u8>, Option<Gva>> {
        let len = match bits {
            Some(bits) => (u64::from(bits.offset) + u64::from(bits.size)).div_ceil(8),
            None => self.types.size_of(ty).ok_or(None)?,
        };
        object.bytes(offset, len.min(16))
    }

    /// The members of `id`, and of the nameless structs and unions in it. Returns the number of those left out.
    fn fields(
        &mut self,
        object: &Object,
        offset: u64,
        id: StructId,
        depth: usize,
        nameless: usize,
        fields: &mut Vec<Field>,
    ) -> u64 {
        let types = self.types;
        let mut omitted = 0;
        for (name, member) in types.members(id) {
            let inner = types.as_struct(member.ty);
            // A nameless bit field is padding.
            let is_shown = name.is_some() || inner.is_some();
            let Some(left) = self.left.checked_sub(1) else {
                omitted += u64::from(is_shown);
                continue;
            };
            let Some(at) = offset.checked_add(member.offset_bytes) else {
                self.left = left;
                omitted += u64::from(is_shown);
                continue;
            };
            match (name, inner, nameless.checked_sub(1)) {
                (Some(name), ..) => {
                    let value = self.value(object, at, member.ty, member.bits, depth);
                    fields.push(Field {
                        name: name.to_owned(),
                        declared: declaration(types, member.ty),
                        value,
                    });
                }
                (None, Some(inner), Some(nameless)) => {
                    self.left = left;
                    omitted += self.fields(object, at, inner, depth, nameless, fields);
                }
                (None, ..) => {
                    self.left = left;
                    omitted += u64::from(is_shown);
                }
            }
        }
        omitted
    }

    fn array(
        &mut self,
        object: &Object,
        offset: u64,
        element: TypeId,
        len: u32,
        depth: usize,
    ) -> Value {
        let Some(size) = self.types.size_of(element) else {
            return Value::Omitted;
        };
        if self.is_character(element) && len > 0 {
            return self.string(object, offset, len);
        }
        let mut elements = Vec::new();
        for number in 0..len.min(self.limits.elements) {
            let at = u64::from(number)
                .checked_mul(size)
                .and_then(|by| offset.checked_add(by));
            let (Some(at), true) = (at, self.left > 0) else {
                break;
            };
            let value = self.value(object, at, element, None, depth);
            let is_missing = matches!(value, Value::Fault(_));
            elements.push(value);
            // One fault says as much as one for each element of the page.
            if is_missing {
                break;
            }
        }
        let omitted = u64::from(len) - elements.len() as u64;
        Value::Array { elements, omitted }
    }

    fn string(&self, object: &Object, offset: u64, len: u32) -> Value {
        let mut text = Vec::new();
        let mut cut = len > self.limits.characters;
        for number in 0..u64::from(len.min(self.limits.characters)) {
            match object.bytes(offset.saturating_add(number), 1).as_deref() {
                Ok([0]) => {
                    cut = false;
                    break;
                }
                Ok(byte) => text.extend(byte),
                Err(Some(missing)) if text.is_empty() => return Value::Fault(*missing),
                Err(None) if text.is_empty() => return Value::Omitted,
                Err(_) => {
                    cut = true;
                    break;
                }
            }
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        Value::String { text, cut }
    }

    /// Whether an array of the type is text: of `char`, not of bytes with another name.
    fn is_character(&self, ty: TypeId) -> bool {
        let stripped = self.types.stripped(ty);
        stripped.is_some_and(|ty| self.types.name_of(ty) == Some("char"))
    }

    fn scalar(&self, bytes: &[u8], ty: TypeId, kind: Type, bits: Option<BitField>) -> Value {
        let mut wide = [0; 16];
        let Some(held) = wide.get_mut(..bytes.len()) else {
            return Value::Bytes(bytes.to_vec());
        };
        held.copy_from_slice(bytes);
        let (offset, size) = match bits {
            Some(bits) => (u32::from(bits.offset), u32::from(bits.size)),
            None => (0, u32::try_from(bytes.len() * 8).unwrap_or(0)),
        };
        if !(1..=64).contains(&size) {
            return Value::Bytes(bytes.to_vec());
        }
        let shifted = (u128::from_le_bytes(wide) >> offset).to_le_bytes();
        let [low, _] = [0, 8].map(|at| {
            let half = shifted[at..at + 8].try_into();
            half.map_or(0, u64::from_le_bytes)
        });
        let unused = 64 - size;
        let unsigned = low << unused >> unused;
        let signed = (low << unused).cast_signed() >> unused;
        match kind {
            Type::Int(Int { boolean: true, .. }) => Value::Bool(unsigned != 0),
            Type::Int(Int { signed: true, .. }) => Value::Signed(signed),
            Type::Int(_) => Value::Unsigned(unsigned),
            Type::Enum => {
                let of_enum = self.types.as_enum(ty);
                let (bits, number) = if of_enum.is_some_and(Enum::is_signed) {
                    (signed, Value::Signed(signed))
                } else {
                    (unsigned.cast_signed(), Value::Unsigned(unsigned))
                };
                Value::Enum {
                    number: Box::new(number),
                    name: of_enum
                        .and_then(|of_enum| of_enum.meaning(bits))
                        .map(Cow::into_owned),
                }
            }
            Type::Pointer(_) => self.pointer(Gva(unsigned)),
            _ => Value::Bytes(bytes.to_vec()),
        }
    }
}
