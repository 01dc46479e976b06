//! The parser, by recursive descent:
//!
//! ```text
//! unary   = ("*" | "&") unary | "(" type ")" unary | postfix
//! postfix = primary { "." name | "->" name | "[" number "]" }
//! primary = name | number | "per_cpu" "(" name "," number ")" | "(" unary ")"
//! type    = name { name } { "*" }
//! ```
//!
//! `(a) b` can only be a cast, and `(a).b` only a group, because there are no operators between two operands.

use super::error::{ParseError, Span};
use super::token::{Token, tokens};
use super::tree::{Expression, Kind, Node, TypeName};

/// A person's longest expressions have a hundred.
const MAX_BYTES: usize = 1024;
const MAX_OPERATORS: usize = 64;
const QUALIFIERS: [&str; 3] = ["const", "volatile", "restrict"];

impl Expression {
    /// Parses `text`.
    ///
    /// # Errors
    ///
    /// If the text is no expression.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser::new(text)?;
        let root = parser.unary()?;
        parser.end("an operator or the end")?;
        Ok(Self {
            text: text.to_owned(),
            root,
        })
    }
}

impl TypeName {
    /// Parses `text`.
    ///
    /// # Errors
    ///
    /// If the text is no type's name.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser::new(text)?;
        let name = parser.type_name();
        match name {
            Some(name) => {
                parser.end("`*` or the end")?;
                Ok(name)
            }
            None => Err(parser.unexpected("a type")),
        }
    }
}

struct Parser {
    /// Ends with [`Token::End`].
    tokens: Vec<(Token, Span)>,
    next: usize,
    /// The number of operators and groups so far: the tree is at most as deep.
    operators: usize,
}

impl Parser {
    fn new(text: &str) -> Result<Self, ParseError> {
        if text.len() > MAX_BYTES {
            return Err(ParseError::TooLong { most: MAX_BYTES });
        }
        let tokens = tokens(text)?;
        Ok(Self {
            tokens,
            next: 0,
            operators: 0,
        })
    }

    /// The next token; at the end, the end again and again.
    fn peek(&self) -> (&Token, Span) {
        match self.tokens.get(self.next).or(self.tokens.last()) {
            Some((token, span)) => (token, *span),
            None => (&Token::End, Span { start: 0, end: 0 }),
        }
    }

    fn take_mark(&mut self, wanted: &str) -> Option<Span> {
        let (token, span) = self.peek();
        let is_wanted = matches!(token, Token::Mark(mark) if *mark == wanted);
        is_wanted.then(|| {
            self.next += 1;
            span
        })
    }

    fn mark(&mut self, wanted: &str, expected: &'static str) -> Result<Span, ParseError> {
        let taken = self.take_mark(wanted);
        taken.ok_or_else(|| self.unexpected(expected))
    }

    fn take_name(&mut self) -> Option<(String, Span)> {
        let (Token::Name(name), span) = self.peek() else {
            return None;
        };
        let name = name.clone();
        self.next += 1;
        Some((name, span))
    }

    fn name(&mut self, expected: &'static str) -> Result<(String, Span), ParseError> {
        let name = self.take_name();
        name.ok_or_else(|| self.unexpected(expected))
    }

    fn number(&mut self) -> Result<u64, ParseError> {
        let (Token::Number(number), _) = self.peek() else {
            return Err(self.unexpected("a number"));
        };
        let number = *number;
        self.next += 1;
        Ok(number)
    }

    fn end(&self, expected: &'static str) -> Result<(), ParseError> {
        match self.peek() {
            (Token::End, _) => Ok(()),
            _ => Err(self.unexpected(expected)),
        }
    }

    fn unexpected(&self, expected: &'static str) -> ParseError {
        let (token, at) = self.peek();
        let found = token.shown();
        ParseError::Unexpected {
            found,
            expected,
            at,
        }
    }

    /// Counts an operator or a group at `at`.
    fn count(&mut self, at: Span) -> Result<(), ParseError> {
        self.operators += 1;
        if self.operators > MAX_OPERATORS {
            let most = MAX_OPERATORS;
            return Err(ParseError::TooMany { most, at });
        }
        Ok(())
    }

