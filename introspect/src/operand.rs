//! Where code has a value, with the value's size, as an assembler writes the operands of marks: `8@%rax`, `-4@-20(%rbp)`, `4@$5`.
//!
//! Marks in programs have such operands in a note. The values of variables at a source line are written in the same way, with one addition:
//! `8@&-20(%rbp)` is the address itself.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::insn::Gpr;

/// A value in a register or in memory, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SizedOperand {
    /// The number of bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether the value has a sign.
    pub is_signed: bool,
    /// Where the value is.
    pub place: OperandPlace,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandPlace {
    /// In a register, from this bit on.
    Register {
        /// The register.
        register: Gpr,
        /// 8 for `%ah` and its like.
        shift: u8,
        /// The bytes that the named part of the register has.
        bytes: u8,
    },
    /// The value itself.
    Constant(i64),
    /// In memory, at the address.
    Memory(OperandAddress),
    /// The address itself.
    Address(OperandAddress),
}

/// An address, the sum of registers and a displacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OperandAddress {
    /// The register with the base address.
    pub base: Option<Gpr>,
    /// The register with the index, and the factor.
    pub index: Option<(Gpr, u8)>,
    /// The displacement, bytes.
    pub displacement: i64,
}

impl OperandAddress {
    /// The address for the registers `gpr`.
    #[must_use]
    pub fn of(&self, gpr: impl Fn(Gpr) -> u64) -> u64 {
        let base = self.base.map_or(0, &gpr);
        let index = self.index.map_or(0, |(index, factor)| {
            gpr(index).wrapping_mul(u64::from(factor))
        });
        base.wrapping_add(index)
            .wrapping_add_signed(self.displacement)
    }
}

/// Text that is no operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is no operand of an assembler with its size, like `8@%rax`, `-4@-20(%rbp)` or `4@$5`")]
pub struct NotAnOperand;

impl SizedOperand {
    /// The operands in `text`, in order, at most `most`; `None` for each that is not understood: a floating-point number, a variable by its
    /// name, an operand without a size.
    #[must_use]
    pub fn list(text: &str, most: usize) -> Vec<Option<Self>> {
        // A memory operand may have spaces behind its commas.
        let mut depth = 0_i32;
        let between = |c: char| {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            c == ' ' && depth <= 0
        };
        let operands = text.split(between).filter(|operand| !operand.is_empty());
        operands.take(most).map(parse).collect()
    }

    /// Whether the value is in memory.
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        matches!(self.place, OperandPlace::Memory(_))
    }

    /// The 64 bits whose lowest bytes are the value, for the registers `gpr`. `read` reads this number of bytes in memory.
    #[must_use]
    pub fn raw(
        &self,
        gpr: impl Fn(Gpr) -> u64,
        read: impl FnOnce(u64, usize) -> Option<u64>,
    ) -> Option<u64> {
        match self.place {
            OperandPlace::Register {
                register, shift, ..
            } => Some(gpr(register) >> shift),
            OperandPlace::Constant(value) => Some(value.cast_unsigned()),
            OperandPlace::Address(address) => Some(address.of(gpr)),
            OperandPlace::Memory(address) => read(address.of(gpr), usize::from(self.bytes)),
        }
    }

    /// The value in `raw`, of which the lowest bytes count, as a number of 64 bits.
    #[must_use]
    pub const fn value(&self, raw: u64) -> i64 {
        // `bytes` is 1, 2, 4 or 8.
        let unused = 64_u32.saturating_sub(8 * self.bytes as u32);
        let raised = raw.wrapping_shl(unused);
        match self.is_signed {
            true => raised.cast_signed().wrapping_shr(unused),
            false => raised.wrapping_shr(unused).cast_signed(),
        }
    }

    /// The name of the value's type in the kernel: `s32`, `u64`.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match (self.is_signed, self.bytes) {
            (true, 1) => "s8",
            (true, 2) => "s16",
            (true, 4) => "s32",
            (true, _) => "s64",
            (false, 1) => "u8",
            (false, 2) => "u16",
            (false, 4) => "u32",
            (false, _) => "u64",
        }
    }
}

