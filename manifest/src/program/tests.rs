use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn refused<T: std::str::FromStr<Err = ProgramError> + std::fmt::Debug>(
    text: &str,
) -> (String, &str, Option<String>) {
    let error = text.parse::<T>().expect_err(text);
    (error.to_string(), &text[error.span.clone()], error.help())
}

fn condition(text: &str) -> ValueCondition {
    let filter: Filter = text.parse().expect(text);
    let [Condition::Value(condition)] = filter.conditions() else {
        panic!("{text} is one condition");
    };
    *condition
}

/// Values of operands, and the name of a task.
struct Seen<'s>(&'s dyn Fn(Operand) -> u64, &'static str);

impl Values for Seen<'_> {
    fn value(&mut self, operand: Operand) -> Option<u64> {
        Some(self.0(operand))
    }

    fn name(&mut self) -> Option<[u8; NAME_BYTES]> {
        let mut name = [0; NAME_BYTES];
        name[..self.1.len()].copy_from_slice(self.1.as_bytes());
        Some(name)
    }
}

#[test]
fn name_of_a_task_is_compared_with_a_quoted_text() {
    let filter: Filter = "comm==\"a b\"&&comm != \"x\" && pid == 1"
        .parse()
        .expect("a filter");
    assert_eq!(
        filter.to_string(),
        "comm == \"a b\" && comm != \"x\" && pid == 1"
    );
    let holds = |name| filter.holds(&mut Seen(&|_| 1, name));
    assert_eq!(holds("a b"), Some(true));
    assert_eq!([holds("a bc"), holds("x"), holds("")], [Some(false); 3]);
    // The name of the task is not known.
    assert_eq!(filter.holds(&mut |_: Operand| 1), None);
    assert_eq!(filter.holds(&mut |_: Operand| 2), Some(false));
}

#[test]
fn mistake_in_a_name_has_a_remedy() {
    let write = Some("write comm == \"bash\"".to_owned());
    for (text, spot, says, help) in [
        (
            "comm == bash",
            "bash",
            "`bash` is not a name in quotation marks",
            write.clone(),
        ),
        (
            "comm ==",
            "",
            "it ends where a name in quotation marks is expected",
            write,
        ),
        (
            "comm == \"bash",
            "",
            "it ends where a quotation mark is expected",
            None,
        ),
        (
            "comm < \"a\"",
            "<",
            "`<` does not compare names: `==` and `!=` do",
            None,
        ),
        (
            "comm == \"\"",
            "\"\"",
            "`` is not a name to compare with: 1 to 15 printable characters of ASCII",
            None,
        ),
        (
            "comm == \"sixteen-letters!\"",
            "\"sixteen-letters!\"",
            "`sixteen-letters!` is not a name to compare with: 1 to 15 printable characters of ASCII",
            None,
        ),
        ("\"x\" == comm", "\"x\"", "`\"x\"` is not an operand", None),
    ] {
        let (error, at, remedy) = refused::<Filter>(text);
        assert_eq!((&*error, at, remedy), (says, spot, help), "{text}");
    }
    assert!(
        refused::<Aggregate>("hist(comm)")
            .0
            .contains("no operand `comm`")
    );
}

#[test]
fn text_is_parsed_to_its_value() {
    let argument = |number| Operand::Argument(Argument::new(number).expect("in a register"));
    for (text, operand, mask, comparison, value) in [
        ("arg0 == 5", argument(0), None, Comparison::Eq, 5),
        (
            "(arg2 & 0xff) != 1",
            argument(2),
            Some(0xff),
            Comparison::Ne,
            1,
        ),
        ("cpu<2", Operand::Cpu, None, Comparison::Below, 2),
        (
            "uid >= 1000",
            Operand::Task(TaskNumber::User),
            None,
            Comparison::AboveOrEqual,
            1000,
        ),
        (
            "pid == 1",
            Operand::Task(TaskNumber::Process),
            None,
            Comparison::Eq,
            1,
        ),
        (
            "(tid & 1) != 0",
            Operand::Task(TaskNumber::Thread),
            Some(1),
            Comparison::Ne,
            0,
        ),
        (
            "curtask == 0xffff888003d58000",
            Operand::CurrentTask,
            None,
            Comparison::Eq,
            0xffff_8880_03d5_8000,
        ),
        (
            "(int64)arg5 >= -4",
            argument(5),
            None,
            Comparison::GreaterOrEqual,
            4_u64.wrapping_neg(),
        ),
        (
            "(int64)(r15 & 7) < 1",
            Operand::Register(Register::R15),
            Some(7),
            Comparison::Less,
            1,
        ),
        (
            "(uint64) rflags > 0x200",
            Operand::Register(Register::Rflags),
            None,
            Comparison::Above,
            0x200,
        ),
        (
            "rax == -2",
            Operand::Register(Register::Rax),
            None,
            Comparison::Eq,
            2_u64.wrapping_neg(),
        ),
    ] {
        let expected = ValueCondition {
            operand,
            mask,
            comparison,
            value,
        };
        assert_eq!(condition(text), expected, "{text}");
    }
    let filter: Filter = "arg0==1&&arg1==2".parse().expect("two");
    assert_eq!(filter.to_string(), "arg0 == 1 && arg1 == 2");
    let returned: Aggregate = "sum(retval)".parse().expect("a sum");
    assert_eq!(returned.of(), Operand::Register(Register::Rax));
    let lhist: Aggregate = "lhist(arg2, -8, 0x1000, 256)".parse().expect("ranges");
    assert_eq!(lhist.to_string(), "lhist(arg2, -8, 4096, 256)");
}

