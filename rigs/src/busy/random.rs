//! Where the probes of a soak come and go.

use introspect::Symbol;
use probes::{Action, Kernel, NewProbe, ProbeSpec};

/// xorshift: repeatable, and good enough to choose addresses.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Zero is the one state that it does not leave.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// A number below `limit`; 0 if there is none.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).unwrap_or(0)
    }
}

/// The functions that there are.
#[derive(Debug)]
pub(super) struct Somewhere<'k> {
    kernel: &'k Kernel,
    functions: Vec<Symbol>,
    /// Those with probes that stay.
    watched: Vec<Symbol>,
}

impl<'k> Somewhere<'k> {
    pub(super) fn new(kernel: &'k Kernel, watched: Vec<Symbol>) -> Self {
        let functions = kernel
            .symbols()
            .iter()
            .filter(|symbol| symbol.is_text() && symbol.size > 0)
            .filter(|symbol| kernel.holds_code(symbol.address) && !kernel.is_init(symbol.address))
            .collect();
        Self {
            kernel,
            functions,
            watched,
        }
    }

    /// A probe at any instruction of any function; one in eight beside a probe that stays, one in four follows the
    /// function's calls.
    pub(super) fn probe(&self, random: &mut Random) -> Option<NewProbe> {
        let among = match random.below(8) {
            0 => &self.watched,
            _ => &self.functions,
        };
        let function = among.get(random.below(among.len()))?;
        let code: Vec<_> = self
            .kernel
            .instructions(function)
            .map_while(Result::ok)
            .collect();
        let at = code.get(random.below(code.len()))?.at();
        let follow =
            random.below(4) == 0 && self.kernel.symbols().lookup_all(&function.name).len() == 1;
        let spec = if follow {
            format!("kretprobe:{}", function.name)
        } else {
            format!("kprobe:{at}")
        };
        Some(NewProbe {
            action: Action::Count,
            ..NewProbe::from(spec.parse::<ProbeSpec>().ok()?)
        })
    }
}
