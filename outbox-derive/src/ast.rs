//! The annotated type as written: its names, fields, variants and what their attributes say.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Fields, Ident, Member, Type};

use crate::argument::Errors;
use crate::attr::{Options, Place};

pub(crate) struct Input<'a> {
    pub(crate) original: &'a DeriveInput,
    pub(crate) options: Options,
    pub(crate) shape: Shape<'a>,
}

pub(crate) enum Shape<'a> {
    Struct(Vec<Field<'a>>),
    Enum(Vec<Variant<'a>>),
}

pub(crate) struct Variant<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) options: Options,
    pub(crate) fields: Vec<Field<'a>>,
    /// One unnamed field.
    pub(crate) newtype: bool,
}

pub(crate) struct Field<'a> {
    pub(crate) member: Member,
    /// Without `r#`; the index of a tuple's field.
    pub(crate) name: String,
    pub(crate) ty: &'a Type,
    pub(crate) span: Span,
    pub(crate) options: Options,
}

impl<'a> Input<'a> {
    pub(crate) fn parse(input: &'a DeriveInput, errors: &mut Errors) -> syn::Result<Self> {
        match &input.data {
            Data::Struct(data) => Ok(Input {
                original: input,
                options: Options::parse(&input.attrs, Place::Struct, errors),
                shape: Shape::Struct(fields(&data.fields, errors)),
            }),
            Data::Enum(data) => Ok(Input {
                original: input,
                options: Options::parse(&input.attrs, Place::Enum, errors),
                shape: Shape::Enum(
                    data.variants.iter().map(|variant| Variant::parse(variant, errors)).collect(),
                ),
            }),
            Data::Union(data) => {
                let message = "a union cannot be an outbox event; use a struct or an enum";
                Err(syn::Error::new(data.union_token.span, message))
            }
        }
    }
}

impl<'a> Variant<'a> {
    pub(crate) fn delegates(&self) -> bool {
        self.options.given("delegate").is_some()
    }

    fn parse(variant: &'a syn::Variant, errors: &mut Errors) -> Self {
        Variant {
            ident: &variant.ident,
            options: Options::parse(&variant.attrs, Place::Variant, errors),
            fields: fields(&variant.fields, errors),
            newtype: matches!(&variant.fields, Fields::Unnamed(fields) if fields.unnamed.len() == 1),
        }
    }
}

fn fields<'a>(fields: &'a Fields, errors: &mut Errors) -> Vec<Field<'a>> {
    fields
        .iter()
        .zip(fields.members())
        .map(|(field, member)| Field {
            name: match &member {
                Member::Named(ident) => ident.unraw().to_string(),
                Member::Unnamed(index) => index.index.to_string(),
            },
            span: match &field.ident {
                Some(ident) => ident.span(),
                None => syn::spanned::Spanned::span(&field.ty),
            },
            member,
            ty: &field.ty,
            options: Options::parse(&field.attrs, Place::Field, errors),
        })
        .collect()
}
