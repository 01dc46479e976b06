//! The variables that the hits of a probe show.

use introspect::operand::SizedOperand;
use introspect::signature::Variable;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A variable of the kernel's source at the site of a probe, as the kernel's debug information describes it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeVariable {
    /// Name of the variable.
    #[cfg_attr(feature = "openapi", schema(max_length = 260))]
    pub name: String,
    /// Type in C.
    #[serde(rename = "type")]
    #[cfg_attr(
        feature = "openapi",
        schema(example = "struct file *", max_length = 260)
    )]
    pub declared: String,
    /// Place of the value at the site, as an assembler writes the operands of marks (`8@%rdi`, `-4@16(%rsp)`, `8@$5`), or `8@&16(%rsp)` for the
    /// address itself; absent if the variable has no value there.
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        serialize_with = "write_operand",
        deserialize_with = "read_operand"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "8@%rdi"))]
    pub operand: Option<SizedOperand>,
}

fn write_operand<S: Serializer>(
    operand: &Option<SizedOperand>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match operand {
        Some(operand) => serializer.collect_str(operand),
        None => serializer.serialize_none(),
    }
}

fn read_operand<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SizedOperand>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let operand = text.map(|text| text.parse().map_err(serde::de::Error::custom));
    operand.transpose()
}

impl From<Variable> for ProbeVariable {
    fn from(variable: Variable) -> Self {
        let Variable {
            name,
            declared,
            operand,
        } = variable;
        Self {
            name,
            declared,
            operand,
        }
    }
}

impl From<ProbeVariable> for Variable {
    fn from(variable: ProbeVariable) -> Self {
        let ProbeVariable {
            name,
            declared,
            operand,
        } = variable;
        Self {
            name,
            declared,
            operand,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_operand_as_text() {
        let json = r#"{"name":"pos","type":"loff_t *","operand":"8@16(%rsp)"}"#;
        let variable: ProbeVariable = serde_json::from_str(json).expect("a variable");
        let operand = variable.operand.expect("an operand");
        assert_eq!(operand.to_string(), "8@16(%rsp)");
        assert_eq!(serde_json::to_string(&variable).expect("json"), json);
        let nowhere = r#"{"name":"pos","type":"int"}"#;
        let variable: ProbeVariable = serde_json::from_str(nowhere).expect("a variable");
        assert_eq!(variable.operand, None);
        assert_eq!(serde_json::to_string(&variable).expect("json"), nowhere);
        for wrong in [
            r#"{"name":"n","type":"int","operand":"rdi"}"#,
            r#"{"name":"n","type":"int","operand":7}"#,
            r#"{"name":"n","type":"int","place":"8@%rdi"}"#,
        ] {
            let found = serde_json::from_str::<ProbeVariable>(wrong);
            assert!(found.is_err(), "{wrong}");
        }
    }
}
