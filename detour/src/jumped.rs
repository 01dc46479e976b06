//! The displaced instructions of a jump or `int3`.

use address::Gva;
use introspect::insn::Decoded;

/// Bytes of `jmp rel32` behind its opcode.
const DISPLACEMENT_BYTES: usize = 4;

/// The instruction that redirects the vCPU to the detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// A jump, over the first instruction.
    Jump,
    /// An `int3` on the first instruction's first byte.
    Int3,
}

/// The displaced instructions, in order: the detour executes them. The first has room for the jump or `int3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jumped {
    lead: Lead,
    first: Decoded,
    then: Option<Decoded>,
}

impl Jumped {
    /// The first instruction, and optionally the next, which the detour executes too. `None` if the jump does not fit the first
    /// instruction, or `then` does not follow `first`.
    #[must_use]
    pub fn new(first: Decoded, then: Option<Decoded>) -> Option<Self> {
        let follows = then.is_none_or(|then| then.at() == first.next());
        (first.len() > DISPLACEMENT_BYTES && follows).then_some(Self {
            lead: Lead::Jump,
            first,
            then,
        })
    }

    /// One instruction of any length, displaced by an `int3`.
    #[must_use]
    pub fn by_int3(first: Decoded) -> Self {
        Self {
            lead: Lead::Int3,
            first,
            then: None,
        }
    }

    /// The kind of redirect: a jump or an `int3`.
    #[must_use]
    pub fn lead(&self) -> Lead {
        self.lead
    }

    /// The address of the jump or `int3`.
    #[must_use]
    pub fn at(&self) -> Gva {
        self.first.at()
    }

    /// The instruction behind the first, if the detour executes two.
    #[must_use]
    pub fn then(&self) -> Option<&Decoded> {
        self.then.as_ref()
    }

    /// All displaced instructions, in order.
    pub fn instructions(&self) -> impl Iterator<Item = &Decoded> {
        std::iter::once(&self.first).chain(&self.then)
    }

    /// The last displaced instruction, at which the plant is.
    fn last(&self) -> &Decoded {
        self.then.as_ref().unwrap_or(&self.first)
    }

    /// The address of the plant.
    pub(super) fn site(&self) -> Gva {
        self.last().at()
    }

    /// The target of the detour's jump back.
    pub(super) fn next(&self) -> Gva {
        self.last().next()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let bytes = self.instructions().flat_map(|decoded| decoded.bytes());
        bytes.copied().collect()
    }
}
