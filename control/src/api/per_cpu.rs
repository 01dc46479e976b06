//! Per-CPU variables of the guest's kernel.

use events::Hex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A per-CPU variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PerCpuVariable {
    /// Name of the variable.
    pub name: String,
    /// Type in C; absent if the type is not known.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none", default)]
    pub declared: Option<String>,
    /// Size of the type in bytes; without a type, bytes to the next symbol.
    pub size: u64,
    /// Copy of each processor, in the order of the processors.
    pub copies: Vec<PerCpuCopy>,
}

/// The copy of a per-CPU variable that belongs to a processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PerCpuCopy {
    /// Number of the processor.
    pub cpu: u64,
    /// Address of the copy.
    pub address: Hex,
    /// Value of a number, an enum or a pointer, as text in C; absent for other types.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text: Option<String>,
    /// The same value in the form of `value` in the answer of `/print`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub value: Option<serde_json::Value>,
}

/// Per-CPU variables in the order of their addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PerCpuVariables {
    /// The matching variables, up to the limit of 65 536 copies.
    pub variables: Vec<PerCpuVariable>,
    /// Whether more variables match than the limit allows.
    pub more: bool,
    /// A sentence about missing types.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remark: Option<String>,
}

impl From<inspect::PerCpuList> for PerCpuVariables {
    fn from(list: inspect::PerCpuList) -> Self {
        Self {
            variables: list.variables.into_iter().map(Into::into).collect(),
            more: list.more,
            remark: list.remark.map(str::to_owned),
        }
    }
}

impl From<inspect::PerCpuVariable> for PerCpuVariable {
    fn from(variable: inspect::PerCpuVariable) -> Self {
        let copies = variable.copies.into_iter().map(|copy| PerCpuCopy {
            cpu: copy.cpu,
            address: copy.address.into(),
            text: copy.value.as_ref().map(ToString::to_string),
            value: copy.value.map(|value| value.to_json()),
        });
        Self {
            name: variable.name,
            declared: variable.declared,
            size: variable.size,
            copies: copies.collect(),
        }
    }
}
