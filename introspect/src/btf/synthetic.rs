//! Writes small blobs.

use super::{Btf, format};

/// Types in the order they are added, the first of them number 1.
#[derive(Debug, Default)]
pub struct Blob {
    types: Vec<u8>,
    strings: Vec<u8>,
    layouts: Vec<u8>,
    /// The number of the last type.
    count: u32,
    /// The offset of the first string.
    strings_from: u32,
}

impl Blob {
    /// With the empty string, which every blob begins with.
    pub fn new() -> Self {
        Self {
            strings: vec![0],
            ..Self::default()
        }
    }

    /// The blob of a module, on top of the kernel's types.
    pub fn on(kernel: &Btf) -> Self {
        Self {
            count: u32::try_from(kernel.len()).expect("few types"),
            strings_from: u32::try_from(kernel.records.strings_len()).expect("few strings"),
            ..Self::new()
        }
    }

    /// Adds any record: `count` goes unchanged into the info word, `body` behind the record.
    /// Returns the new type's number.
    pub fn record(
        &mut self,
        name: &str,
        (kind, flag): (u8, bool),
        count: usize,
        size_or_type: u32,
        body: &[u32],
    ) -> u32 {
        let name = self.string(name);
        let count = u32::try_from(count).expect("a small count");
        let info = u32::from(flag) << 31 | u32::from(kind) << 24 | count;
        for word in [name, info, size_or_type].iter().chain(body) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    pub fn int(&mut self, name: &str, bytes: u32) -> u32 {
        self.record(name, (format::INT, false), 0, bytes, &[bytes * 8])
    }

    pub fn pointer(&mut self, to: u32) -> u32 {
        self.record("", (format::POINTER, false), 0, to, &[])
    }

    pub fn constant(&mut self, of: u32) -> u32 {
        self.record("", (format::CONST, false), 0, of, &[])
    }

    pub fn array(&mut self, element: u32, len: u32) -> u32 {
        self.record("", (format::ARRAY, false), 0, 0, &[element, element, len])
    }

    /// A struct of `bytes` bytes, each member with a type and the offset in bytes.
    pub fn structure(&mut self, name: &str, bytes: u32, members: &[(&str, u32, u32)]) -> u32 {
        let bits: Vec<_> = members
            .iter()
            .map(|&(name, ty, offset)| (name, ty, offset * 8))
            .collect();
        self.structure_in_bits(name, (format::STRUCT, false), bytes, &bits)
    }

    /// The same with a kind and flag, and offsets as they stand in the blob.
    pub fn structure_in_bits(
        &mut self,
        name: &str,
        kind: (u8, bool),
        bytes: u32,
        members: &[(&str, u32, u32)],
    ) -> u32 {
        let body: Vec<u32> = members
            .iter()
            .flat_map(|&(name, ty, offset)| [self.string(name), ty, offset])
            .collect();
        self.record(name, kind, members.len(), bytes, &body)
    }

    pub fn enumeration(&mut self, name: &str, signed: bool, values: &[(&str, u32)]) -> u32 {
        let body: Vec<u32> = values
            .iter()
            .flat_map(|&(name, value)| [self.string(name), value])
            .collect();
        self.record(name, (format::ENUM, signed), values.len(), 4, &body)
    }

    pub fn function(&mut self, name: &str, returns: u32, params: &[(&str, u32)]) -> u32 {
        let body: Vec<u32> = params
            .iter()
            .flat_map(|&(name, ty)| [self.string(name), ty])
            .collect();
        let kind = (format::PROTOTYPE, false);
        let prototype = self.record("", kind, params.len(), returns, &body);
        self.record(name, (format::FUNCTION, false), 1, prototype, &[])
    }

    /// Tells how long records of `kind` are, as kernels from 7.1 on may.
    pub fn layout(&mut self, kind: u8, fixed: u8, each: u8) {
        let at = usize::from(kind) * 4;
        self.layouts.resize(self.layouts.len().max(at + 4), 0);
        self.layouts[at..at + 2].copy_from_slice(&[fixed, each]);
    }

    pub fn finish(self) -> Vec<u8> {
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("a small section");
        let (types, strings) = (len(&self.types), len(&self.strings));
        let mut words = vec![0x0001_eb9f, 24, 0, types, types, strings];
        if !self.layouts.is_empty() {
            words[1] = 32;
            words.extend([types + strings, len(&self.layouts)]);
        }
        let header = words.iter().flat_map(|word| word.to_le_bytes());
        let mut blob: Vec<u8> = header.collect();
        blob.extend(self.types);
        blob.extend(self.strings);
        blob.extend(self.layouts);
        blob
    }

    pub fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let start = u32::try_from(self.strings.len()).expect("few strings");
        self.strings.extend(text.bytes());
        self.strings.push(0);
        self.strings_from + start
    }
}

/// A blob with a bit of everything.
pub fn sample() -> Vec<u8> {
    let mut blob = Blob::new();
    let int = blob.int("int", 4);
    let long = blob.int("long", 8);
    let constant = blob.record("", (format::CONST, false), 0, long, &[]);
    let alias = blob.record("alias_t", (format::TYPEDEF, false), 0, constant, &[]);
    let grid = blob.array(int, 3);
    let grid = blob.array(grid, 2);
    let inner = blob.structure("inner", 16, &[("a", int, 0), ("b", alias, 8)]);
    let nameless = blob.structure_in_bits(
        "",
        (format::UNION, false),
        8,
        &[("whole", long, 0), ("half", int, 0)],
    );
    let outer = blob.structure(
        "outer",
        72,
        &[
            ("first", int, 0),
            ("", nameless, 8),
            ("inner", inner, 16),
            ("grid", grid, 32),
            ("tail", long, 56),
        ],
    );
    let pointer = blob.pointer(outer);
    // 12 bits at bit 3, and a plain member behind them.
    let fields = [("bits", int, 12 << 24 | 3), ("plain", int, 32)];
    blob.structure_in_bits("flags", (format::STRUCT, true), 8, &fields);
    blob.enumeration(
        "state",
        true,
        &[("BAD", u32::MAX), ("GOOD", 0), ("FINE", 7)],
    );
    blob.enumeration("mask", false, &[("TOP", 1 << 31)]);
    blob.function("open", int, &[("where", pointer), ("", int)]);
    blob.function("print", 0, &[("format", pointer), ("", 0)]);
    blob.finish()
}
