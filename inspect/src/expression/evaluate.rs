//! From an expression to an object.

use address::Gva;
use introspect::btf::{BitField, Type, TypeId, declaration};
use introspect::{Btf, nearest_names};

use super::error::EvaluateError;
use super::tree::{Expression, Kind, Node, TypeName};
use super::variable;
use crate::value::{Limits, Reader, Value};
use crate::view::KernelView;

/// The number of near names in an error.
const NEAR: usize = 5;
const POINTER_BYTES: u64 = 8;

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory.
    Memory(Gva),
    /// Some bits of the bytes in memory.
    Bits(Gva, BitField),
    /// Nowhere: a number.
    Word(u64),
}

/// The type of an object: pointers to a type of BTF, which need not have a type of its own there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PointedType {
    pub(super) id: TypeId,
    stars: usize,
}

/// The result of an expression: a typed object.
#[derive(Clone, Copy, Debug)]
pub struct Object<'k> {
    view: KernelView<'k>,
    types: &'k Btf,
    place: Place,
    ty: PointedType,
}

impl Expression {
    /// The object named by the expression, in the kernel of `view`.
    ///
    /// # Errors
    ///
    /// If a name or a type is not known, does not fit its operator, or a pointer on the way cannot be read.
    pub fn evaluate<'k>(&self, view: &KernelView<'k>) -> Result<Object<'k>, EvaluateError> {
        let types = view.types().ok_or(EvaluateError::NoTypes)?;
        let evaluator = Evaluator {
            view: *view,
            types,
            text: &self.text,
        };
        let object = evaluator.object(&self.root)?;
        match object.is_void_in_memory() {
            true => Err(evaluator.untyped(&self.root)),
            false => Ok(object),
        }
    }

    /// The object of type `ty` at the address named by the expression: the value of a number or a pointer, and the address of a variable.
    ///
    /// # Errors
    ///
    /// As [`evaluate`](Self::evaluate).
    pub fn evaluate_as<'k>(
        &self,
        view: &KernelView<'k>,
        ty: &TypeName,
    ) -> Result<Object<'k>, EvaluateError> {
        let types = view.types().ok_or(EvaluateError::NoTypes)?;
        let evaluator = Evaluator {
            view: *view,
            types,
            text: &self.text,
        };
        let object = evaluator.object(&self.root)?;
        let at = match (object.place, object.kind()) {
            (Place::Word(word), _) => Gva(word),
            (_, Some(Type::Pointer(_))) => Gva(evaluator.word(&object, &self.root)?),
            (Place::Memory(at), _) => at,
            (Place::Bits(..), _) => return Err(evaluator.no_address(&self.root)),
        };
        let ty = PointedType {
            id: ty.find(types)?,
            stars: ty.stars,
        };
        if ty.kind(types) == Some(Type::Void) {
            let text = self.text.clone();
            return Err(EvaluateError::Void { text });
        }
        Ok(Object {
            place: Place::Memory(at),
            ty,
            ..object
        })
    }
}

impl<'k> Object<'k> {
    /// The variable at `at`; the type is that of [`declared_type`](super::declared_type).
    pub(crate) fn variable(
        view: KernelView<'k>,
        types: &'k Btf,
        at: Gva,
        (id, stars): (TypeId, usize),
    ) -> Self {
        Self {
            view,
            types,
            place: Place::Memory(at),
            ty: PointedType { id, stars },
        }
    }

    /// Whether the value is a number, an enum or a pointer.
    pub(crate) fn is_scalar(&self) -> bool {
        matches!(
            self.kind(),
            Some(Type::Int(_) | Type::Enum | Type::Pointer(_))
        )
    }

    /// The size of the type in bytes; `None` for a type without one.
    pub(crate) fn size(&self) -> Option<u64> {
        match self.ty.stars {
            0 => self.types.size_of(self.ty.id),
            _ => Some(POINTER_BYTES),
        }
    }

    /// The type in C.
    #[must_use]
    pub fn declared(&self) -> String {
        self.ty.declared(self.types)
    }

