//! Named and typed arguments, and return values.
//!
//! A [`Signature`] is looked up once for a probe, before the guest has to wait. Numbers come from registers, which a record holds, too.
//! Strings and arguments on the stack are read on the vCPU's thread at the hit, while nothing has changed them: a probe that shows them
//! has no detour. Such a probe also shows the members of small structs, which alone are not worth an exit.

use std::borrow::Cow;
use std::sync::Arc;

use address::{Gva, PAGE_BYTES};
use events::{GuestMembers, GuestString, Hex, Number, Param, Typed, error_name};
use introspect::operand::SizedOperand;
use introspect::signature::{Kind, Parameter, Pointee, Shape, ValuePlace, Variable};
use introspect::{Btf, Signature, Walks};
use text::general_register;

use crate::arguments::ArgumentSource;
use crate::engine::running::Running;
use crate::kernel::Kernel;
use crate::module::{ModuleCode, ModuleSymbols};
use crate::registry::{Probe, Purpose, ReturnAction, ReturnPurpose};
use crate::resolve::{ENDBR64, Place, syscalls};

/// The most bytes shown of the strings of a hit: many events may wait for a reader.
pub(crate) const MAX_STRING_BYTES: usize = 256;
/// Errors are the negative numbers from here on, as results and as pointers.
const MAX_ERROR: i64 = 4095;
const WORD_BYTES: usize = 8;
/// The offset of the entry of a function that begins with [`ENDBR64`].
const BEHIND_ENDBR: &str = "0x4";
/// In place of a directory's descriptor: the task's own directory. A macro, which no type mentions.
const AT_FDCWD: i64 = -100;

/// Whether hits or returns of a probe with `purpose` show types.
pub(crate) fn shows_types(purpose: &Purpose) -> bool {
    match purpose {
        Purpose::Trace => true,
        Purpose::Return(ReturnPurpose { action, .. }) => matches!(action, ReturnAction::Trace),
        _ => false,
    }
}

/// The types of the function, system call or tracepoint at `place`, or of the `variables` there, if hits or returns of the probe `name` with
/// `purpose` show them.
pub(crate) fn signature_for(
    kernel: &Kernel,
    name: &str,
    purpose: &Purpose,
    place: &Place,
    variables: &[Variable],
) -> Option<Arc<Signature>> {
    if !shows_types(purpose) || place.module().is_some() {
        return None;
    }
    if !variables.is_empty() {
        return Some(signature_of_variables(kernel.types().ok(), variables));
    }
    // The kernel patches some of its `endbr64` at boot: the file has all.
    let begins_with_endbr = |start| kernel.bytes_at(start, ENDBR64.len()) == Some(&ENDBR64);
    if let ArgumentSource::Block { .. } = place.arguments {
        // The name of the probe is `tracepoint:GROUP:NAME`, with the site behind `@` if there are several.
        let tracepoint = name.rsplit(':').next()?.split('@').next()?;
        return kernel.tracepoint_signature(tracepoint).ok().map(Arc::new);
    }
    let function = function_of_entry(place, begins_with_endbr)?;
    let signature = match (place.arguments, function.strip_prefix(syscalls::PREFIX)) {
        (ArgumentSource::Caller, Some(name)) => kernel.syscall_signature(name),
        _ => kernel.signature(function),
    };
    signature.ok().map(Arc::new)
}

/// The types of `variables`, with the names of enumerators if the kernel or the module has `types`.
fn signature_of_variables(types: Option<&Btf>, variables: &[Variable]) -> Arc<Signature> {
    Arc::new(Signature::of_variables(types, variables))
}

/// The types of the function of a module at `place`, or of the probe's variables, by the module's `types`, which are read for these only.
pub(crate) fn signature_in_module(
    types: impl FnOnce() -> Option<Btf>,
    code: &ModuleCode<'_>,
    symbols: &ModuleSymbols<'_>,
    probe: &Probe,
    place: &Place,
) -> Option<Arc<Signature>> {
    if !shows_types(&probe.purpose) || probe.is_watch() {
        return None;
    }
    if !probe.variables.is_empty() {
        return Some(signature_of_variables(types().as_ref(), &probe.variables));
    }
    let function = function_of_entry(place, |start| {
        code.bytes(start, ENDBR64.len() as u64) == ENDBR64
    })?;
    if symbols.text(function).len() > 1 {
        return None;
    }
    Signature::of_function(&types()?, function)
        .ok()
        .map(Arc::new)
}

