//! The snippets of one boot.

use iced_x86::{EncodingKind, Mnemonic};
use introspect::insn::{Class, Decoded, Reason, classify};
use reference::Random;

use super::generate;
use super::layout::Layout;
use super::record;
use super::snippet::Snippet;

/// The choice of snippets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chosen<'a> {
    /// Kinds of snippets to leave out.
    pub(super) without: &'a [String],
    /// KVM interprets the guest's kernel: the interpreter knows some moves of x87, MMX and SSE, and no newer instructions.
    pub(super) interpreted: bool,
}

impl Chosen<'_> {
    fn has(self, snippet: &Snippet) -> bool {
        // At undecodable bytes, the interpreter fails instead of raising a fault, unless the bytes are an instruction with a wrong
        // prefix.
        let decodes = snippet.instructions().next().is_some() || snippet.code.starts_with(&[LOCK]);
        let interpreted = decodes
            && snippet
                .instructions()
                .all(|decoded| is_interpreted(&decoded));
        !self.without.iter().any(|kind| kind == snippet.kind) && (interpreted || !self.interpreted)
    }
}

const LOCK: u8 = 0xf0;

/// Whether KVM's interpreter knows the instruction, as far as found out.
fn is_interpreted(decoded: &Decoded) -> bool {
    use Mnemonic as M;
    let insn = decoded.instruction();
    let moves = matches!(
        insn.mnemonic(),
        M::Movups
            | M::Movupd
            | M::Movaps
            | M::Movapd
            | M::Movdqa
            | M::Movdqu
            | M::Movntps
            | M::Movntpd
            | M::Movntdq
    );
    let general = (0..insn.op_count()).all(|operand| {
        let register = insn.op_register(operand);
        !register.is_mm() && !register.is_vector_register() && !register.is_st()
    });
    let unknown = matches!(
        insn.mnemonic(),
        M::Clac
            | M::Stac
            | M::Enter
            | M::Int
            | M::Int1
            // The interpreter loads no IOPL, and accepts selectors that fault on a processor.
            | M::Iretd
            | M::Iretq
            | M::Lar
            | M::Lsl
            | M::Verr
            | M::Verw
            | M::Ldmxcsr
            | M::Stmxcsr
            | M::Reservednop
            | M::Adcx
            | M::Adox
            | M::Crc32
            | M::Retf
            | M::Wait
            | M::Ud0
            | M::Ud1
            | M::Xgetbv
    );
    let is_fpu = classify(decoded) == Class::MustStep(Reason::Fpu);
    let is_legacy = insn.encoding() == EncodingKind::Legacy;
    is_legacy && (moves || (general && !unknown && !is_fpu))
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// The snippets of the slots, from the first slot on.
    pub(super) snippets: Vec<Snippet>,
}

impl Program {
    /// The same for the same arguments.
    pub(super) fn generate(layout: &Layout, seed: u64, count: u64, chosen: Chosen<'_>) -> Self {
        // Consecutive seeds should give unrelated snippets. The generator never leaves the state zero.
        let mut random = Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut snippets = Vec::new();
        while (snippets.len() as u64) < count {
            let at = layout.slot(snippets.len());
            if let Some(snippet) = generate::snippet(&mut random, layout, at)
                && chosen.has(&snippet)
            {
                snippets.push(snippet);
            }
        }
        Self { snippets }
    }

    /// The test guest's initrd.
    pub(super) fn records(&self) -> Vec<u8> {
        let snippets = self.snippets.iter();
        snippets
            .flat_map(|snippet| record::input_half(&snippet.state, snippet.skipped))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::layout::CODE_BYTES;
    use super::super::record::RECORD_BYTES;
    use super::*;

    fn generate(seed: u64, chosen: Chosen<'_>) -> Program {
        Program::generate(&Layout::example(), seed, 2000, chosen)
    }

    #[test]
    fn seed_determines_the_snippets() {
        let [one, same, other] = [1, 1, 2].map(|seed| generate(seed, Chosen::default()));
        assert_eq!(one.records(), same.records());
        assert_ne!(one.records(), other.records());
        assert_eq!(one.records().len(), 2000 * RECORD_BYTES);
        let code = |program: &Program| -> Vec<Vec<u8>> {
            let snippets = program.snippets.iter();
            snippets.map(|snippet| snippet.code.clone()).collect()
        };
        assert_eq!(code(&one), code(&same));
        assert_ne!(code(&one), code(&other));
    }

    #[test]
    fn program_has_each_kind_of_snippet() {
        let program = generate(1, Chosen::default());
        let kinds: BTreeSet<&str> = program
            .snippets
            .iter()
            .map(|snippet| snippet.kind)
            .collect();
        assert_eq!(kinds.len(), 23, "{kinds:?}");
        let mnemonics: BTreeSet<String> = program
            .snippets
            .iter()
            .flat_map(|snippet| snippet.instructions().collect::<Vec<_>>())
            .map(|decoded| format!("{:?}", decoded.instruction().mnemonic()))
            .collect();
        assert!(mnemonics.len() > 300, "{} mnemonics", mnemonics.len());
        for snippet in &program.snippets {
            assert!(snippet.code.len() <= CODE_BYTES, "{}", snippet.describe());
        }
    }

    #[test]
    fn kinds_not_chosen_are_not_generated() {
        let without = ["port".to_owned(), "single".to_owned()];
        let program = generate(
            1,
            Chosen {
                without: &without,
                interpreted: true,
            },
        );
        for snippet in &program.snippets {
            assert!(!without.iter().any(|kind| kind == snippet.kind));
            assert!(
                snippet
                    .instructions()
                    .all(|decoded| is_interpreted(&decoded))
            );
        }
    }
}
