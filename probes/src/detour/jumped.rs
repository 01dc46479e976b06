//! What a jump stands for.

use introspect::Gva;
use introspect::insn::Decoded;

/// Bytes of `jmp rel32` behind its opcode.
const DISPLACEMENT_BYTES: usize = 4;

/// What leads to the detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// A jump, over the first instruction.
    Jump,
    /// An `int3` on its first byte.
    Int3,
}

/// What is executed in a detour: instructions one behind the other, of which the first has room for what leads there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Jumped {
    lead: Lead,
    first: Decoded,
    then: Option<Decoded>,
}

impl Jumped {
    /// The first instruction, and another that is executed in the detour too. `None` if the jump does not fit the
    /// first, or the other one is not the next.
    pub(crate) fn new(first: Decoded, then: Option<Decoded>) -> Option<Self> {
        let follows = then.is_none_or(|then| then.at() == first.next());
        (first.len() > DISPLACEMENT_BYTES && follows).then_some(Self {
            lead: Lead::Jump,
            first,
            then,
        })
    }

    /// One instruction of any length.
    pub(crate) fn by_int3(first: Decoded) -> Self {
        Self {
            lead: Lead::Int3,
            first,
            then: None,
        }
    }

    /// What leads to the detour.
    pub(crate) fn lead(&self) -> Lead {
        self.lead
    }

    /// Where the jump is.
    pub(crate) fn at(&self) -> Gva {
        self.first.at()
    }

    /// What has room for the jump.
    pub(crate) fn first(&self) -> &Decoded {
        &self.first
    }

    /// What is executed in the detour behind it.
    pub(crate) fn then(&self) -> Option<&Decoded> {
        self.then.as_ref()
    }

    /// All of them, in order.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = &Decoded> {
        std::iter::once(&self.first).chain(&self.then)
    }

    /// The last of them, at which the plant is.
    fn last(&self) -> &Decoded {
        self.then.as_ref().unwrap_or(&self.first)
    }

    /// Where the plant is.
    pub(super) fn site(&self) -> Gva {
        self.last().at()
    }

    /// Where the detour jumps back to.
    pub(super) fn next(&self) -> Gva {
        self.last().next()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let bytes = self.instructions().flat_map(|decoded| decoded.bytes());
        bytes.copied().collect()
    }
}
