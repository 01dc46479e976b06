//! The caller of a function of a program, by the rules of the program's file (`.eh_frame`).
//!
//! The sorted table of the file (`.eh_frame_hdr`) is searched in the program's memory, so of a large table a few words are read. The rule found is
//! given to `gimli` together with the entry it refers to.

use address::Gva;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, Encoding, EvaluationResult, Expression,
    LittleEndian, Location, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection,
    UnwindTableRow, Value,
};
use gimli::{EndianSlice, Format};
use thiserror::Error;

use super::elf::Bytes;
use super::registers::{IP, ProgramRegisters, SP};

/// The encodings of the table that linkers write: version 1, `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, `DW_EH_PE_udata4`,
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const TABLE_HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const TABLE_HEADER_BYTES: u64 = 12;
const TABLE_ENTRY_BYTES: u64 = 8;
/// The largest entry of rules: those of very large functions take some kilobytes.
const MAX_ENTRY_BYTES: u64 = 16 << 10;
/// What the execution of a byte of rules counts, in bytes read: a byte may copy all rules of a row, some kilobytes.
const EXECUTION_COST: usize = 256;
/// Operations of an expression; those of compilers have some ten.
const MAX_OPERATIONS: u32 = 256;
/// The registers that a call preserves by the ABI: rbx, rbp, r12 to r15.
const PRESERVED: [usize; 6] = [3, 6, 12, 13, 14, 15];
const ENCODING: Encoding = Encoding {
    format: Format::Dwarf32,
    version: 4,
    address_size: 8,
};

/// Why there is no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoCaller {
    /// The file has no rules for the code.
    #[error("no unwind rule")]
    NoRule,
    /// The rules are damaged, or of a kind that no linker writes.
    #[error("damaged unwind rules")]
    Damaged,
    /// The rules, or a part of them, are not in memory.
    #[error("unwind rules that are not in memory")]
    NotInMemory,
    /// A word of the stack is not in memory.
    #[error("a stack that cannot be read at {0}")]
    Unreadable(Gva),
    /// The rule needs a register that is not known.
    #[error("an unwind rule that needs a register that is not known")]
    NoRegister,
}

/// The rules of a loaded file.
pub(super) struct Rules<'r> {
    /// The program's memory; for code and rules, also what is in the file's page cache.
    pub(super) code: &'r dyn Bytes,
    /// The program's memory by its page tables.
    pub(super) stack: &'r dyn Bytes,
    /// The address of the sorted table.
    pub(super) table: u64,
    /// Takes a cost from what the stack may still read; `None` if there is not as much.
    pub(super) charge: &'r dyn Fn(usize) -> Option<()>,
}

/// A caller.
pub(super) struct Caller {
    pub(super) registers: ProgramRegisters,
    /// The function was entered by a signal: the caller's instruction is not behind a call.
    pub(super) interrupted: bool,
}

type Slice<'s> = EndianSlice<'s, LittleEndian>;
type Section<'s> = EhFrame<Slice<'s>>;
type Row = UnwindTableRow<usize>;

impl Rules<'_> {
    /// The caller of the function with the instruction at `selector`, in a frame with `registers`; `None` if the rules say that there is none.
    pub(super) fn caller(
        &self,
        registers: &ProgramRegisters,
        selector: u64,
    ) -> Result<Option<Caller>, NoCaller> {
        let entry = self.entry(selector)?;
        let pair = EntryPair::read(self.code, entry).ok_or(NoCaller::NotInMemory)?;
        let cost = pair.bytes.len().saturating_mul(EXECUTION_COST);
        (self.charge)(cost).ok_or(NoCaller::NotInMemory)?;
        let section: Section<'_> = EhFrame::new(&pair.bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(pair.base);
        let rule = section.fde_from_offset(
            &bases,
            EhFrameOffset(pair.common_bytes),
            EhFrame::cie_from_offset,
        );
        let rule = rule.map_err(|_| NoCaller::Damaged)?;
        if !rule.contains(selector) {
            return Err(NoCaller::NoRule);
        }
        let mut context = UnwindContext::new();
        let row = rule.unwind_info_for_address(&section, &bases, &mut context, selector);
        let row = row.map_err(|_| NoCaller::Damaged)?;
        let frame = Frame {
            section: &section,
            registers,
            stack: self.stack,
        };
        let caller = frame.caller(row)?;
        Ok(caller.map(|registers| Caller {
            registers,
            interrupted: rule.is_signal_trampoline(),
        }))
    }

    /// The address of the entry for `selector`: the last in the sorted table that begins at or below.
    fn entry(&self, selector: u64) -> Result<u64, NoCaller> {
        let table = self.table;
        let header = self.code.bytes(table, 12).ok_or(NoCaller::NotInMemory)?;
        if header[..4] != TABLE_HEADER {
            return Err(NoCaller::Damaged);
        }
        let [.., a, b, c, d] = header[..] else {
            return Err(NoCaller::Damaged);
        };
        let wanted = selector.wrapping_sub(table).cast_signed();
        let entry = |number: u64| {
            let at = number * TABLE_ENTRY_BYTES + TABLE_HEADER_BYTES;
            let bytes = self.code.bytes(table.wrapping_add(at), 8);
            let bytes = bytes.ok_or(NoCaller::NotInMemory)?;
            let [a, b, c, d, e, f, g, h] = bytes[..] else {
                return Err(NoCaller::Damaged);
            };
            let start = i32::from_le_bytes([a, b, c, d]);
            Ok((i64::from(start), i32::from_le_bytes([e, f, g, h])))
        };
        let (mut low, mut high) = (0, u64::from(u32::from_le_bytes([a, b, c, d])));
        let mut found = None;
        while low < high {
            let middle = low.midpoint(high);
            let (start, at) = entry(middle)?;
            if start <= wanted {
                found = Some(at);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let found = found.ok_or(NoCaller::NoRule)?;
        Ok(table.wrapping_add_signed(found.into()))
    }
}

/// An entry of rules (FDE) behind the entry that it shares with others (CIE), as a section of its own.
struct EntryPair {
    bytes: Vec<u8>,
    common_bytes: usize,
    /// The address of the section, such that the addresses in the entry, which are relative to their places, are right.
    base: u64,
}

impl EntryPair {
    fn read(code: &dyn Bytes, at: u64) -> Option<Self> {
        let entry = |at: u64| {
            let len = u64::from(u32_of(code, at)?);
            let whole = (4..=MAX_ENTRY_BYTES).contains(&len).then_some(len + 4)?;
            code.bytes(at, usize::try_from(whole).ok()?)
        };
        let own = entry(at)?;
        let link = at.wrapping_add(4);
        let common = link.wrapping_sub(u32_of(code, link)?.into());
        let mut bytes = entry(common)?;
        let common_bytes = bytes.len();
        bytes.extend_from_slice(&own);
        let distance = u32::try_from(common_bytes + 4).ok()?;
        let link = bytes.get_mut(common_bytes + 4..common_bytes + 8)?;
        link.copy_from_slice(&distance.to_le_bytes());
        Some(Self {
            bytes,
            common_bytes,
            base: at.wrapping_sub(common_bytes as u64),
        })
    }
}

fn u32_of(code: &dyn Bytes, at: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    code.read(at, &mut bytes)?;
    Some(u32::from_le_bytes(bytes))
}

/// A frame whose caller is looked for.
struct Frame<'f> {
    section: &'f Section<'f>,
    registers: &'f ProgramRegisters,
    stack: &'f dyn Bytes,
}

