//! The name of a task, compared with a constant.

use std::fmt;

/// The size of a task's name in the kernel, with a zero at the end.
pub const NAME_BYTES: usize = 16;

/// The name of a task: 1 to 15 printable bytes of ASCII, and no quotation mark.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskName([u8; NAME_BYTES]);

/// Eight bytes of a name, as a number in memory's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameWord {
    /// The offset in the name.
    pub offset: usize,
    /// The bits that are compared: the kernel may leave anything behind the zero at the end.
    pub mask: u64,
    /// The bits of the name.
    pub value: u64,
}

impl TaskName {
    /// The most bytes of a name.
    pub const MAX_BYTES: usize = NAME_BYTES - 1;

    /// The name in `text`; `None` if no filter can compare the name.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_fit = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"';
        let mut name = [0; NAME_BYTES];
        let is_name = !text.is_empty() && text.len() <= Self::MAX_BYTES && text.bytes().all(is_fit);
        is_name.then(|| {
            name[..text.len()].copy_from_slice(text.as_bytes());
            Self(name)
        })
    }

    /// The words that a task of the name has: one, or two if the name has more than seven bytes.
    pub fn words(self) -> impl Iterator<Item = NameWord> {
        let compared = self.len() + 1;
        (0..NAME_BYTES).step_by(8).filter_map(move |offset| {
            let bytes = compared.checked_sub(offset).filter(|bytes| *bytes > 0)?;
            let mut word = [0; 8];
            word.copy_from_slice(self.0.get(offset..offset + 8)?);
            Some(NameWord {
                offset,
                mask: u64::MAX >> (8 * (8 - bytes.min(8))),
                value: u64::from_le_bytes(word),
            })
        })
    }

    /// Whether `comm`, from the kernel's memory, is the name.
    #[must_use]
    pub fn is(self, comm: [u8; NAME_BYTES]) -> bool {
        let compared = self.len() + 1;
        self.0.get(..compared) == comm.get(..compared)
    }

    fn len(self) -> usize {
        self.0
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(Self::MAX_BYTES)
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0[..self.len()];
        name.iter()
            .try_for_each(|byte| write!(f, "{}", char::from(*byte)))
    }
}

impl fmt::Debug for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskName(\"{self}\")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_compared_up_to_its_zero() {
        let bash = TaskName::new("bash").expect("a name");
        // Kernels before 5.14 leave the rest of a former name behind the zero.
        assert!(bash.is(*b"bash\0of-before\0\0"));
        assert!(!bash.is(*b"bash2\0\0\0\0\0\0\0\0\0\0\0"));
        assert!(!bash.is([0; NAME_BYTES]));
        let full = TaskName::new("fifteen-letters").expect("a name");
        assert!(full.is(*b"fifteen-letters\0") && !full.is(*b"fifteen-letter\0\0"));
    }

    #[test]
    fn words_of_a_name_end_with_its_zero() {
        let words = |text: &str| {
            let name = TaskName::new(text).expect("a name");
            let words = name.words();
            words
                .map(|word| (word.offset, word.mask))
                .collect::<Vec<_>>()
        };
        assert_eq!(words("a"), [(0, 0xffff)]);
        assert_eq!(words("sevenby"), [(0, u64::MAX)]);
        assert_eq!(words("eightbyt"), [(0, u64::MAX), (8, 0xff)]);
        assert_eq!(words("fifteen-letters"), [(0, u64::MAX), (8, u64::MAX)]);
        let word = TaskName::new("ab").expect("a name").words().next();
        assert_eq!(word.expect("a word").value, 0x6261);
    }

    #[test]
    fn text_that_no_task_can_be_called_is_no_name() {
        for text in ["", "sixteen-letters!", "a\"b", "a\0b", "caf\u{e9}", "a\n"] {
            assert_eq!(TaskName::new(text), None, "{text:?}");
        }
    }
}