impl FromStr for SizedOperand {
    type Err = NotAnOperand;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or(NotAnOperand)
    }
}

/// Prints the text that parses to the same operand.
impl fmt::Display for SizedOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_signed { "-" } else { "" };
        write!(f, "{sign}{}@", self.bytes)?;
        match self.place {
            OperandPlace::Register {
                register,
                shift,
                bytes,
            } => write!(f, "%{}", part_name(register, shift, bytes)),
            OperandPlace::Constant(value) => write!(f, "${value}"),
            OperandPlace::Memory(address) => write!(f, "{address}"),
            OperandPlace::Address(address) => write!(f, "&{address}"),
        }
    }
}

impl fmt::Display for OperandAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.displacement != 0 {
            write!(f, "{}", self.displacement)?;
        }
        f.write_str("(")?;
        if let Some(base) = self.base {
            write!(f, "%{}", whole_name(base))?;
        }
        if let Some((index, factor)) = self.index {
            write!(f, ",%{},{factor}", whole_name(index))?;
        }
        f.write_str(")")
    }
}

fn parse(text: &str) -> Option<SizedOperand> {
    let (size, place) = text.split_once('@')?;
    let size: i8 = size.parse().ok()?;
    let bytes = size.unsigned_abs();
    if !matches!(bytes, 1 | 2 | 4 | 8) {
        return None;
    }
    let place = parse_place(place)?;
    if let OperandPlace::Register { bytes: held, .. } = place
        && held < bytes
    {
        return None;
    }
    Some(SizedOperand {
        bytes,
        is_signed: size < 0,
        place,
    })
}

fn parse_place(text: &str) -> Option<OperandPlace> {
    if let Some(constant) = text.strip_prefix('$') {
        return Some(OperandPlace::Constant(number(constant)?));
    }
    if let Some(name) = text.strip_prefix('%') {
        return register(name);
    }
    match text.strip_prefix('&') {
        Some(address) => Some(OperandPlace::Address(parse_address(address)?)),
        None => Some(OperandPlace::Memory(parse_address(text)?)),
    }
}

fn parse_address(text: &str) -> Option<OperandAddress> {
    let (displacement, registers) = text.strip_suffix(')')?.split_once('(')?;
    let displacement = match displacement.trim() {
        "" => 0,
        digits => number(digits)?,
    };
    let mut parts = registers.split(',').map(str::trim);
    let base = parts.next().filter(|base| !base.is_empty());
    let base = base.map(address_register);
    let index = parts.next().map(address_register);
    let factor = match parts.next() {
        Some(factor) => factor
            .parse()
            .ok()
            .filter(|it| matches!(it, 1 | 2 | 4 | 8))?,
        None => 1,
    };
    if parts.next().is_some() {
        return None;
    }
    let index = match index {
        Some(index) => Some((index?, factor)),
        None => None,
    };
    let base = match base {
        Some(base) => Some(base?),
        None => None,
    };
    Some(OperandAddress {
        base,
        index,
        displacement,
    })
}

/// A whole register of an address.
fn address_register(text: &str) -> Option<Gpr> {
    let name = text.strip_prefix('%')?;
    let whole = WHOLE.iter().position(|known| *known == name)?;
    Some(Gpr::ALL[whole])
}

/// The registers in the order of [`Gpr::ALL`].
const WHOLE: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
const SECOND_BYTES: [&str; 4] = ["ah", "ch", "dh", "bh"];

fn whole_name(register: Gpr) -> &'static str {
    let known = Gpr::ALL.iter().position(|known| *known == register);
    known.map_or("", |number| WHOLE[number])
}

