use address::Gva;
use proptest::prelude::*;

use super::*;
use crate::fixture::{BASE, Fixture, SLIDE};
use crate::value::Limits;

fn printed(text: &str) -> Result<String, EvaluateError> {
    let fixture = Fixture::new();
    let view = fixture.view();
    let expression = Expression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let object = expression.evaluate(&view)?;
    Ok(format!(
        "({}) {}",
        object.declared(),
        object.value(Limits::default())
    ))
}

fn error(text: &str) -> (String, Option<String>) {
    let error = printed(text).expect_err(text);
    (error.to_string(), error.help())
}

#[test]
fn members_elements_and_pointers_lead_to_values() {
    let task = "((struct task *)&first_task)";
    for (expression, expected) in [
        ("->pid", "(int) -7"),
        ("->mm->users", "(int) 9"),
        ("->mm->pgd", "(char *) 0xffff888000001000"),
        ("->comm", "(char[16]) \"swap\\\"per\""),
        ("->comm[1]", "(char) 119"),
        ("->low", "(int) -3"),
        ("->flags", "(enum flags) WRITE|EXEC (6)"),
        ("->half", "(int) 5"),
        ("->whole", "(long unsigned int) 0x100000005"),
        ("->grid[1]", "(int) 12"),
        ("->own_mm.pgd", "(char *) 0xffffffff81200604 <schedule+0x4>"),
        ("->is_on", "(_Bool) true"),
    ] {
        let text = format!("{task}{expression}");
        assert_eq!(printed(&text).as_deref(), Ok(expected), "{text}");
    }
    for (text, expected) in [
        ("init_mm.users", "(int) 9"),
        ("&init_mm", "(struct mm *) 0xffffffff81200400 <init_mm>"),
        ("*&init_mm.users", "(int) 9"),
        ("(&init_mm)[0].users", "(int) 9"),
        ("&init_mm.users", "(int *) 0xffffffff81200408 <init_mm+0x8>"),
        (
            "*(struct mm **)0xffffffff81200008",
            "(struct mm *) 0xffffffff81200400 <init_mm>",
        ),
        ("schedule", "(void *) 0xffffffff81200600 <schedule>"),
        ("(int)init_mm.pgd", "(int) 4096"),
        ("(int)0xffffffff", "(int) -1"),
        ("(char)0x141", "(char) 65"),
        (
            "(unsigned long)(int)0x1ffffffff",
            "(long unsigned int) 0xffffffffffffffff",
        ),
        ("(_Bool)0x100", "(_Bool) true"),
        ("(struct mm *)(char)0x101", "(struct mm *) 0x1"),
        ("&*(int *)&both", "(int *) 0xffffffff81200700 <both>"),
        ("per_cpu(runqueues, 0).nr_running", "(int) 20"),
        ("per_cpu(runqueues, 1).nr_running", "(int) 21"),
        ("16", "(long unsigned int) 16"),
    ] {
        assert_eq!(printed(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn type_of_a_variable_can_be_given() {
    let fixture = Fixture::new();
    let view = fixture.view();
    let task = TypeName::parse("struct task").expect("a type");
    for text in ["first_task", "&first_task", "0xffffffff81200000"] {
        let expression = Expression::parse(text).expect(text);
        let object = expression.evaluate_as(&view, &task).expect(text);
        assert_eq!(object.place(), Place::Memory(Gva(BASE.0 + SLIDE)), "{text}");
        assert!(
            object
                .value(Limits::default())
                .to_string()
                .contains(".pid = -7,"),
            "{text}"
        );
    }
}

#[test]
fn void_is_not_the_type_of_an_object() {
    let fixture = Fixture::new();
    let void = TypeName::parse("void").expect("a type");
    let expression = Expression::parse("init_mm").expect("a name");
    let error = expression.evaluate_as(&fixture.view(), &void);
    let expected = "`init_mm` is of type `void`, which has no value";
    assert_eq!(error.expect_err("no value").to_string(), expected);
}

#[test]
fn mistakes_are_refused_with_cause_and_remedy() {
    for (text, expected, help) in [
        (
            "first_tusk",
            "the kernel has no variable or function `first_tusk`",
            Some("near names: first_task"),
        ),
        (
            "first_task",
            "the type of the variable `first_task` is not in the kernel's BTF, which has few variables",
            Some(
                "give the type: `*(struct TYPE *)&first_task`, or `-t 'struct TYPE' first_task` on the command line",
            ),
        ),
        (
            "init_mm.user",
            "`struct mm` has no member `user`",
            Some("near names: users"),
        ),
        (
            "init_mm.users.x",
            "`.` is for structs, and `init_mm.users` is of type `int`",
            None,
        ),
        (
            "init_mm->users",
            "`->` is for pointers, and `init_mm` is of type `struct mm`",
            None,
        ),
        ("(struct mn *)0", "the kernel has no type `struct mn`", None),
        (
            "(int)init_mm",
            "`(type)` is for a number or a pointer, and `init_mm` is of type `struct mm`",
            None,
        ),
        (
            "&16",
            "`16` has no address: it is a bit field or a number",
            None,
        ),
        (
            "runqueues",
            "`runqueues` is a per-CPU variable: each processor has its own",
            Some("say which processor's: `per_cpu(runqueues, 0)`"),
        ),
        (
            "(struct mm)16",
            "a cast makes a number of at most 64 bits or a pointer, and `struct mm` is neither",
            None,
        ),
        (
            "(void)16",
            "a cast makes a number of at most 64 bits or a pointer, and `void` is neither",
            None,
        ),
        (
            "*(void *)16",
            "`*(void *)16` is of type `void`, which has no value",
            Some("cast to a pointer to another type: `*(struct TYPE *)…`"),
        ),
        (
            "twin",
            "the kernel has several variables or functions `twin`: at 0xffffffff81200708, 0xffffffff81200710",
            Some("give the address of one in place of the name"),
        ),
        (
            "per_cpu(init_mm, 0)",
            "`init_mm` is not a per-CPU variable",
            Some("`init_mm` alone is the variable"),
        ),
        (
            "per_cpu(runqueues, 2)",
            "there is no processor 2: the kernel has 2",
            None,
        ),
        (
            "(*(struct mm **)0x10)->users",
            "cannot read `(*(struct mm **)0x10)` at 0x10: no memory is there",
            None,
        ),
    ] {
        let (found, advice) = error(text);
        assert_eq!(found, expected, "{text}");
        if help.is_some() {
            assert_eq!(advice.as_deref(), help, "{text}");
        }
    }
    assert_eq!(printed("*(int *)0x10").as_deref(), Ok("(int) <fault 0x10>"));
}

proptest! {
    #[test]
    fn no_expression_breaks_the_evaluator(
        parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "init_mm", "first_task", "runqueues", "schedule", "0", "0xffffffff81200000", "*", "&", "(", ")",
                "(struct task *)", "(struct task)", "(void *)", "(void)", ".pid", "->mm", "->pgd", ".low", ".grid", "[3]",
                "[18446744073709551615]", "per_cpu(runqueues, 1)", "(unsigned long)", ".comm",
            ]),
            1..8,
        ),
    ) {
        let text = parts.concat();
        if let Ok(expression) = Expression::parse(&text) {
            let fixture = Fixture::new();
            if let Ok(object) = expression.evaluate(&fixture.view()) {
                let _ = (object.declared(), object.value(Limits::default()).to_json());
            }
            let task = TypeName::parse("struct task").expect("a type");
            let _ = expression.evaluate_as(&fixture.view(), &task);
        }
    }
}
