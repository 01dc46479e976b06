//! The operands of marks: where a program has the values, as an assembler writes it: `8@%rax`, `-4@-20(%rbp)`, `4@$5`.

use introspect::insn::Gpr;

/// The most operands of a mark: `sys/sdt.h` has macros for up to 12.
pub const MAX_OPERANDS: usize = 12;

/// A value that a program has for a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkOperand {
    /// The number of bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether the value has a sign.
    pub is_signed: bool,
    /// Where the value is.
    pub place: OperandPlace,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// In memory, at the sum of these.
    Memory {
        /// The register with the base address.
        base: Option<Gpr>,
        /// The register with the index, and the factor.
        index: Option<(Gpr, u8)>,
        /// The displacement, bytes.
        displacement: i64,
    },
}

impl MarkOperand {
    /// The address in memory for the registers `gpr`; `None` for an operand that is not in memory.
    #[must_use]
    pub fn address(&self, gpr: impl Fn(Gpr) -> u64) -> Option<u64> {
        let OperandPlace::Memory {
            base,
            index,
            displacement,
        } = self.place
        else {
            return None;
        };
        let base = base.map_or(0, &gpr);
        let index = index.map_or(0, |(index, factor)| {
            gpr(index).wrapping_mul(u64::from(factor))
        });
        Some(base.wrapping_add(index).wrapping_add_signed(displacement))
    }

    /// The value in `raw`, of which the lowest bytes count, as a number of 64 bits.
    #[must_use]
    pub const fn value(&self, raw: u64) -> i64 {
        // `bytes` is 1, 2, 4 or 8.
        let unused = 64 - 8 * self.bytes as u32;
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

/// The operands in `text`, in order, at most [`MAX_OPERANDS`]; `None` for each that is not understood: a floating-point number, a variable by its
/// name, an operand without a size.
pub(super) fn parse_all(text: &str) -> Vec<Option<MarkOperand>> {
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
    operands.take(MAX_OPERANDS).map(parse).collect()
}

fn parse(text: &str) -> Option<MarkOperand> {
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
    Some(MarkOperand {
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
    Some(OperandPlace::Memory {
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

    fn one(text: &str) -> MarkOperand {
        let [Some(operand)] = parse_all(text)[..] else {
            panic!("{text}: {:?}", parse_all(text));
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
            assert_eq!(parse_all(&format!("1@%{name}")), [None], "{name}");
        }
        // No part of a register has more bytes than it has.
        for text in ["8@%eax", "4@%ax", "-2@%al", "2@%ah", "8@%r9d", "2@%sil"] {
            assert_eq!(parse_all(text), [None], "{text}");
        }
    }

    #[test]
    fn operands_of_compilers_are_understood() {
        let found = parse_all("8@%r12 -4@-20(%rbp) 4@$5 1@8(%rax, %rbx, 4) 8f@%xmm0 -8@(%rsp)");
        assert_eq!(found.len(), 6);
        assert_eq!(found[4], None);
        let gpr = |register: Gpr| 0x1000 + u64::from(register == Gpr::ALL[3]);
        let addresses = [1, 3, 5].map(|at: usize| found[at].expect("one").address(gpr));
        assert_eq!(addresses, [Some(0xfec), Some(0x500c), Some(0x1000)]);
        assert_eq!(found[2].expect("one").place, OperandPlace::Constant(5));
        assert_eq!(found[2].expect("one").address(gpr), None);
        assert!(found[1].expect("one").is_signed);
        assert_eq!(parse_all(""), []);
        // The address of a variable is that of a symbol.
        assert_eq!(
            parse_all("8@counter(%rip) 4@$-7"),
            [None, Some(one("4@$-7"))]
        );
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
            assert_eq!(parse_all(text), [None, last], "{text}");
        }
        assert_eq!(parse_all("-4@-20(%rbp, %rax,4) 8@%rax").len(), 2);
        assert_eq!(parse_all("8@(,%rax,8) 8@%rax")[1], last);
    }

    #[test]
    fn operands_of_a_hostile_note_are_few() {
        assert_eq!(parse_all(&"@".repeat(1 << 20)), [None]);
        let many = "1@$1 ".repeat(1 << 20);
        assert_eq!(parse_all(&many), [Some(one("1@$1")); MAX_OPERANDS]);
        assert_eq!(parse_all(&"(".repeat(1 << 20)), [None]);
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
            assert_eq!(parse_all(text), [None], "{text}");
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

    proptest! {
        #[test]
        fn no_text_panics(text in "[-0-9@%$(), a-z]{0,60}") {
            for operand in parse_all(&text).into_iter().flatten() {
                prop_assert!(matches!(operand.bytes, 1 | 2 | 4 | 8));
            }
        }
    }
}