/// The name of the `bytes` bytes of `register` from the bit `shift` on.
fn part_name(register: Gpr, shift: u8, bytes: u8) -> String {
    let whole = whole_name(register);
    let letters = whole.get(1..).unwrap_or_default();
    let is_numbered = letters.starts_with(|c: char| c.is_ascii_digit());
    let first = letters.get(..1).unwrap_or_default();
    match (bytes, is_numbered) {
        (1, false) if shift == 8 => format!("{first}h"),
        (1, false) => format!("{}l", letters.strip_suffix('x').unwrap_or(letters)),
        (2, false) => letters.to_owned(),
        (4, false) => format!("e{letters}"),
        (1, true) => format!("{whole}b"),
        (2, true) => format!("{whole}w"),
        (4, true) => format!("{whole}d"),
        _ => whole.to_owned(),
    }
}

/// The register, or the part of one, called `name`.
fn register(name: &str) -> Option<OperandPlace> {
    let place = |number: usize, shift, bytes| OperandPlace::Register {
        register: Gpr::ALL[number],
        shift,
        bytes,
    };
    let second = SECOND_BYTES.iter().position(|known| *known == name);
    if let Some(number) = second {
        return Some(place(number, 8, 1));
    }
    let part = |number: usize, whole: &str| {
        let letters = &whole[1..];
        match number {
            _ if name == whole => Some(8),
            0..8 if name.strip_prefix('e') == Some(letters) => Some(4),
            0..8 if name == letters => Some(2),
            0..4 => (name.strip_suffix('l')? == letters.strip_suffix('x')?).then_some(1),
            4..8 => (name.strip_suffix('l')? == letters).then_some(1),
            _ => match name.strip_prefix(whole)? {
                "d" => Some(4),
                "w" => Some(2),
                "b" | "l" => Some(1),
                _ => None,
            },
        }
    };
    let mut numbered = WHOLE.iter().enumerate();
    numbered.find_map(|(number, whole)| Some(place(number, 0, part(number, whole)?)))
}