#[test]
fn span_of_a_filter_mistake_is_exact() {
    let many = ["arg0 == 1"; 9].join(" && ");
    for (text, spot, says) in [
        ("", "", "it ends where an operand is expected"),
        ("arg0", "", "it ends where a comparison is expected"),
        ("arg0 = 5", "=", "`=` is not a comparison"),
        ("arg2 & 0xff != 1", "&", "`&` is not a comparison"),
        ("(arg2 & 0xff != 1", "!=", "`!=` is not `)`"),
        ("(arg2) == 1", ")", "`)` is not `&`"),
        ("arg0 == 5 || arg1 == 2", "||", "`||` is not `&&`"),
        ("arg0 == 5 &&", "", "it ends where an operand is expected"),
        ("5 == arg0", "5", "`5` is not an operand"),
        (
            "arg6 == 5",
            "arg6",
            "`arg6` is not in a register: only arg0 to arg5 are",
        ),
        ("arg0 == 5 && rxa == 1", "rxa", "there is no operand `rxa`"),
        (
            "(int32)arg0 < 0",
            "int32",
            "`int32` is not a type that values can be compared as",
        ),
        (
            "arg0 < -5",
            "-5",
            "`-5` is negative, and the comparison is without a sign",
        ),
        (
            "arg0 == 0x1ffffffffffffffff",
            "0x1ffffffffffffffff",
            "`0x1ffffffffffffffff` is not a number of 64 bits",
        ),
        (
            "arg0 == - 9223372036854775809",
            "- 9223372036854775809",
            "`-9223372036854775809` is not a number of 64 bits",
        ),
        (
            "retval < 5",
            "retval",
            "a filter decides when the function is entered, and nothing has been returned yet",
        ),
        ("arg0 == 5k", "5k", "`5k` is not a number of 64 bits"),
        ("arg0 == é", "é", "`é` means nothing here"),
        (&many, "arg0", "a filter has at most 8 conditions"),
    ] {
        let error = text.parse::<Filter>().expect_err(text);
        assert_eq!(
            (&text[error.span.clone()], error.to_string().as_str()),
            (spot, says),
            "{text}"
        );
    }
    let error = many.parse::<Filter>().expect_err("nine");
    assert_eq!(error.span.start, many.rfind("arg0").expect("the ninth"));
}

#[test]
fn span_of_an_aggregate_mistake_is_exact() {
    for (text, spot, says) in [
        ("", "", "it ends where an aggregate is expected"),
        ("histo(arg0)", "histo", "there is no aggregate `histo`"),
        ("hist arg0", "arg0", "`arg0` is not `(`"),
        ("hist(arg0", "", "it ends where `)` is expected"),
        ("hist(arg0) x", "x", "`x` is not the end"),
        (
            "sum(arg9)",
            "arg9",
            "`arg9` is not in a register: only arg0 to arg5 are",
        ),
        ("lhist(arg0)", ")", "`)` is not `,`"),
        (
            "lhist(arg0, 0, 0, 1)",
            "0, 0, 1",
            "the histogram ends at 0, which is not above its beginning at 0",
        ),
        (
            "lhist(arg0, 0, 9, 0)",
            "0, 9, 0",
            "the step must be from 1 to 9, the size of the whole range",
        ),
        (
            "lhist(arg0, 0, 9, 10)",
            "0, 9, 10",
            "the step must be from 1 to 9, the size of the whole range",
        ),
        (
            "lhist(arg0, 0, 9, -1)",
            "0, 9, -1",
            "the step must be from 1 to 9, the size of the whole range",
        ),
        (
            "lhist(arg0, 0, 1001, 1)",
            "0, 1001, 1",
            "the histogram would have 1001 ranges, of which it can have 1000",
        ),
        (
            "lhist(arg0, 0xffffffffffffffff, 0, 1)",
            "0xffffffffffffffff",
            "`18446744073709551615` is not a number of 64 bits with a sign",
        ),
    ] {
        let error = text.parse::<Aggregate>().expect_err(text);
        assert_eq!(
            (&text[error.span.clone()], error.to_string().as_str()),
            (spot, says),
            "{text}"
        );
    }
}