/// The types of the tracepoint `name`, with its group, by `types`, if hits of a probe with `purpose` show them.
pub(crate) fn signature_of_tracepoint(
    purpose: &Purpose,
    types: impl FnOnce() -> Option<Btf>,
    name: &str,
) -> Option<Arc<Signature>> {
    if !shows_types(purpose) {
        return None;
    }
    let (_, name) = name.split_once(':')?;
    Signature::of_tracepoint(&types()?, name).ok().map(Arc::new)
}

/// The name of the function, if `place` is its entry, maybe behind an `endbr64`.
fn function_of_entry(place: &Place, begins_with_endbr: impl FnOnce(Gva) -> bool) -> Option<&str> {
    let (function, offset) = place.symbol.split_once('+')?;
    // A module's name follows.
    let offset = offset.split(' ').next()?;
    let start = Gva(place.ip.0.wrapping_sub(ENDBR64.len() as u64));
    let is_entry = match offset {
        "0x0" => true,
        BEHIND_ENDBR => begins_with_endbr(start),
        _ => false,
    };
    is_entry.then_some(function)
}

/// The parameters of a function that a vCPU with these registers and page tables is about to execute. Members of small structs are read
/// if `shows_members`.
pub(crate) fn params(
    running: &Running,
    signature: &Signature,
    regs: &vmm::kvm_regs,
    walks: &Walks,
    shows_members: bool,
) -> Vec<Param> {
    let mut reader = Reader {
        running,
        walks,
        signature,
        left: MAX_STRING_BYTES,
    };
    let param = |param: &Parameter| {
        let word = match param.place {
            ValuePlace::Stack(above) => walks
                .read_u64(&running.planter.own(), Gva(regs.rsp).wrapping_add(above))
                .ok(),
            ValuePlace::Operand(operand) => operand_value(&operand, regs, |at, bytes| {
                let mut word = [0; WORD_BYTES];
                let bytes = word.get_mut(..bytes)?;
                walks.read(&running.planter.own(), Gva(at), bytes).ok()?;
                Some(u64::from_le_bytes(word))
            }),
            ValuePlace::Register(_) | ValuePlace::Elsewhere => register(regs, param.place),
        };
        let (name, shape) = (&param.name, &param.shape);
        let mut shown = reader.shown(name, shape, word);
        if let (true, Some(pointee), Some(at)) = (shows_members, &param.pointee, word) {
            shown.typed.members = reader.members(pointee, at);
        }
        shown
    };
    signature.params.iter().map(param).collect()
}

/// Reads what the parameters of a hit point to.
struct Reader<'r> {
    running: &'r Running,
    walks: &'r Walks,
    signature: &'r Signature,
    /// The bytes that strings may still have.
    left: usize,
}

impl Reader<'_> {
    /// The value of this name and type, with its string.
    fn shown(&mut self, name: &Arc<str>, shape: &Shape, word: Option<u64>) -> Param {
        let at = word.filter(|_| shape.kind == Kind::String);
        let string = at.map(|at| string(self.running, self.walks, Gva(at), &mut self.left));
        named(self.signature, name, shape, word, string)
    }

    /// The members of the struct at `at`; `None` for a null pointer, and for an error in place of a pointer.
    fn members(&mut self, pointee: &Pointee, at: u64) -> Option<GuestMembers> {
        if at == 0 || (-MAX_ERROR..0).contains(&at.cast_signed()) {
            return None;
        }
        let mut bytes = vec![0; pointee.bytes];
        let memory = self.running.planter.own();
        if self.walks.read(&memory, Gva(at), &mut bytes).is_err() {
            return Some(GuestMembers::Fault(Hex(at)));
        }
        let members = pointee.members.iter();
        let members = members
            .map(|member| self.shown(&member.name, &member.shape, Some(member.word(&bytes))));
        Some(GuestMembers::Whole(members.collect()))
    }
}

/// The parameters of a function at a recorded hit.
pub(crate) fn recorded_params(signature: &Signature, regs: &vmm::kvm_regs) -> Vec<Param> {
    let param = |param: &Parameter| {
        let word = match param.place {
            // A probe with a value in memory has no detour.
            ValuePlace::Operand(operand) => operand_value(&operand, regs, |_, _| None),
            _ => register(regs, param.place),
        };
        named(signature, &param.name, &param.shape, word, None)
    };
    signature.params.iter().map(param).collect()
}