impl Frame<'_> {
    fn caller(&self, row: &Row) -> Result<Option<ProgramRegisters>, NoCaller> {
        let top = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.register(*register)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => self.evaluate(expression, None)?,
        };
        let mut values = [None; 17];
        for (number, value) in (0..).zip(&mut values) {
            let rule = row.register(Register(number));
            let number = usize::from(number);
            *value = match rule {
                None | Some(RegisterRule::SameValue) if number == SP => Some(top),
                None if !PRESERVED.contains(&number) => None,
                None | Some(RegisterRule::SameValue) => self.registers.values[number],
                // The end of the stack: a program's first function, or a thread's.
                Some(RegisterRule::Undefined) if number == IP => return Ok(None),
                Some(rule) => self.value(&rule, top)?,
            };
        }
        // A rule of every compiler says where the return address is.
        values[IP].ok_or(NoCaller::Damaged)?;
        Ok(Some(ProgramRegisters {
            values,
            is_long: self.registers.is_long,
        }))
    }

    /// The caller's value of a register, below a frame that begins at `top`.
    fn value(&self, rule: &RegisterRule<usize>, top: u64) -> Result<Option<u64>, NoCaller> {
        Ok(match rule {
            RegisterRule::Offset(offset) => Some(self.word(top.wrapping_add_signed(*offset))?),
            RegisterRule::ValOffset(offset) => Some(top.wrapping_add_signed(*offset)),
            RegisterRule::Register(register) => Some(self.register(*register)?),
            RegisterRule::Expression(expression) => {
                Some(self.word(self.evaluate(expression, Some(top))?)?)
            }
            RegisterRule::ValExpression(expression) => Some(self.evaluate(expression, Some(top))?),
            RegisterRule::Constant(value) => Some(*value),
            _ => None,
        })
    }

    fn register(&self, register: Register) -> Result<u64, NoCaller> {
        let value = self.registers.values.get(usize::from(register.0));
        value.copied().flatten().ok_or(NoCaller::NoRegister)
    }

    fn word(&self, at: u64) -> Result<u64, NoCaller> {
        let mut bytes = [0; 8];
        let read = self.stack.read(at, &mut bytes);
        read.ok_or(NoCaller::Unreadable(Gva(at)))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn evaluate(
        &self,
        expression: &UnwindExpression<usize>,
        top: Option<u64>,
    ) -> Result<u64, NoCaller> {
        let damaged = |_| NoCaller::Damaged;
        let expression: Expression<Slice<'_>> = expression.get(self.section).map_err(damaged)?;
        let mut evaluation = expression.evaluation(ENCODING);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(top) = top {
            evaluation.set_initial_value(top);
        }
        let mut result = evaluation.evaluate().map_err(damaged)?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, size, .. } => {
                    let mut bytes = [0; 8];
                    let held = bytes.get_mut(..size.into()).ok_or(NoCaller::Damaged)?;
                    let read = self.stack.read(address, held);
                    read.ok_or(NoCaller::Unreadable(Gva(address)))?;
                    let value = Value::Generic(u64::from_le_bytes(bytes));
                    evaluation.resume_with_memory(value).map_err(damaged)?
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = Value::Generic(self.register(register)?);
                    evaluation.resume_with_register(value).map_err(damaged)?
                }
                _ => return Err(NoCaller::Damaged),
            };
        }
        match evaluation.as_result() {
            [piece] => match piece.location {
                Location::Address { address } => Ok(address),
                _ => Err(NoCaller::Damaged),
            },
            _ => Err(NoCaller::Damaged),
        }
    }
}
