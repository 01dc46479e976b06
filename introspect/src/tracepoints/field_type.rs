//! The types of fields of records, by their declarations: `pid_t`, `char[16]`, `__data_loc char[]`.
//!
//! A declaration of an array does not have the size of an element: the types of the kernel do.

use crate::btf::Btf;

const POINTER_BYTES: usize = 8;
/// The declaration of a dynamic field, whose word has the offset from the beginning of the record.
const FROM_RECORD: &str = "__data_loc ";
/// The same, with the offset from the end of the word.
const FROM_WORD: &str = "__rel_loc ";
/// Words of bits. The type is a struct of the longest mask, a field is shorter.
const MASK: &str = "cpumask_t";

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldType {
    /// A truth value.
    Bool,
    /// An integer.
    Integer {
        /// Whether it has a sign.
        is_signed: bool,
    },
    /// An address.
    Pointer,
    /// An array in the field.
    Array(Content),
    /// An array behind the fields. The field is a word with offset and length.
    Dynamic {
        /// Where the offset counts from.
        from: DynamicBase,
        content: Content,
    },
}

/// Where the offset of a dynamic array counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DynamicBase {
    /// The beginning of the record.
    Record,
    /// The end of the field's word.
    BehindWord,
}

/// The elements of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Characters, up to a zero.
    Text,
    /// Integers.
    Integers {
        /// The size of an integer: 1, 2, 4 or 8.
        bytes: usize,
        is_signed: bool,
    },
}

impl FieldType {
    /// The type that is declared as `declared`, of a field with `size` bytes. Of an array, `is_signed` is about the elements.
    pub(super) fn new(types: &Btf, declared: &str, size: usize, is_signed: bool) -> Self {
        let dynamic = [
            (FROM_RECORD, DynamicBase::Record),
            (FROM_WORD, DynamicBase::BehindWord),
        ];
        for (prefix, from) in dynamic {
            if let Some(element) = declared.strip_prefix(prefix) {
                let content = Content::new(types, element, is_signed);
                return Self::Dynamic { from, content };
            }
        }
        if declared.contains('[') {
            return Self::Array(Content::new(types, declared, is_signed));
        }
        match (declared.trim_end(), size) {
            ("bool" | "_Bool", 1) => Self::Bool,
            (pointer, POINTER_BYTES) if pointer.ends_with('*') => Self::Pointer,
            (_, 1 | 2 | 4 | 8) => Self::Integer { is_signed },
            // A struct.
            _ => Self::Array(Content::BYTES),
        }
    }
}

impl Content {
    const BYTES: Self = Self::Integers {
        bytes: 1,
        is_signed: false,
    };

    /// The content of the array that is declared as `declared`.
    fn new(types: &Btf, declared: &str, is_signed: bool) -> Self {
        let element = declared.split('[').next().unwrap_or_default().trim();
        if is_character(element) {
            return Self::Text;
        }
        match element_bytes(types, element) {
            Some(bytes @ (1 | 2 | 4 | 8)) => Self::Integers { bytes, is_signed },
            // A struct, or an unknown type.
            _ => Self::BYTES,
        }
    }
}

fn is_character(element: &str) -> bool {
    let mut words = element.split_whitespace();
    words.all(|word| matches!(word, "char" | "const" | "signed"))
}

/// The size of an element, bytes.
fn element_bytes(types: &Btf, element: &str) -> Option<usize> {
    if element.ends_with('*') || element == MASK {
        return Some(POINTER_BYTES);
    }
    let words: Vec<&str> = element.split_whitespace().collect();
    let has = |word| words.contains(&word);
    // BTF has these types by one of the spellings of C.
    for (word, bytes) in [("char", 1), ("short", 2), ("long", 8)] {
        if has(word) {
            return Some(bytes);
        }
    }
    if has("int") || words.last() == Some(&"unsigned") {
        return Some(4);
    }
    let known = types.type_named(words.last()?)?;
    usize::try_from(types.size_of(known)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;

    fn ty(declared: &str, size: usize) -> FieldType {
        let mut blob = Blob::new();
        blob.int("u16", 2);
        Btf::parse(blob.finish())
            .map(|types| FieldType::new(&types, declared, size, true))
            .expect("types")
    }

    fn integers(bytes: usize) -> Content {
        Content::Integers {
            bytes,
            is_signed: true,
        }
    }

    #[test]
    fn declaration_says_the_type() {
        assert_eq!(ty("bool", 1), FieldType::Bool);
        assert_eq!(ty("pid_t", 4), FieldType::Integer { is_signed: true });
        assert_eq!(ty("const void *", 8), FieldType::Pointer);
        assert_eq!(ty("char[16]", 16), FieldType::Array(Content::Text));
        assert_eq!(ty("unsigned char[6]", 6), FieldType::Array(integers(1)));
        assert_eq!(ty("unsigned long[2]", 16), FieldType::Array(integers(8)));
        assert_eq!(ty("u16[LEN]", 8), FieldType::Array(integers(2)));
        assert_eq!(ty("struct in6_addr", 16), FieldType::Array(Content::BYTES));
        let dynamic = |from, content| FieldType::Dynamic { from, content };
        assert_eq!(
            ty("__data_loc char[]", 4),
            dynamic(DynamicBase::Record, Content::Text)
        );
        assert_eq!(
            ty("__data_loc cpumask_t", 4),
            dynamic(DynamicBase::Record, integers(8))
        );
        assert_eq!(
            ty("__rel_loc u32[]", 4),
            dynamic(DynamicBase::BehindWord, Content::BYTES)
        );
    }
}
