//! The looks of a guest.

/// Code that can look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looker {
    /// Any program.
    Program,
    /// A program with all rights, without modules.
    Root,
    /// The kernel, and its modules.
    Kernel,
}

impl Looker {
    /// The words for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Root => "root",
            Self::Kernel => "module",
        }
    }
}

macro_rules! looks {
    ($($(#[doc = $doc:literal])+ $look:ident = $name:literal, $looker:ident, $words:literal;)*) => {
        /// A way to look for probes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Look {
            $($(#[doc = $doc])+ $look,)*
        }

        /// All looks, in the order of the table.
        pub const LOOKS: [Look; [$(Look::$look),*].len()] = [$(Look::$look),*];

        impl Look {
            /// The name in the lines of the test guest.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$look => $name,)*
                }
            }

            /// The code with the least rights that can look.
            #[must_use]
            pub const fn looker(self) -> Looker {
                match self {
                    $(Self::$look => Looker::$looker,)*
                }
            }

            /// The words for people.
            #[must_use]
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$look => $words,)*
                }
            }
        }
    };
}

looks! {
    /// The kernel's text, read as words.
    Text = "text", Kernel, "the text, read as words";
    /// The same through another mapping.
    Alias = "alias", Kernel, "the text, read through another mapping";
    /// The text, copied by a string instruction.
    Copy = "copy", Kernel, "the text, copied by a string instruction";
    /// The text, read by vector instructions.
    Vectors = "vectors", Kernel, "the text, read by vector instructions";
    /// Text that the guest has patched, read through both mappings and executed.
    Patched = "patched", Kernel, "patched text, read back and executed";
    /// The page tables.
    Tables = "tables", Root, "the page tables";
    /// Physical memory behind the RAM.
    Physical = "physical", Kernel, "physical addresses behind the RAM";
    /// Registers and flags behind calls.
    Registers = "registers", Program, "registers and flags behind calls";
    /// The return address that a called function finds on the stack.
    ReturnAddress = "return-address", Kernel, "return addresses on the stack";
    /// The frames of exceptions: RIP, RSP and flags, with TF and RF.
    Frames = "frames", Kernel, "frames of exceptions, with TF and RF";
    /// The debug registers.
    DebugRegisters = "debug-registers", Kernel, "the debug registers";
    /// A breakpoint of the guest's own in a debug register, at a probed instruction.
    OwnBreakpoints = "own-breakpoints", Root, "the guest's own hardware breakpoint at a probed instruction";
    /// A data breakpoint of the guest's own, on data that a probed instruction writes.
    OwnWatchpoints = "own-watchpoints", Root, "the guest's own hardware watchpoint at an emulated access";
    /// An `int3` of the guest's own at a probed instruction.
    OwnInt3 = "own-int3", Root, "the guest's own kprobe at a probed instruction";
    /// The interrupt table.
    Gates = "gates", Kernel, "the interrupt table";
    /// CPUID.
    Cpuid = "cpuid", Program, "CPUID";
    /// Model-specific registers.
    Msrs = "msrs", Root, "model-specific registers";
}
