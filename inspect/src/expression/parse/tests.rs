use proptest::prelude::*;

use super::*;

/// The tree with all groups in brackets.
fn shown(node: &Node) -> String {
    match &node.kind {
        Kind::Name(name) => name.clone(),
        Kind::Number(number) => number.to_string(),
        Kind::PerCpu(name, cpu) => format!("per_cpu({name}, {cpu})"),
        Kind::Member { of, name, is_arrow } => {
            let operator = if *is_arrow { "->" } else { "." };
            format!("({}){operator}{name}", shown(of))
        }
        Kind::Element { of, number } => format!("({})[{number}]", shown(of)),
        Kind::Target(of) => format!("*({})", shown(of)),
        Kind::Address(of) => format!("&({})", shown(of)),
        Kind::Cast(ty, of) => {
            let (words, stars) = (ty.words.join(" "), "*".repeat(ty.stars));
            format!("({words}{stars})({})", shown(of))
        }
    }
}

#[test]
fn operators_bind_as_in_c() {
    for (text, expected) in [
        ("init_task.mm->pgd", "((init_task).mm)->pgd"),
        ("*a.b[3]", "*(((a).b)[3])"),
        ("&(*a)->b", "&((*(a))->b)"),
        ("*(struct file *)0x10", "*((struct file*)(16))"),
        ("(unsigned long)a.b", "(unsigned long)((a).b)"),
        ("((const struct file *)p)->f", "((struct file*)(p))->f"),
        ("(a).b", "(a).b"),
        ("(a)[0]", "(a)[0]"),
        ("(a)", "a"),
        ("(u8)*p", "(u8)(*(p))"),
        ("per_cpu(runqueues, 1).nr", "(per_cpu(runqueues, 1)).nr"),
        ("per_cpu", "per_cpu"),
    ] {
        let parsed = Expression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(shown(&parsed.root), expected, "{text}");
    }
}

#[test]
fn mistakes_say_where_they_are() {
    for (text, expected) in [
        (
            "",
            "the end is not a variable, a number, `*`, `&` or `(` at byte 0",
        ),
        ("a.", "the end is not a member's name at byte 2"),
        ("a b", "`b` is not an operator or the end at byte 2"),
        ("a[b]", "`b` is not a number at byte 2"),
        ("(a", "the end is not an operator or `)` at byte 2"),
        ("a + 1", "`+` is not part of an expression at byte 2"),
        ("0xg", "`0xg` is not a number of 64 bits at byte 0"),
        ("010", "`010` is not a number of 64 bits at byte 0"),
        ("per_cpu(a)", "`)` is not `,` at byte 9"),
        (
            "(struct file *)",
            "`file` is not an operator or `)` at byte 8",
        ),
    ] {
        let error = Expression::parse(text).expect_err(text);
        assert_eq!(error.to_string(), expected, "{text}");
    }
    let deep = "*".repeat(100) + "a";
    assert!(matches!(
        Expression::parse(&deep),
        Err(ParseError::TooMany { .. })
    ));
    let deep = "(".repeat(100);
    assert!(matches!(
        Expression::parse(&deep),
        Err(ParseError::TooMany { .. })
    ));
    let deep = "a".to_owned() + &".a".repeat(100);
    assert!(matches!(
        Expression::parse(&deep),
        Err(ParseError::TooMany { .. })
    ));
    assert!(matches!(
        Expression::parse(&"a".repeat(2000)),
        Err(ParseError::TooLong { .. })
    ));
}

#[test]
fn names_of_types_have_words_and_stars() {
    let name = TypeName::parse("const struct file * const *").expect("a type");
    assert_eq!(
        (name.words.join(" "), name.stars),
        ("struct file".to_owned(), 2)
    );
    let error = TypeName::parse("* file").expect_err("no type");
    assert_eq!(error.to_string(), "`*` is not a type at byte 0");
}

fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        "[a-z_][a-z0-9_]{0,6}",
        any::<u64>().prop_map(|number| number.to_string()),
    ];
    leaf.prop_recursive(6, 24, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|of| format!("*({of})")),
            inner.clone().prop_map(|of| format!("&({of})")),
            (inner.clone(), "[a-z]{1,4}").prop_map(|(of, name)| format!("({of}).{name}")),
            (inner.clone(), "[a-z]{1,4}").prop_map(|(of, name)| format!("({of})->{name}")),
            (inner.clone(), any::<u8>()).prop_map(|(of, by)| format!("({of})[{by}]")),
            inner.prop_map(|of| format!("(struct s*)({of})")),
        ]
    })
}

proptest! {
    #[test]
    fn tree_has_the_form_that_the_text_was_made_of(text in expression()) {
        let parsed = Expression::parse(&text).expect("an expression");
        prop_assert_eq!(shown(&parsed.root), text);
    }

    #[test]
    fn no_text_breaks_the_parser(text in "[a-z0-9 ()*&.,>\\[\\]-]{0,60}|.{0,40}") {
        if let Ok(parsed) = Expression::parse(&text) {
            let span = parsed.root.span;
            prop_assert!(text.get(span.start..span.end).is_some());
        }
        let _ = TypeName::parse(&text);
    }
}