/// The parameters of a system call or tracepoint whose arguments cannot be read.
pub(crate) fn unread_params(signature: &Signature) -> Vec<Param> {
    let params = signature.params.iter();
    params
        .map(|param| named(signature, &param.name, &param.shape, None, None))
        .collect()
}

/// The returned value of a call of `probe`.
pub(crate) fn returned(probe: &Probe, rax: u64) -> Option<Typed> {
    let signature = probe.signature();
    let signature = signature.as_ref()?;
    let shape = signature.returns.as_ref()?;
    let mut typed = typed(signature, shape, rax, None);
    let value = match shape.kind {
        Kind::Integer { signed: true, .. } | Kind::Pointer | Kind::String => shape.kind.number(rax),
        _ => 0,
    };
    if (-MAX_ERROR..0).contains(&value) {
        typed.error = error_name(value.unsigned_abs()).map(str::to_owned);
    }
    Some(typed)
}

fn named(
    signature: &Signature,
    name: &Arc<str>,
    shape: &Shape,
    word: Option<u64>,
    string: Option<GuestString>,
) -> Param {
    let typed = match word {
        Some(word) => {
            let mut typed = typed(signature, shape, word, string);
            if typed.value == Some(Number::Integer(AT_FDCWD)) && is_directory(name) {
                typed.means = Some("AT_FDCWD".to_owned());
            }
            typed
        }
        // A struct, or a word of the stack that is not there.
        None => Typed::without_value(Arc::clone(&shape.declared)),
    };
    Param {
        name: Arc::clone(name),
        typed,
    }
}

fn typed(signature: &Signature, shape: &Shape, word: u64, string: Option<GuestString>) -> Typed {
    let number = shape.kind.number(word);
    let value = match shape.kind {
        Kind::Bool => Number::Bool(number != 0),
        Kind::Integer { signed: true, .. } | Kind::Enum { signed: true, .. } => {
            Number::signed(number)
        }
        Kind::Integer { .. } | Kind::Enum { .. } => Number::unsigned(number.cast_unsigned()),
        Kind::Word { .. } => Number::Hex(Hex(number.cast_unsigned())),
        Kind::String | Kind::Pointer | Kind::Larger => Number::Hex(Hex(word)),
    };
    Typed {
        value: (shape.kind != Kind::Larger).then_some(value),
        means: signature.meaning(shape, number).map(Cow::into_owned),
        string,
        ..Typed::without_value(Arc::clone(&shape.declared))
    }
}

/// Whether a parameter is called like a directory's descriptor: `dfd`, `olddfd`, `newdfd`.
fn is_directory(name: &str) -> bool {
    name.strip_suffix("dfd")
        .is_some_and(|before| matches!(before, "" | "old" | "new"))
}

/// The value of `operand`, extended to a word by its sign. `read` reads memory.
fn operand_value(
    operand: &SizedOperand,
    regs: &vmm::kvm_regs,
    read: impl FnOnce(u64, usize) -> Option<u64>,
) -> Option<u64> {
    let raw = operand.raw(|register| general_register(regs, register), read)?;
    Some(operand.value(raw).cast_unsigned())
}

fn register(regs: &vmm::kvm_regs, place: ValuePlace) -> Option<u64> {
    let ValuePlace::Register(number) = place else {
        return None;
    };
    let registers = [regs.rdi, regs.rsi, regs.rdx, regs.rcx, regs.r8, regs.r9];
    registers.get(usize::from(number)).copied()
}

/// The string at `at`; takes its bytes from those `left` for the strings of the hit.
fn string(running: &Running, walks: &Walks, at: Gva, left: &mut usize) -> GuestString {
    let mut bytes = Vec::new();
    while *left > 0 {
        let here = at.wrapping_add(bytes.len() as u64);
        let in_page = usize::try_from(PAGE_BYTES - here.page_offset()).unwrap_or(1);
        let mut piece = vec![0; in_page.min(*left)];
        if walks
            .read(&running.planter.own(), here, &mut piece)
            .is_err()
        {
            return GuestString::Fault(here.into());
        }
        let end = piece.iter().position(|byte| *byte == 0);
        bytes.extend(&piece[..end.unwrap_or(piece.len())]);
        *left -= end.unwrap_or(piece.len());
        if end.is_some() {
            return GuestString::Whole(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    GuestString::Cut(String::from_utf8_lossy(&bytes).into_owned())
}
