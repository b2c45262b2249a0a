//! The bodies of the methods: one expression for a struct, one arm a variant for an enum.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::Member;
use syn::spanned::Spanned;

use crate::ast::Field;
use crate::case::{Case, Value};
use crate::check::{Arm, Event, Kind};

pub(crate) struct Methods<'a> {
    pub(crate) event: &'a Event<'a>,
    pub(crate) krate: &'a TokenStream,
}

impl<'a> Methods<'a> {
    /// Whether a provided method needs an implementation: if a variant delegates, all do.
    pub(crate) fn some(&self, differs: impl Fn(&Case<'_>) -> bool) -> bool {
        match &self.event.kind {
            Kind::Struct(case) => differs(case),
            Kind::Enum(arms) => arms.iter().any(|(_, arm)| match arm {
                Arm::Case(case) => differs(case),
                Arm::Delegate { .. } => true,
            }),
        }
    }

    pub(crate) fn constant<T: ToTokens>(
        &self,
        method: &str,
        of: impl Fn(&Case<'_>) -> T,
    ) -> TokenStream {
        self.each(method, |_| &[], |case, _| of(case).into_token_stream())
    }

    pub(crate) fn each(
        &self,
        method: &str,
        values: impl Fn(&'a Case<'a>) -> &'a [Value<'a>],
        body: impl Fn(&Case<'_>, &[TokenStream]) -> TokenStream,
    ) -> TokenStream {
        let (krate, method) = (self.krate, format_ident!("{method}"));
        self.dispatch(
            |case| values(case).to_vec(),
            body,
            |inner, _| quote!(#krate::OutboxEvent::#method(#inner)),
        )
    }

    pub(crate) fn headers(&self, headers: &Ident) -> TokenStream {
        let krate = self.krate;
        let set = |named: &[(String, Value<'_>)], values: &[TokenStream]| {
            let names = named.iter().map(|(name, _)| name);
            quote!(#(#krate::__private::header(#headers, #names, #values);)*)
        };
        self.dispatch(
            |case| case.headers.iter().map(|&(_, value)| value).collect(),
            |case, values| set(&case.headers, values),
            |inner, outer| {
                let values: Vec<_> =
                    outer.iter().map(|&(_, value)| display(value, Place::Variant, krate)).collect();
                let outer = set(outer, &values);
                quote!(#krate::OutboxEvent::headers(#inner, #headers); #outer)
            },
        )
    }

    fn dispatch(
        &self,
        values: impl Fn(&'a Case<'a>) -> Vec<Value<'a>>,
        body: impl Fn(&Case<'_>, &[TokenStream]) -> TokenStream,
        delegate: impl Fn(&Ident, &[(String, Value<'_>)]) -> TokenStream,
    ) -> TokenStream {
        let render = |case, place| {
            let values = values(case);
            let shown: Vec<_> =
                values.iter().map(|&value| display(value, place, self.krate)).collect();
            (pattern(&values), body(case, &shown))
        };
        let arms = match &self.event.kind {
            Kind::Struct(case) => return render(case, Place::Struct).1,
            Kind::Enum(arms) => arms,
        };
        let arms = arms.iter().map(|(variant, arm)| match arm {
            Arm::Case(case) => {
                let (pattern, body) = render(case, Place::Variant);
                quote!(Self::#variant { #pattern .. } => { #body })
            }
            Arm::Delegate { inner, headers } => {
                let inner = local("inner", inner.span());
                let body = delegate(&inner, headers);
                quote!(Self::#variant(ref #inner) => { #body })
            }
        });
        quote!(match *self { #(#arms)* })
    }
}

/// Where a value is read: the fields of a struct are places, those of a variant are bound.
#[derive(Clone, Copy)]
enum Place {
    Struct,
    Variant,
}

/// `Value::display(&self.id)`
fn display(value: Value<'_>, place: Place, krate: &TokenStream) -> TokenStream {
    let value = match (value, place) {
        (Value::Field(field), Place::Struct) => {
            let member = &field.member;
            quote_spanned!(located(field.span)=> &self.#member)
        }
        (Value::Field(field), Place::Variant) => binding(field).into_token_stream(),
        (Value::Expr(expr, []), _) => {
            let value = with_own_self(expr.to_token_stream());
            quote_spanned!(located(expr.span())=> &(#value))
        }
        (Value::Expr(expr, scope), _) => {
            let value = with_own_self(expr.to_token_stream());
            let names: Vec<_> = scope.iter().map(name_in_scope).collect();
            let bindings = scope.iter().map(binding);
            quote_spanned! {located(expr.span())=>
                &{
                    let (#(#names,)*) = (#(#bindings,)*);
                    #value
                }
            }
        }
    };
    quote!(#krate::__private::Value::display(#value))
}

/// The fields that the values read, each once: `id: ref field_id,`
fn pattern(values: &[Value<'_>]) -> TokenStream {
    let mut fields = Vec::<&Field<'_>>::new();
    for value in values {
        let read = match value {
            Value::Field(field) => std::slice::from_ref(*field),
            Value::Expr(_, scope) => scope,
        };
        for field in read {
            if !fields.iter().any(|known| known.name == field.name) {
                fields.push(field);
            }
        }
    }
    let members = fields.iter().map(|field| &field.member);
    let bindings = fields.iter().map(|field| binding(field));
    quote!(#(#members: ref #bindings,)*)
}

/// A name that the user's names cannot meet, shown to them at `place`.
pub(crate) fn local(name: &str, place: Span) -> Ident {
    Ident::new(name, Span::mixed_site().located_at(place))
}

fn binding(field: &Field<'_>) -> Ident {
    local(&format!("field_{}", field.name), field.span)
}

/// A field as the expressions of its variant know it; `_0` where it has no name.
fn name_in_scope(field: &Field<'_>) -> Ident {
    match &field.member {
        Member::Named(ident) => ident.clone(),
        Member::Unnamed(index) => Ident::new(&format!("_{}", index.index), Span::call_site()),
    }
}

/// What a `None` names.
pub(crate) fn source(value: Value<'_>, krate: &TokenStream) -> TokenStream {
    match value {
        Value::Field(field) => field.name.to_token_stream(),
        Value::Expr(expr, _) => quote!(#krate::__private::stringify!(#expr)),
    }
}

fn located(span: Span) -> Span {
    span.resolved_at(Span::call_site())
}

/// Lets `self` mean the event also where the expression was handed through `macro_rules`.
fn with_own_self(tokens: TokenStream) -> TokenStream {
    let mend = |token| match token {
        TokenTree::Ident(mut ident) if ident == "self" => {
            ident.set_span(located(ident.span()));
            TokenTree::Ident(ident)
        }
        TokenTree::Group(group) => {
            let mut mended = Group::new(group.delimiter(), with_own_self(group.stream()));
            mended.set_span(group.span());
            TokenTree::Group(mended)
        }
        other => other,
    };
    tokens.into_iter().map(mend).collect()
}