fn number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (radix, digits) = match digits.strip_prefix("0x") {
        Some(digits) => (16, digits),
        // An assembler reads 010 as 8.
        None if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        None => (10, digits),
    };
    // The parser of the library takes a sign.
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    // An unsigned constant may have all 64 bits.
    let value = magnitude.cast_signed();
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> Vec<Option<SizedOperand>> {
        SizedOperand::list(text, 12)
    }

    fn one(text: &str) -> SizedOperand {
        let [Some(operand)] = list(text)[..] else {
            panic!("{text}: {:?}", list(text));
        };
        operand
    }

    fn in_register(text: &str) -> (Gpr, u8) {
        match one(text).place {
            OperandPlace::Register {
                register, shift, ..
            } => (register, shift),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn parts_of_registers_are_those_registers() {
        for (number, names) in [
            (0, ["rax", "eax", "ax", "al"]),
            (3, ["rbx", "ebx", "bx", "bl"]),
            (4, ["rsp", "esp", "sp", "spl"]),
            (7, ["rdi", "edi", "di", "dil"]),
            (8, ["r8", "r8d", "r8w", "r8b"]),
            (15, ["r15", "r15d", "r15w", "r15b"]),
        ] {
            for name in names {
                let text = format!("1@%{name}");
                assert_eq!(in_register(&text), (Gpr::ALL[number], 0), "{name}");
            }
        }
        assert_eq!(in_register("1@%ah"), (Gpr::ALL[0], 8));
        assert_eq!(in_register("1@%bh"), (Gpr::ALL[3], 8));
        for name in ["xmm0", "r16", "rip", "axl", "r1", "", "r8x", "sil0"] {
            assert_eq!(list(&format!("1@%{name}")), [None], "{name}");
        }
        // No part of a register has more bytes than it has.
        for text in ["8@%eax", "4@%ax", "-2@%al", "2@%ah", "8@%r9d", "2@%sil"] {
            assert_eq!(list(text), [None], "{text}");
        }
    }

    #[test]
    fn operands_of_compilers_are_understood() {
        let found = list("8@%r12 -4@-20(%rbp) 4@$5 1@8(%rax, %rbx, 4) 8f@%xmm0 -8@(%rsp)");
        assert_eq!(found.len(), 6);
        assert_eq!(found[4], None);
        let gpr = |register: Gpr| 0x1000 + u64::from(register == Gpr::ALL[3]);
        let address = |operand: SizedOperand| operand.raw(gpr, |at, _| Some(at));
        let addresses = [1, 3, 5].map(|at: usize| address(found[at].expect("one")));
        assert_eq!(addresses, [Some(0xfec), Some(0x500c), Some(0x1000)]);
        assert_eq!(address(one("8@&-20(%rbp)")), Some(0xfec));
        assert!(!one("8@&-20(%rbp)").is_in_memory());
        assert_eq!(found[2].expect("one").place, OperandPlace::Constant(5));
        assert!(!found[2].expect("one").is_in_memory());
        assert!(found[1].expect("one").is_signed);
        assert_eq!(list(""), []);
        // The address of a variable is that of a symbol.
        assert_eq!(list("8@counter(%rip) 4@$-7"), [None, Some(one("4@$-7"))]);
    }

    #[test]
    fn each_operand_has_its_number() {
        let last = Some(one("8@%rax"));
        for text in [
            "%rdi 8@%rax",
            "-4@%fs:x@tpoff 8@%rax",
            "8@foo@GOTPCREL(%rip) 8@%rax",
            "8@foo+8(%rip)  8@%rax",
            "3@%rdx 8@%rax",
        ] {
            assert_eq!(list(text), [None, last], "{text}");
        }
        assert_eq!(list("-4@-20(%rbp, %rax,4) 8@%rax").len(), 2);
        assert_eq!(list("8@(,%rax,8) 8@%rax")[1], last);
    }

    #[test]
    fn operands_of_a_hostile_note_are_few() {
        assert_eq!(list(&"@".repeat(1 << 20)), [None]);
        let many = "1@$1 ".repeat(1 << 20);
        assert_eq!(list(&many), [Some(one("1@$1")); 12]);
        assert_eq!(list(&"(".repeat(1 << 20)), [None]);
    }

    #[test]
    fn constants_are_numbers_of_an_assembler() {
        for (text, value) in [
            ("8@$0", 0),
            ("8@$-0x10", -16),
            ("8@$010", 8),
            ("8@$18446744073709551615", -1),
        ] {
            assert_eq!(one(text).place, OperandPlace::Constant(value), "{text}");
        }
        for text in ["8@$", "8@$+5", "8@$0x+5", "8@$--5", "8@$09", "8@$0x"] {
            assert_eq!(list(text), [None], "{text}");
        }
    }

    #[test]
    fn values_have_the_operand_s_size_and_sign() {
        assert_eq!(one("-4@%eax").value(0xdead_ffff_fffe), -2);
        assert_eq!(one("4@%eax").value(0xdead_ffff_fffe), 0xffff_fffe);
        assert_eq!(one("-1@%al").value(0x180), -128);
        assert_eq!(one("8@%rax").value(u64::MAX), -1);
        assert_eq!(one("-8@%rax").value(7), 7);
        assert_eq!(one("-2@%ax").type_name(), "s16");
    }

    #[test]
    fn text_of_an_operand_is_that_operand() {
        let parts = [
            "rax", "eax", "ax", "al", "ah", "rsi", "sil", "r9", "r9d", "r9w", "r9b",
        ];
        let parts = parts.map(|name| format!("1@%{name}"));
        let others = [
            "-4@-20(%rbp)",
            "8@(%rsp)",
            "8@8(%rax,%r12,4)",
            "2@(,%rdx,8)",
            "8@&16(%rsp)",
            "-8@$-9223372036854775808",
            "8@&()",
        ];
        for text in parts.iter().map(String::as_str).chain(others) {
            assert_eq!(one(text).to_string(), text);
        }
        for text in ["", "8@", "&8@(%rax)", "8@&", "8@&%rax", "8@% rax"] {
            assert_eq!(text.parse::<SizedOperand>(), Err(NotAnOperand), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-0-9@%$(), a-z]{0,60}") {
            for operand in list(&text).into_iter().flatten() {
                prop_assert!(matches!(operand.bytes, 1 | 2 | 4 | 8));
                prop_assert_eq!(operand.to_string().parse(), Ok(operand));
            }
        }
    }
}