    /// Where the object is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Reads the value.
    #[must_use]
    pub fn value(&self, limits: Limits) -> Value {
        let mut reader = Reader::new(self.view, self.types, limits);
        match (self.place, self.ty.stars) {
            (Place::Memory(at), 0) => reader.at(at, self.ty.id, None),
            (Place::Bits(at, bits), _) => reader.at(at, self.ty.id, Some(bits)),
            (Place::Word(word), 0) => reader.of_word(word, self.ty.id),
            (Place::Word(word), _) => reader.pointer(Gva(word)),
            (Place::Memory(at), _) => match self.view.pointer(at) {
                Ok(target) => reader.pointer(target),
                Err(error) => Value::Fault(error.at),
            },
        }
    }

    /// The kind of the type without typedefs and qualifiers; a pointer to the type itself for stars.
    fn kind(&self) -> Option<Type> {
        self.ty.kind(self.types)
    }

    fn is_void_in_memory(&self) -> bool {
        matches!(self.place, Place::Memory(_)) && self.kind() == Some(Type::Void)
    }
}

impl PointedType {
    fn declared(self, types: &Btf) -> String {
        let base = declaration(types, self.id);
        match self.stars {
            0 => base,
            stars if base.ends_with('*') => base + &"*".repeat(stars),
            stars => format!("{base} {}", "*".repeat(stars)),
        }
    }

    pub(super) fn kind(self, types: &Btf) -> Option<Type> {
        match self.stars {
            0 => types.get(types.stripped(self.id)?),
            _ => Some(Type::Pointer(self.id)),
        }
    }

    /// The target's type, if this is a pointer, or an array in its place.
    fn target(self, types: &Btf) -> Option<Self> {
        if let Some(stars) = self.stars.checked_sub(1) {
            return Some(Self { stars, ..self });
        }
        match self.kind(types)? {
            Type::Pointer(id) | Type::Array { element: id, .. } => Some(Self { id, stars: 0 }),
            _ => None,
        }
    }
}

struct Evaluator<'k, 'e> {
    view: KernelView<'k>,
    types: &'k Btf,
    text: &'e str,
}

