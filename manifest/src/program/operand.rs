//! The operands of programs.

use std::fmt;

use serde::{Serialize, Serializer};

use super::NAME_BYTES;

macro_rules! registers {
    ($($variant:ident = $name:ident;)+) => {
        /// A register of a vCPU, 64 bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "they are what they are called")]
        pub enum Register {
            $($variant),+
        }

        impl Register {
            /// All registers that a program can read.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The register's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($name)),+ }
            }
        }
    };
}

registers! {
    Rax = rax;
    Rbx = rbx;
    Rcx = rcx;
    Rdx = rdx;
    Rsi = rsi;
    Rdi = rdi;
    Rbp = rbp;
    Rsp = rsp;
    R8 = r8;
    R9 = r9;
    R10 = r10;
    R11 = r11;
    R12 = r12;
    R13 = r13;
    R14 = r14;
    R15 = r15;
    Rflags = rflags;
}

/// An integer argument that the System V ABI passes in a register, by its number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argument(u8);

impl Argument {
    const REGISTERS: [Register; 6] = [
        Register::Rdi,
        Register::Rsi,
        Register::Rdx,
        Register::Rcx,
        Register::R8,
        Register::R9,
    ];

    /// The argument with the given number; `None` for an argument on the stack.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (usize::from(number) < Self::REGISTERS.len()).then_some(Self(number))
    }

    /// The argument's number, from 0 to 5.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The register that holds the argument at a function's entry.
    #[must_use]
    pub const fn register(self) -> Register {
        Self::REGISTERS[self.0 as usize]
    }
}

/// A number of the task that the processor runs, 32 bits in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskNumber {
    /// The real user, as a number in the initial user namespace.
    User,
    /// The process: the kernel's `tgid`.
    Process,
    /// The thread: the kernel's `pid`.
    Thread,
}

impl TaskNumber {
    /// All numbers.
    pub const ALL: [Self; 3] = [Self::User, Self::Process, Self::Thread];

    /// The name in programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "uid",
            Self::Process => "pid",
            Self::Thread => "tid",
        }
    }
}

/// A 64-bit value that a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register, right before the instruction is executed.
    Register(Register),
    /// The register of an argument: at a function's entry, the argument.
    Argument(Argument),
    /// The address of the `struct task_struct` of the task that the processor runs; 0 if unknown.
    CurrentTask,
    /// A number of the task that the processor runs; unknown if it cannot be read.
    Task(TaskNumber),
    /// The processor's number in the guest.
    Cpu,
}

impl Operand {
    /// All operands.
    pub fn all() -> impl Iterator<Item = Self> {
        let arguments = (0..).map_while(Argument::new).map(Self::Argument);
        let numbers = TaskNumber::ALL.map(Self::Task);
        let others = [Self::CurrentTask, Self::Cpu].into_iter().chain(numbers);
        let registers = Register::ALL.iter().copied().map(Self::Register);
        arguments.chain(others).chain(registers)
    }

    /// The register that holds the operand, if any.
    #[must_use]
    pub const fn register(self) -> Option<Register> {
        match self {
            Self::Register(register) => Some(register),
            Self::Argument(argument) => Some(argument.register()),
            Self::CurrentTask | Self::Task(_) | Self::Cpu => None,
        }
    }

    /// Whether the operand is about the task that the processor runs.
    #[must_use]
    pub const fn is_of_task(self) -> bool {
        matches!(self, Self::CurrentTask | Self::Task(_))
    }
}

/// Prints the text that parses to the same operand.
impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(register) => f.write_str(register.name()),
            Self::Argument(argument) => write!(f, "arg{}", argument.number()),
            Self::CurrentTask => f.write_str("curtask"),
            Self::Task(number) => f.write_str(number.name()),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

impl Serialize for Operand {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The values of operands at a hit. A program asks for a value only when needed.
pub trait Values {
    /// The value of `operand`; `None` if it is unknown.
    fn value(&mut self, operand: Operand) -> Option<u64>;

    /// The name of the task that the processor runs, as the kernel has it; `None` if it is unknown.
    fn name(&mut self) -> Option<[u8; NAME_BYTES]>;
}

impl<F: FnMut(Operand) -> u64> Values for F {
    fn value(&mut self, operand: Operand) -> Option<u64> {
        Some(self(operand))
    }

    fn name(&mut self) -> Option<[u8; NAME_BYTES]> {
        None
    }
}
