//! The bodies of the methods: one expression for a struct, one arm a variant for an enum.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::spanned::Spanned;

use crate::case::{Case, Value};
use crate::check::{Arm, Event, Kind};
use crate::value::{Place, display, local, pattern};

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
