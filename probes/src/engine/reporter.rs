//! Events and notes, with their times.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use address::Gva;
use events::{
    DataRead, DataWrite, Event, EventSink, Fields, Hex, Hit, Note, Param, Registers, Return, Task,
};

use crate::engine::stacks::Stack;
use crate::engine::typed::returned;
use crate::registry::Probe;
use crate::returns::{Calls, Instance};

/// An access to watched bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DataAccess {
    Read(DataRead),
    Write(DataWrite),
}

/// The meaning of a hit beside its registers.
#[derive(Debug, Default)]
pub(crate) struct Meaning {
    pub(crate) task: Option<Task>,
    /// At the entry of a function or system call, and at a tracepoint, with known types.
    pub(crate) params: Option<Vec<Param>>,
    /// At a tracepoint: the fields of its record.
    pub(crate) fields: Option<Fields>,
    /// For a probe with stacks.
    pub(crate) stack: Option<Stack>,
    /// The arguments of a system call or tracepoint, which are not in the vCPU's registers.
    pub(crate) arguments: Option<[u64; 6]>,
    /// Of a watchpoint: the access, and the symbol of the instruction that makes it.
    pub(crate) data: Option<(Arc<str>, DataAccess)>,
    /// Of a probe in a program: the name of the instruction, and the number of calls in flight further up the stack.
    pub(crate) in_program: Option<(Arc<str>, usize)>,
}

/// A call that has returned.
#[derive(Debug)]
pub(crate) struct ReturnedCall<'c> {
    pub(crate) probe: &'c Probe,
    /// The name of the function's first instruction.
    pub(crate) symbol: Arc<str>,
    pub(crate) returns_to: Gva,
    /// The time of the call in nanoseconds.
    pub(crate) entered_ns: u64,
    /// The number of calls in flight further up the stack.
    pub(crate) depth: usize,
}

/// Reports events and notes. Any thread may report.
#[derive(Debug)]
pub(crate) struct Reporter {
    pub(crate) sink: Arc<dyn EventSink>,
    /// The time of the guest's first instruction.
    pub(crate) started: OnceLock<Instant>,
    /// The calls in flight, for the depth of events.
    pub(crate) calls: Arc<Calls>,
}

impl Reporter {
    /// Starts the clock of timestamps: the guest's first instruction is about to run.
    pub(crate) fn start_clock(&self) {
        self.started.get_or_init(Instant::now);
    }

    pub(crate) fn now_ns(&self) -> u64 {
        let elapsed = self.started.get().map(Instant::elapsed).unwrap_or_default();
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn note(&self, probe: Option<&Probe>, text: String) {
        let probe = probe.map(|probe| shortened(probe.name.to_string()));
        self.sink.event(Event::Note(Note {
            ts_ns: self.now_ns(),
            probe,
            text: shortened(text),
        }));
    }

    pub(crate) fn emit_hit_at(
        &self,
        ts_ns: u64,
        probe: &Probe,
        vcpu: usize,
        ip: Hex,
        regs: &vmm::kvm_regs,
        meaning: Meaning,
    ) {
        let enclosing = || self.calls.enclosing(regs.rsp);
        let (symbol, data, depth) = match (meaning.data, meaning.in_program) {
            (Some((symbol, data)), _) => (symbol, Some(data), enclosing()),
            (None, Some((symbol, depth))) => (symbol, None, depth),
            (None, None) => match probe.place() {
                Some(place) => (Arc::clone(&place.symbol), None, enclosing()),
                None => return,
            },
        };
        let regs = registers(regs, ip);
        let (write, read) = match data {
            Some(DataAccess::Write(write)) => (Some(write), None),
            Some(DataAccess::Read(read)) => (None, Some(read)),
            None => (None, None),
        };
        let (stack, stack_incomplete, program) = Stack::parts(meaning.stack);
        self.sink.event(Event::Hit(Hit {
            probe: Arc::clone(&probe.name),
            ts_ns,
            vcpu,
            ip,
            symbol,
            write,
            read,
            depth,
            args: meaning
                .arguments
                .map_or_else(|| regs.arguments(), |arguments| arguments.map(Hex)),
            regs,
            task: meaning.task,
            params: meaning.params,
            fields: meaning.fields,
            stack,
            stack_incomplete,
            program_stack: program.frames,
            program_stack_incomplete: program.incomplete,
        }));
    }

    pub(crate) fn emit_return_at(
        &self,
        ts_ns: u64,
        call: &Instance,
        vcpu: usize,
        regs: &vmm::kvm_regs,
        task: Option<Task>,
        stack: Option<Stack>,
    ) {
        let Some(place) = call.probe.place() else {
            return;
        };
        let returned = ReturnedCall {
            probe: &call.probe,
            symbol: Arc::clone(&place.symbol),
            returns_to: call.returns_to,
            entered_ns: call.entered_ns,
            depth: self.calls.enclosing(call.slot),
        };
        self.emit_returned(ts_ns, returned, vcpu, regs, task, stack);
    }

    /// Reports a return, with the registers behind it.
    pub(crate) fn emit_returned(
        &self,
        ts_ns: u64,
        call: ReturnedCall<'_>,
        vcpu: usize,
        regs: &vmm::kvm_regs,
        task: Option<Task>,
        stack: Option<Stack>,
    ) {
        let ip = Hex::from(call.returns_to);
        let (stack, stack_incomplete, program) = Stack::parts(stack);
        self.sink.event(Event::Return(Return {
            probe: Arc::clone(&call.probe.name),
            ts_ns,
            took_ns: ts_ns.saturating_sub(call.entered_ns),
            vcpu,
            ip,
            symbol: call.symbol,
            retval: Hex(regs.rax),
            task,
            returned: returned(call.probe, regs.rax),
            depth: call.depth,
            stack,
            stack_incomplete,
            program_stack: program.frames,
            program_stack_incomplete: program.incomplete,
            regs: registers(regs, ip),
        }));
    }
}

/// The maximum length of a note's text, bytes. A note may quote the guest and clients, and many notes may wait for a reader.
const NOTE_BYTES_MAX: usize = 4096;

/// `text`, cut to the length of a note.
fn shortened(mut text: String) -> String {
    if text.len() > NOTE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(NOTE_BYTES_MAX));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

/// The registers of an event. RIP is the address of the probed instruction, wherever the plant is.
pub(crate) fn registers(regs: &vmm::kvm_regs, ip: Hex) -> Registers {
    Registers {
        rax: Hex(regs.rax),
        rbx: Hex(regs.rbx),
        rcx: Hex(regs.rcx),
        rdx: Hex(regs.rdx),
        rsi: Hex(regs.rsi),
        rdi: Hex(regs.rdi),
        rbp: Hex(regs.rbp),
        rsp: Hex(regs.rsp),
        r8: Hex(regs.r8),
        r9: Hex(regs.r9),
        r10: Hex(regs.r10),
        r11: Hex(regs.r11),
        r12: Hex(regs.r12),
        r13: Hex(regs.r13),
        r14: Hex(regs.r14),
        r15: Hex(regs.r15),
        rip: ip,
        rflags: Hex(regs.rflags),
    }
}