#[test]
fn help_names_the_correct_spelling() {
    let help = |text: &str| refused::<Filter>(text).2.expect(text);
    assert_eq!(help("arg0 = 5"), "equality is written ==");
    assert_eq!(
        help("arg0 & 1 == 1"),
        "some bits of an operand are written (arg2 & 0xff)"
    );
    assert!(help("rdii == 1").starts_with("did you mean `rdi`?"));
    assert_eq!(help("arg0 < -5"), "write (int64)arg0 < -5");
    let help = |text: &str| refused::<Aggregate>(text).2.expect(text);
    assert_eq!(help("count()"), "hits are counted by action = \"count\"");
    assert!(help("lhits(arg0)").starts_with("did you mean `lhist`?"));
}

#[test]
fn json_holds_programs_as_strings() {
    let filter: Filter = "arg0 == 5".parse().expect("a filter");
    let json = serde_json::to_string(&filter).expect("json");
    assert_eq!(json, r#""arg0 == 5""#);
    assert_eq!(serde_json::from_str::<Filter>(&json).expect("back"), filter);
    assert!(serde_json::from_str::<Aggregate>(r#""hist()""#).is_err());
}

fn words(aggregate: &Aggregate) -> Vec<AtomicU64> {
    let initial = aggregate.initial();
    assert_eq!(initial.len(), aggregate.words());
    initial.into_iter().map(AtomicU64::new).collect()
}

fn read(words: &[AtomicU64]) -> Vec<u64> {
    words
        .iter()
        .map(|word| word.load(Ordering::Relaxed))
        .collect()
}

/// A guest's kernel can write any number to the counters of detours.
#[test]
fn overwritten_words_leave_counts_at_the_greatest_number() {
    for text in ["sum(arg0)", "hist(arg0)", "lhist(arg0, 0, 10, 1)"] {
        let aggregate: Aggregate = text.parse().expect(text);
        let words = words(&aggregate);
        aggregate.add(&words, 0);
        let mut merged = read(&words);
        aggregate.merge(&mut merged, &vec![u64::MAX; aggregate.words()]);
        let merged: Vec<AtomicU64> = merged.into_iter().map(AtomicU64::new).collect();
        aggregate.add(&merged, 0);
        let counts = match aggregate.result(&read(&merged)) {
            // The sum wraps, as a sum of signed numbers.
            AggregateResult::Sum { count, value, .. } => {
                assert_eq!(value, -1);
                vec![count]
            }
            AggregateResult::Hist { count, buckets, .. } => {
                let counts = buckets.iter().map(|bucket| bucket.count);
                counts.chain([count]).collect()
            }
            AggregateResult::Lhist { count, buckets, .. } => {
                let counts = buckets.iter().map(|bucket| bucket.count);
                counts.chain([count]).collect()
            }
            other => panic!("{other:?}"),
        };
        assert!(counts.iter().all(|count| *count == u64::MAX), "{counts:?}");
    }
}

#[test]
fn a_result_is_shown_as_bpftrace_does() {
    let shown = |text: &str, values: &[i64]| {
        let aggregate: Aggregate = text.parse().expect(text);
        let words = words(&aggregate);
        for value in values {
            aggregate.add(&words, value.cast_unsigned());
        }
        aggregate.result(&read(&words)).to_string()
    };
    assert_eq!(shown("sum(arg2)", &[3, -5]), "sum(arg2): -2");
    assert_eq!(shown("min(arg2)", &[3, -5, 4]), "min(arg2): -5");
    assert_eq!(shown("max(arg2)", &[3, -5, 4]), "max(arg2): 4");
    assert_eq!(shown("max(arg2)", &[]), "max(arg2): no value");
    assert_eq!(shown("hist(arg2)", &[]), "hist(arg2):");
    let full = "@".repeat(52);
    let half = format!("{}{}", "@".repeat(26), " ".repeat(26));
    let none = " ".repeat(52);
    assert_eq!(
        shown("hist(arg2)", &[0, 1, 1, 700, 1024]),
        format!(
            "hist(arg2):\n\
             [0]                     1 |{half}|\n\
             [1]                     2 |{full}|\n\
             {}\
             [512, 1K)               1 |{half}|\n\
             [1K, 2K)                1 |{half}|",
            [
                "[2, 4)",
                "[4, 8)",
                "[8, 16)",
                "[16, 32)",
                "[32, 64)",
                "[64, 128)",
                "[128, 256)",
                "[256, 512)"
            ]
            .map(|label| format!("{label:<16}        0 |{none}|\n"))
            .concat()
        )
    );
    assert_eq!(
        shown("lhist(arg2, 0, 512, 256)", &[-1, 255, 256, 257, 512]),
        format!(
            "lhist(arg2):\n\
             (..., 0)                1 |{half}|\n\
             [0, 256)                1 |{half}|\n\
             [256, 512)              2 |{full}|\n\
             [512, ...)              1 |{half}|"
        )
    );
}

#[test]
fn json_has_the_range_of_each_bucket() {
    let aggregate: Aggregate = "lhist(arg2, 0, 10, 4)".parse().expect("ranges");
    let words = words(&aggregate);
    for value in [0, 3, 9, u64::MAX] {
        aggregate.add(&words, value);
    }
    let result = aggregate.result(&read(&words));
    let json = serde_json::to_value(&result).expect("json");
    assert_eq!(
        json,
        serde_json::json!({"kind": "lhist", "of": "arg2", "count": 4, "buckets": [
            {"max": -1, "count": 1},
            {"min": 0, "max": 3, "count": 2},
            {"min": 4, "max": 7, "count": 0},
            {"min": 8, "count": 1},
        ]})
    );
    assert_eq!(
        serde_json::from_value::<AggregateResult>(json).expect("back"),
        result
    );
}

fn operand() -> impl Strategy<Value = Operand> {
    select(Operand::all().collect::<Vec<_>>())
}

/// Values at the limits of comparisons and buckets.
fn edge() -> impl Strategy<Value = u64> {
    let near = (0..64_u32, -2_i64..3).prop_map(|(bit, by)| (1_u64 << bit).wrapping_add_signed(by));
    prop_oneof![
        any::<u64>(),
        near,
        0..20_u64,
        (0..20_u64).prop_map(u64::wrapping_neg)
    ]
}

fn any_condition() -> impl Strategy<Value = Condition> {
    let name = ("[ !#-~]{1,15}", any::<bool>()).prop_map(|(name, is_equal)| {
        let name = TaskName::new(&name).expect("a name");
        Condition::Name(NameCondition { name, is_equal })
    });
    prop_oneof![4 => any_value_condition().prop_map(Condition::Value), 1 => name]
}

fn any_value_condition() -> impl Strategy<Value = ValueCondition> {
    let comparison = select(vec![
        Comparison::Eq,
        Comparison::Ne,
        Comparison::Below,
        Comparison::BelowOrEqual,
        Comparison::Above,
        Comparison::AboveOrEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ]);
    (operand(), proptest::option::of(edge()), comparison, edge()).prop_map(
        |(operand, mask, comparison, value)| ValueCondition {
            operand,
            mask,
            comparison,
            value,
        },
    )
}

fn any_filter() -> impl Strategy<Value = Filter> {
    proptest::collection::vec(any_condition(), 1..=Filter::MAX_CONDITIONS)
        .prop_map(|conditions| Filter::new(conditions).expect("not too many"))
}

fn any_linear() -> impl Strategy<Value = Linear> {
    (edge(), 1..=1000_u64, edge(), any::<u64>()).prop_filter_map(
        "beyond 64 bits",
        |(min, ranges, step, rest)| {
            let (min, step) = (min.cast_signed(), step.max(1));
            let range = ranges.checked_mul(step)?.checked_add(rest % step)?;
            Linear::new(min, min.checked_add_unsigned(range)?, step).ok()
        },
    )
}

fn any_aggregate() -> impl Strategy<Value = Aggregate> {
    prop_oneof![
        operand().prop_map(Aggregate::Sum),
        operand().prop_map(Aggregate::Min),
        operand().prop_map(Aggregate::Max),
        operand().prop_map(Aggregate::Hist),
        (operand(), any_linear()).prop_map(|(of, linear)| Aggregate::Lhist { of, linear }),
    ]
}

/// Evaluates the text of the condition, with numbers that cannot overflow.
fn model(condition: &ValueCondition, value: u64) -> bool {
    let text = condition.to_string();
    let number = |value: u64| match text.starts_with("(int64)") {
        true => i128::from(value.cast_signed()),
        false => i128::from(value),
    };
    let (left, right) = (
        number(value & condition.mask.unwrap_or(u64::MAX)),
        number(condition.value),
    );
    let sign = text.rsplit(' ').nth(1).expect("a sign");
    match sign {
        "==" => left == right,
        "!=" => left != right,
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        ">=" => left >= right,
        other => panic!("{other}"),
    }
}

/// The number of `values` in a range of a result.
fn count_in(values: &[u64], min: Option<i128>, max: Option<i128>, signed: bool) -> u64 {
    let number = |value: u64| match signed {
        true => i128::from(value.cast_signed()),
        false => i128::from(value),
    };
    let is_in = |value: &&u64| {
        min.is_none_or(|min| min <= number(**value)) && max.is_none_or(|max| number(**value) <= max)
    };
    values.iter().filter(is_in).count() as u64
}

proptest! {
    #[test]
    fn a_filter_goes_through_its_own_text(filter in any_filter()) {
        prop_assert_eq!(filter.to_string().parse::<Filter>(), Ok(filter));
    }

    #[test]
    fn an_aggregate_goes_through_its_own_text(aggregate in any_aggregate()) {
        prop_assert_eq!(aggregate.to_string().parse::<Aggregate>(), Ok(aggregate));
    }

    #[test]
    fn no_text_is_too_strange(text in "[ -~é(int64)arg0&|=<>,x0-9\"-]{0,40}") {
        let spans = [
            text.parse::<Filter>().err().map(|error| error.span),
            text.parse::<Aggregate>().err().map(|error| error.span),
        ];
        for span in spans.into_iter().flatten() {
            prop_assert!(text.get(span).is_some());
        }
    }

    #[test]
    fn filter_is_the_conjunction_of_its_conditions(
        conditions in proptest::collection::vec(any_value_condition(), 1..=Filter::MAX_CONDITIONS),
        mut values in proptest::collection::vec(edge(), Operand::all().count()),
        meet in proptest::collection::vec(any::<bool>(), Filter::MAX_CONDITIONS),
    ) {
        let operands: Vec<_> = Operand::all().collect();
        let all: Vec<_> = conditions.iter().copied().map(Condition::Value).collect();
        let filter = Filter::new(all).expect("few enough");
        // Operands often equal the constant.
        for (condition, meet) in conditions.iter().zip(meet) {
            let at = operands.iter().position(|operand| *operand == condition.operand).expect("known");
            if meet {
                values[at] = condition.value;
            }
        }
        let mut value = |operand: Operand| {
            values[operands.iter().position(|known| *known == operand).expect("known")]
        };
        let expected = conditions.iter().all(|it| model(it, value(it.operand)));
        prop_assert_eq!(filter.holds(&mut value), Some(expected));
    }

    #[test]
    fn aggregate_follows_from_its_values(
        aggregate in any_aggregate(),
        values in proptest::collection::vec(edge(), 0..40),
        split in 0..40_usize,
    ) {
        // Two writers add the values.
        let split = split.min(values.len());
        let (first, second) = (words(&aggregate), words(&aggregate));
        values[..split].iter().for_each(|value| aggregate.add(&first, *value));
        values[split..].iter().for_each(|value| aggregate.add(&second, *value));
        let mut merged = read(&first);
        aggregate.merge(&mut merged, &read(&second));
        let result = aggregate.result(&merged);
        let signed: Vec<i64> = values.iter().map(|value| value.cast_signed()).collect();
        prop_assert_eq!(result.count(), values.len() as u64);
        match result {
            AggregateResult::Sum { value, .. } => {
                let sum: i128 = signed.iter().map(|value| i128::from(*value)).sum();
                prop_assert_eq!((i128::from(value) - sum) % (1 << 64), 0);
            }
            AggregateResult::Min { value, .. } => prop_assert_eq!(value, signed.iter().min().copied()),
            AggregateResult::Max { value, .. } => prop_assert_eq!(value, signed.iter().max().copied()),
            AggregateResult::Hist { buckets, .. } => {
                for bucket in &buckets {
                    let count = count_in(&values, Some(bucket.min.into()), Some(bucket.max.into()), false);
                    prop_assert_eq!(bucket.count, count);
                }
                prop_assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), values.len() as u64);
            }
            AggregateResult::Lhist { buckets, .. } => {
                for bucket in &buckets {
                    let (min, max) = (bucket.min.map(i128::from), bucket.max.map(i128::from));
                    prop_assert_eq!(bucket.count, count_in(&values, min, max, true));
                }
                prop_assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), values.len() as u64);
            }
        }
    }
}