impl<'k> Evaluator<'k, '_> {
    fn text_of(&self, node: &Node) -> String {
        let text = self.text.get(node.span.start..node.span.end);
        text.unwrap_or_default().to_owned()
    }

    fn no_address(&self, node: &Node) -> EvaluateError {
        EvaluateError::NoAddress {
            text: self.text_of(node),
        }
    }

    /// The error for an object of type `void`: a variable without a known type, or the target of a `void *`.
    fn untyped(&self, node: &Node) -> EvaluateError {
        match &node.kind {
            Kind::Name(name) | Kind::PerCpu(name, _) => {
                EvaluateError::Untyped { name: name.clone() }
            }
            _ => EvaluateError::Void {
                text: self.text_of(node),
            },
        }
    }

    fn at(&self, place: Place, ty: PointedType) -> Object<'k> {
        let (view, types) = (self.view, self.types);
        Object {
            view,
            types,
            place,
            ty,
        }
    }

    fn object(&self, node: &Node) -> Result<Object<'k>, EvaluateError> {
        match &node.kind {
            Kind::Name(name) => self.variable(name, None),
            Kind::PerCpu(name, cpu) => self.variable(name, Some(*cpu)),
            Kind::Number(number) => {
                let id = self
                    .types
                    .type_named("long unsigned int")
                    .unwrap_or(TypeId::VOID);
                Ok(self.at(Place::Word(*number), PointedType { id, stars: 0 }))
            }
            Kind::Member { of, name, is_arrow } => {
                let holder = self.object(of)?;
                let holder = if *is_arrow {
                    self.target(&holder, of, "->")?
                } else {
                    holder
                };
                self.member(&holder, of, name)
            }
            Kind::Element { of, number } => self.element(of, *number),
            Kind::Target(of) => self.target(&self.object(of)?, of, "*"),
            Kind::Address(of) => match self.object(of)? {
                Object {
                    place: Place::Memory(at),
                    ty,
                    ..
                } => {
                    let stars = ty.stars + 1;
                    Ok(self.at(Place::Word(at.0), PointedType { stars, ..ty }))
                }
                _ => Err(self.no_address(of)),
            },
            Kind::Cast(name, of) => {
                let word = self.word(&self.object(of)?, of)?;
                let id = name.find(self.types)?;
                let ty = PointedType {
                    id,
                    stars: name.stars,
                };
                let word = ty.converted(self.types, word);
                let word = word.ok_or_else(|| EvaluateError::Cast {
                    declared: ty.declared(self.types),
                })?;
                Ok(self.at(Place::Word(word), ty))
            }
        }
    }

    fn variable(&self, name: &str, cpu: Option<u64>) -> Result<Object<'k>, EvaluateError> {
        let found = variable::find(&self.view, self.types, name, cpu)?;
        if found.is_function {
            let ty = PointedType {
                id: TypeId::VOID,
                stars: 1,
            };
            return Ok(self.at(Place::Word(found.at.0), ty));
        }
        let (id, stars) = found.ty.unwrap_or((TypeId::VOID, 0));
        Ok(self.at(Place::Memory(found.at), PointedType { id, stars }))
    }

    /// The number or address in `object`: an array is the address of its first element.
    fn word(&self, object: &Object<'k>, node: &Node) -> Result<u64, EvaluateError> {
        let wrong = || EvaluateError::WrongType {
            operator: "(type)",
            wanted: "a number or a pointer",
            text: self.text_of(node),
            found: object.declared(),
        };
        let at = match (object.place, object.kind()) {
            (Place::Word(word), _) => return Ok(word),
            (Place::Memory(at), Some(Type::Array { .. })) => return Ok(at.0),
            (
                Place::Memory(at) | Place::Bits(at, _),
                Some(Type::Pointer(_) | Type::Int(_) | Type::Enum),
            ) => at,
            (Place::Memory(_), Some(Type::Void)) => {
                return Err(self.untyped(node));
            }
            _ => return Err(wrong()),
        };
        match object.value(Limits::default()) {
            Value::Fault(_) => Err(EvaluateError::Fault {
                text: self.text_of(node),
                at,
            }),
            value => value.word().ok_or_else(wrong),
        }
    }

    fn target(
        &self,
        pointer: &Object<'k>,
        node: &Node,
        operator: &'static str,
    ) -> Result<Object<'k>, EvaluateError> {
        let target = pointer.ty.target(self.types);
        let target = target.ok_or_else(|| match pointer.is_void_in_memory() {
            true => self.untyped(node),
            false => EvaluateError::WrongType {
                operator,
                wanted: "pointers",
                text: self.text_of(node),
                found: pointer.declared(),
            },
        })?;
        let at = Gva(self.word(pointer, node)?);
        Ok(self.at(Place::Memory(at), target))
    }

    fn member(
        &self,
        holder: &Object<'k>,
        of: &Node,
        name: &str,
    ) -> Result<Object<'k>, EvaluateError> {
        let wrong = || EvaluateError::WrongType {
            operator: ".",
            wanted: "structs",
            text: self.text_of(of),
            found: holder.declared(),
        };
        if holder.is_void_in_memory() {
            return Err(self.untyped(of));
        }
        let id = Some(holder.ty).filter(|ty| ty.stars == 0);
        let id = id
            .and_then(|ty| self.types.as_struct(ty.id))
            .ok_or_else(wrong)?;
        let Place::Memory(at) = holder.place else {
            return Err(wrong());
        };
        let member = self
            .types
            .member(id, name)
            .ok_or_else(|| EvaluateError::NoMember {
                holder: holder.declared(),
                name: name.to_owned(),
                near: nearest_names(name, self.types.member_names(id), NEAR),
            })?;
        let at = at.wrapping_add(member.offset_bytes);
        let place = match member.bits {
            Some(bits) => Place::Bits(at, bits),
            None => Place::Memory(at),
        };
        Ok(self.at(
            place,
            PointedType {
                id: member.ty,
                stars: 0,
            },
        ))
    }

    fn element(&self, of: &Node, number: u64) -> Result<Object<'k>, EvaluateError> {
        let first = self.target(&self.object(of)?, of, "[]")?;
        let size = match first.ty.stars {
            0 => self.types.size_of(first.ty.id),
            _ => Some(POINTER_BYTES),
        };
        let size = size.ok_or_else(|| EvaluateError::NoSize {
            text: self.text_of(of),
        })?;
        let Place::Memory(at) = first.place else {
            return Err(self.no_address(of));
        };
        let at = at.wrapping_add(size.wrapping_mul(number));
        Ok(self.at(Place::Memory(at), first.ty))
    }
}