    fn unary(&mut self) -> Result<Node, ParseError> {
        let (_, start) = self.peek();
        let wrap = |kind: Kind, last: Span| Node {
            kind,
            span: start.to(last),
        };
        if self.take_mark("*").is_some() {
            self.count(start)?;
            let of = self.unary()?;
            let last = of.span;
            return Ok(wrap(Kind::Target(Box::new(of)), last));
        }
        if self.take_mark("&").is_some() {
            self.count(start)?;
            let of = self.unary()?;
            let last = of.span;
            return Ok(wrap(Kind::Address(Box::new(of)), last));
        }
        if let Some(name) = self.cast() {
            self.count(start)?;
            let of = self.unary()?;
            let last = of.span;
            return Ok(wrap(Kind::Cast(name, Box::new(of)), last));
        }
        self.postfix()
    }

    /// The type of a cast, if the next tokens are a cast with an operand behind.
    fn cast(&mut self) -> Option<TypeName> {
        let start = self.next;
        let name = self.take_mark("(").and_then(|_| self.type_name());
        let is_closed = name.is_some() && self.take_mark(")").is_some();
        let has_operand = match self.peek().0 {
            Token::Name(_) | Token::Number(_) => true,
            Token::Mark(mark) => matches!(*mark, "(" | "*" | "&"),
            Token::End => false,
        };
        if !is_closed || !has_operand {
            self.next = start;
            return None;
        }
        name
    }

    fn type_name(&mut self) -> Option<TypeName> {
        let mut words = Vec::new();
        while let Some((word, _)) = self.take_name() {
            if !QUALIFIERS.contains(&word.as_str()) {
                words.push(word);
            }
        }
        let mut stars = 0;
        while !words.is_empty() {
            if self.take_mark("*").is_some() {
                stars += 1;
                continue;
            }
            match self.peek().0 {
                Token::Name(word) if QUALIFIERS.contains(&word.as_str()) => self.next += 1,
                _ => break,
            }
        }
        (!words.is_empty()).then_some(TypeName { words, stars })
    }

    fn postfix(&mut self) -> Result<Node, ParseError> {
        let mut node = self.primary()?;
        loop {
            let (span, operator) = (node.span, self.peek().1);
            node = if self.take_mark(".").is_some() {
                self.member(node, false)?
            } else if self.take_mark("->").is_some() {
                self.member(node, true)?
            } else if self.take_mark("[").is_some() {
                let number = self.number()?;
                let last = self.mark("]", "`]`")?;
                let of = Box::new(node);
                let kind = Kind::Element { of, number };
                Node {
                    kind,
                    span: span.to(last),
                }
            } else {
                return Ok(node);
            };
            self.count(operator)?;
        }
    }

    fn member(&mut self, of: Node, is_arrow: bool) -> Result<Node, ParseError> {
        let (name, last) = self.name("a member's name")?;
        let span = of.span.to(last);
        let of = Box::new(of);
        let kind = Kind::Member { of, name, is_arrow };
        Ok(Node { kind, span })
    }

    fn primary(&mut self) -> Result<Node, ParseError> {
        let (token, span) = self.peek();
        match token.clone() {
            Token::Number(number) => {
                self.next += 1;
                let kind = Kind::Number(number);
                Ok(Node { kind, span })
            }
            Token::Name(name) => {
                self.next += 1;
                if name == "per_cpu" && self.take_mark("(").is_some() {
                    return self.per_cpu(span);
                }
                let kind = Kind::Name(name);
                Ok(Node { kind, span })
            }
            Token::Mark("(") => {
                self.next += 1;
                self.count(span)?;
                let inner = self.unary()?;
                let last = self.mark(")", "an operator or `)`")?;
                let span = span.to(last);
                Ok(Node {
                    kind: inner.kind,
                    span,
                })
            }
            _ => Err(self.unexpected("a variable, a number, `*`, `&` or `(`")),
        }
    }

    fn per_cpu(&mut self, start: Span) -> Result<Node, ParseError> {
        let (name, _) = self.name("a per-CPU variable")?;
        self.mark(",", "`,`")?;
        let cpu = self.number()?;
        let last = self.mark(")", "`)`")?;
        let kind = Kind::PerCpu(name, cpu);
        Ok(Node {
            kind,
            span: start.to(last),
        })
    }
}

#[cfg(test)]
mod tests;
